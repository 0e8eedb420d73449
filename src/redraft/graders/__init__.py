"""Graders score answers and say what to change, or rank answers: LLM judges, requirements,
functions, and graders made of others.

`Judge` asks a model to follow a rubric, `Checklist` to answer questions; `Ranker` and `Pairwise`
let a model compare answers. A plain function becomes a `FunctionGrader`, a requirement a
`RequirementGrader`; the graders in `computed` ask no model. `Jury`, `RankingJury`, `Cascade`,
`Gate`, `WeightedMean` and `Minimum` are made of other graders; a `router` chooses one of several.
All graders with a name are in the `registry`. Graders and the table of their names are loaded when
they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.lazy_imports import attribute_loader

if TYPE_CHECKING:
    from .base import (
        FunctionGrader,
        GraderSpec,
        RequirementGrader,
        must,
        with_weight,
    )
    from .composite import (
        Cascade,
        Gate,
        Jury,
        Minimum,
        RankingJury,
        Router,
        WeightedMean,
        router,
    )
    from .judging.checklist import Checklist
    from .judging.pointwise import Judge
    from .judging.ranking import Pairwise, Ranker
    from .registry import GraderEntry, as_grader, entries, find_entry
    from .reward import Moderation, Reward
    from .rubric import Criterion, Rubric
else:
    __getattr__ = attribute_loader(
        __name__,
        {
            "Cascade": "composite",
            "Checklist": "judging.checklist",
            "Criterion": "rubric",
            "FunctionGrader": "base",
            "Gate": "composite",
            "GraderEntry": "registry",
            "GraderSpec": "base",
            "Judge": "judging.pointwise",
            "Jury": "composite",
            "Minimum": "composite",
            "Moderation": "reward",
            "Pairwise": "judging.ranking",
            "Ranker": "judging.ranking",
            "RankingJury": "composite",
            "RequirementGrader": "base",
            "Reward": "reward",
            "Router": "composite",
            "Rubric": "rubric",
            "WeightedMean": "composite",
            "as_grader": "registry",
            "entries": "registry",
            "find_entry": "registry",
            "must": "base",
            "router": "composite",
            "with_weight": "base",
        },
    )

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
