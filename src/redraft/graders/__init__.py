"""Graders: what gives a score and says what to change.

`Judge` asks a model, `Ranker` lets a model rank several answers, a plain function becomes a `FunctionGrader`, and a
requirement a `RequirementGrader`.
"""

from .functions import FunctionGrader
from .judge import Judge
from .names import as_grader
from .ranker import Ranker
from .registry import Entry, entries, find_entry
from .requirement import RequirementGrader
from .rubric import Criterion, Rubric
from .seating import Seated, must, weighted

__all__ = [
    "Criterion",
    "Entry",
    "FunctionGrader",
    "Judge",
    "Ranker",
    "RequirementGrader",
    "Rubric",
    "Seated",
    "as_grader",
    "entries",
    "find_entry",
    "must",
    "weighted",
]
