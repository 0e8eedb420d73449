"""The table of judges that have a name: five general ones, and one for every rubric file in `gallery/`."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from .composite import Jury
from .judging.checklist import Checklist
from .judging.listwise import Ranker
from .judging.pairwise import Pairwise
from .judging.pointwise import Judge
from .registry import GraderEntry, Mode, no_argument
from .rubric import Rubric

ALL_TASK_FIELDS = ("messages", "context", "reference", "tests")
ALIASED_RUBRICS = ("helpfulness", "harmlessness", "honesty")  # also registered under the names that galleries of reward models use


def _make_judge(argument: str) -> Judge:
    return Judge(argument, f"judge:{argument}") if argument else Judge()


def _make_checklist(argument: str) -> Checklist:
    return Checklist(argument, name=f"checklist:{argument}") if argument else Checklist()


def _make_jury(argument: str) -> Jury:
    if argument:
        return Jury([name.strip() for name in argument.split(",")], "median", name=f"jury:{argument}")
    return Jury(Judge(temperature=0.7), "median", repeats=3)


def _entry(name: str, mode: Mode, about: str, make: Callable[[str], Any], example: str = "") -> GraderEntry:
    return GraderEntry(name, mode, about, make, ALL_TASK_FIELDS, calls_model=True, example=example or name)


JUDGES: tuple[GraderEntry, ...] = (
    _entry(
        "judge",
        "pointwise",
        "an LLM judge: instructions, correctness, completeness, clarity, or the rubric in a file; says what to change",
        _make_judge,
    ),
    _entry(
        "checklist",
        "pointwise",
        "an LLM answers questions with yes, partial or no: generated from the task, or those in a file",
        _make_checklist,
    ),
    _entry(
        "ranker", "listwise", "an LLM that ranks all answers so far; its reason feeds the next draft", no_argument("ranker", Ranker)
    ),
    _entry(
        "pairwise",
        "pairwise",
        "an LLM that compares answers two at a time, in both orders; a verdict that changes with the order is a tie",
        no_argument("pairwise", Pairwise),
    ),
    _entry(
        "jury",
        "pointwise",
        "the median of three votes of a judge at temperature 0.7, or of one vote of each grader named; the votes are kept",
        _make_jury,
        "jury:helpfulness,clarity",
    ),
)


def gallery_entries() -> Iterator[GraderEntry]:
    """Yield an entry for each rubric in the gallery; its file is read when the entry is reached."""
    for name in _rubric_files():
        yield _judge_entry(name, gallery_rubric(name))
    for name in ALIASED_RUBRICS:
        yield _judge_entry(f"base_{name}_pointwise", gallery_rubric(name))
        yield _ranker_entry(f"base_{name}_listwise", gallery_rubric(name))


@cache
def gallery_rubric(name: str) -> Rubric:
    """Return the gallery's rubric of that name. Raises KeyError if there is none."""
    file = _rubric_files()[name]
    return Rubric.from_data(tomllib.loads(file.read_text(encoding="utf-8")), name, file.name)


@cache
def _rubric_files() -> dict[str, Traversable]:
    found = (file for file in files("redraft.graders").joinpath("gallery").iterdir() if file.name.endswith(".toml"))
    return {file.name.removesuffix(".toml"): file for file in sorted(found, key=lambda file: file.name)}


def _judge_entry(name: str, rubric: Rubric) -> GraderEntry:
    make = no_argument(name, lambda: Judge(rubric, name))
    return GraderEntry(name, "pointwise", rubric.about, make, ("messages", *rubric.task_fields), calls_model=True, example=name)


def _ranker_entry(name: str, rubric: Rubric) -> GraderEntry:
    make = no_argument(name, lambda: Ranker(name=name, rubric=rubric))
    about = f"ranks all answers so far: {rubric.about.replace('the answer', 'each')}"
    return GraderEntry(name, "listwise", about, make, ("messages", *rubric.task_fields), calls_model=True, example=name)
