"""Graders: what gives a score and says what to change, or ranks answers.

`Judge` asks a model by a rubric, `Checklist` by questions; `Ranker` and `Pairwise` let a model compare. A plain function
becomes a `FunctionGrader`, a requirement a `RequirementGrader`; graders that compute are in `computed`. `Jury`, `Council`,
`Cascade`, `Gate`, `Weighted` and `Minimum` are graders made of graders. All that have a name are in the `registry`.
"""

from .composite import Cascade, Gate, Minimum, WeightedMean
from .functions import FunctionGrader
from .judging.checklist import Checklist
from .judging.listwise import Ranker
from .judging.pairwise import Pairwise
from .judging.pointwise import Judge
from .jury import Jury, RankingJury
from .names import as_grader
from .registry import GraderEntry, entries, find_entry
from .requirement import RequirementGrader
from .rubric import Criterion, Rubric
from .seating import GraderSpec, must, with_weight

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
    "Pairwise",
    "Ranker",
    "RankingJury",
    "RequirementGrader",
    "Rubric",
    "WeightedMean",
    "as_grader",
    "entries",
    "find_entry",
    "must",
    "with_weight",
]
