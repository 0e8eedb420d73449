"""The judges that have a name: the plain ones, and one for every rubric file in `gallery/`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from .judging.checklist import Checklist
from .judging.listwise import Ranker
from .judging.pairwise import Pairwise
from .judging.pointwise import Judge
from .jury import Jury
from .registry import Entry, plainly
from .rubric import Rubric

EVERYTHING = ("messages", "context", "reference", "tests")
PLAIN = ("helpfulness", "harmlessness", "honesty")  # also known by the names that reward-model galleries give them


def _judge(argument: str) -> Judge:
    return Judge(argument, f"judge:{argument}") if argument else Judge()


def _checklist(argument: str) -> Checklist:
    return Checklist(argument, name=f"checklist:{argument}") if argument else Checklist()


def _jury(argument: str) -> Jury:
    if argument:
        return Jury([name.strip() for name in argument.split(",")], "median", name=f"jury:{argument}")
    return Jury(Judge(temperature=0.7), "median", looks=3)


JUDGES: tuple[Entry, ...] = (
    Entry(
        "judge",
        "pointwise",
        "an LLM judge: instructions, correctness, completeness, clarity, or the rubric in a file; says what to change",
        _judge,
        EVERYTHING,
        asks=True,
        example="judge",
    ),
    Entry(
        "checklist",
        "pointwise",
        "an LLM answers questions with yes, partial or no: drawn from the task, or those in a file",
        _checklist,
        EVERYTHING,
        asks=True,
        example="checklist",
    ),
    Entry(
        "ranker",
        "listwise",
        "an LLM that ranks all answers so far; its reason feeds the next draft",
        plainly("ranker", Ranker),
        EVERYTHING,
        asks=True,
        example="ranker",
    ),
    Entry(
        "pairwise",
        "pairwise",
        "an LLM that compares answers two at a time, in both orders; a verdict that changes with the order is a tie",
        plainly("pairwise", Pairwise),
        EVERYTHING,
        asks=True,
        example="pairwise",
    ),
    Entry(
        "jury",
        "pointwise",
        "three looks of a judge at temperature 0.7, or one each of those named; their median; the votes are kept",
        _jury,
        EVERYTHING,
        asks=True,
        example="jury:helpfulness,clarity",
    ),
)


def gallery() -> Iterator[Entry]:
    """The judges of the gallery, by name; a file is read when its entry comes up."""
    for name in _files():
        yield _entry(name, rubric(name))
    for name in PLAIN:
        yield _entry(f"base_{name}_pointwise", rubric(name))
        yield _ranking(f"base_{name}_listwise", rubric(name))


@cache
def rubric(name: str) -> Rubric:
    """The rubric in the gallery file of that name. Raises KeyError where there is none."""
    file = _files()[name]
    return Rubric.of(tomllib.loads(file.read_text(encoding="utf-8")), name, file.name)


@cache
def _files() -> dict[str, Traversable]:
    found = (file for file in files(__package__).joinpath("gallery").iterdir() if file.name.endswith(".toml"))
    return {file.name.removesuffix(".toml"): file for file in sorted(found, key=lambda file: file.name)}


def _entry(name: str, rubric: Rubric) -> Entry:
    make = plainly(name, lambda: Judge(rubric, name))
    return Entry(name, "pointwise", rubric.about, make, ("messages", *rubric.reads), asks=True, example=name)


def _ranking(name: str, rubric: Rubric) -> Entry:
    make = plainly(name, lambda: Ranker(name=name, rubric=rubric))
    about = f"ranks all answers so far: {rubric.about.replace('the answer', 'each')}"
    return Entry(name, "listwise", about, make, ("messages", *rubric.reads), asks=True, example=name)
