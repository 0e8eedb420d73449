"""Redraft makes LLM answers better and proves it: generate, grade, feed back, redraft, grade again, keep the best.

Importing this does nothing: each name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import refine, refine_many, refine_sync, stream
    from .core.records import Candidate, Comparison, CriterionScore, Failure, Feedback, Outcome, StopReason
    from .core.task import Task
    from .core.trace import Trace
    from .graders import Judge, Ranker, must, with_weight
    from .middleware import Budget
    from .models import ScriptedModel, connect
    from .plans import plan_from_generator
    from .plans.adaptive import Adaptive
    from .plans.self_refine import BestOfN, SelfRefine
    from .quality.priors import Priors
    from .result import Result
    from .runs import batch, batch_sync
    from .usage import Usage

__version__ = "0.2.0"

_LAZY_MODULES = {
    "Adaptive": "plans.adaptive",
    "BestOfN": "plans.self_refine",
    "Budget": "middleware",
    "Candidate": "core.records",
    "Comparison": "core.records",
    "CriterionScore": "core.records",
    "Failure": "core.records",
    "Feedback": "core.records",
    "Judge": "graders",
    "Outcome": "core.records",
    "Priors": "quality.priors",
    "Ranker": "graders",
    "Result": "result",
    "ScriptedModel": "models",
    "SelfRefine": "plans.self_refine",
    "StopReason": "core.records",
    "Task": "core.task",
    "Trace": "core.trace",
    "Usage": "usage",
    "batch": "runs.api",
    "batch_sync": "runs.api",
    "connect": "models",
    "must": "graders",
    "refine": "api",
    "refine_many": "api",
    "refine_sync": "api",
    "stream": "api",
    "plan_from_generator": "plans",
    "with_weight": "graders",
}

__all__ = [
    "Adaptive",
    "BestOfN",
    "Budget",
    "Candidate",
    "Comparison",
    "CriterionScore",
    "Failure",
    "Feedback",
    "Judge",
    "Outcome",
    "Priors",
    "Ranker",
    "Result",
    "ScriptedModel",
    "SelfRefine",
    "StopReason",
    "Task",
    "Trace",
    "Usage",
    "batch",
    "batch_sync",
    "connect",
    "must",
    "plan_from_generator",
    "refine",
    "refine_many",
    "refine_sync",
    "stream",
    "with_weight",
]


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module(".errors", __name__)
    if name not in _LAZY_MODULES:
        raise AttributeError(f"module 'redraft' has no attribute {name!r}")
    value = getattr(import_module(f".{_LAZY_MODULES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__", "errors"]
