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
from .registry import GraderEntry, no_argument
from .rubric import Rubric

ALL_TASK_FIELDS = ("messages", "context", "reference", "tests")
ALIASED_RUBRICS = ("helpfulness", "harmlessness", "honesty")  # also known by the names that reward-model galleries give them


def _make_judge(argument: str) -> Judge:
    return Judge(argument, f"judge:{argument}") if argument else Judge()


def _make_checklist(argument: str) -> Checklist:
    return Checklist(argument, name=f"checklist:{argument}") if argument else Checklist()


def _make_jury(argument: str) -> Jury:
    if argument:
        return Jury([name.strip() for name in argument.split(",")], "median", name=f"jury:{argument}")
    return Jury(Judge(temperature=0.7), "median", repeats=3)


JUDGES: tuple[GraderEntry, ...] = (
    GraderEntry(
        "judge",
        "pointwise",
        "an LLM judge: instructions, correctness, completeness, clarity, or the rubric in a file; says what to change",
        _make_judge,
        ALL_TASK_FIELDS,
        calls_model=True,
        example="judge",
    ),
    GraderEntry(
        "checklist",
        "pointwise",
        "an LLM answers questions with yes, partial or no: drawn from the task, or those in a file",
        _make_checklist,
        ALL_TASK_FIELDS,
        calls_model=True,
        example="checklist",
    ),
    GraderEntry(
        "ranker",
        "listwise",
        "an LLM that ranks all answers so far; its reason feeds the next draft",
        no_argument("ranker", Ranker),
        ALL_TASK_FIELDS,
        calls_model=True,
        example="ranker",
    ),
    GraderEntry(
        "pairwise",
        "pairwise",
        "an LLM that compares answers two at a time, in both orders; a verdict that changes with the order is a tie",
        no_argument("pairwise", Pairwise),
        ALL_TASK_FIELDS,
        calls_model=True,
        example="pairwise",
    ),
    GraderEntry(
        "jury",
        "pointwise",
        "three looks of a judge at temperature 0.7, or one each of those named; their median; the votes are kept",
        _make_jury,
        ALL_TASK_FIELDS,
        calls_model=True,
        example="jury:helpfulness,clarity",
    ),
)


def gallery_entries() -> Iterator[GraderEntry]:
    """The judges of the gallery, by name; a file is read when its entry comes up."""
    for name in _rubric_files():
        yield _judge_entry(name, gallery_rubric(name))
    for name in ALIASED_RUBRICS:
        yield _judge_entry(f"base_{name}_pointwise", gallery_rubric(name))
        yield _ranker_entry(f"base_{name}_listwise", gallery_rubric(name))


@cache
def gallery_rubric(name: str) -> Rubric:
    """The rubric in the gallery file of that name. Raises KeyError where there is none."""
    file = _rubric_files()[name]
    return Rubric.from_data(tomllib.loads(file.read_text(encoding="utf-8")), name, file.name)


@cache
def _rubric_files() -> dict[str, Traversable]:
    found = (file for file in files(__package__).joinpath("gallery").iterdir() if file.name.endswith(".toml"))
    return {file.name.removesuffix(".toml"): file for file in sorted(found, key=lambda file: file.name)}


def _judge_entry(name: str, rubric: Rubric) -> GraderEntry:
    make = no_argument(name, lambda: Judge(rubric, name))
    return GraderEntry(name, "pointwise", rubric.about, make, ("messages", *rubric.task_fields), calls_model=True, example=name)


def _ranker_entry(name: str, rubric: Rubric) -> GraderEntry:
    make = no_argument(name, lambda: Ranker(name=name, rubric=rubric))
    about = f"ranks all answers so far: {rubric.about.replace('the answer', 'each')}"
    return GraderEntry(name, "listwise", about, make, ("messages", *rubric.task_fields), calls_model=True, example=name)
