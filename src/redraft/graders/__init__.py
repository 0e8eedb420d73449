"""Graders: they score answers and say what to change, or rank them.

`Judge` asks a model to follow a rubric, `Checklist` to answer questions; `Ranker` and `Pairwise` let a model compare answers. A
plain function becomes a `FunctionGrader`, a requirement a `RequirementGrader`; the graders in `computed` ask no model. `Jury`,
`RankingJury`, `Cascade`, `Gate`, `WeightedMean` and `Minimum` are made of other graders; a `router` chooses one of several. All
graders with a name are in the `registry`. Graders that few runs use are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy_imports import attribute_loader
from .base import FunctionGrader, GraderSpec, RequirementGrader, must, with_weight
from .catalog import catalog_entries
from .composite import Cascade, Gate, Jury, Minimum, RankingJury, WeightedMean
from .judging.pointwise import Judge
from .registry import GraderEntry, add_source, as_grader, entries, find_entry
from .rubric import Criterion, Rubric

if TYPE_CHECKING:
    from .judging.checklist import Checklist
    from .judging.ranking import Pairwise, Ranker
    from .reward import Moderation, Reward
    from .routing import Router, router
else:
    __getattr__ = attribute_loader(
        __name__,
        {
            "Checklist": "judging.checklist",
            "Moderation": "reward",
            "Pairwise": "judging.ranking",
            "Ranker": "judging.ranking",
            "Reward": "reward",
            "Router": "routing",
            "router": "routing",
        },
    )

add_source(catalog_entries)

__all__ = [
    "Cascade",
    "Checklist",
    "Criterion",
    "FunctionGrader",
    "Gate",
    "GraderEntry",
    "GraderSpec",
    "Judge",
    "Jury",
    "Minimum",
    "Moderation",
    "Pairwise",
    "Ranker",
    "RankingJury",
    "RequirementGrader",
    "Reward",
    "Router",
    "Rubric",
    "WeightedMean",
    "as_grader",
    "entries",
    "find_entry",
    "must",
    "router",
    "with_weight",
]


def __dir__() -> list[str]:
    return __all__
