"""Redraft makes LLM answers better and proves it: generate, grade, feed back, redraft, grade again,
keep the best.

Importing this does nothing: each name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import comparison as comparison
    from . import errors as errors
    from . import graders as graders
    from . import grading as grading
    from . import validation as validation
    from .graders import Judge, must, with_weight
    from .grading import grade, grade_sync
    from .loop.records import Candidate, CriterionScore, Feedback, StopReason
    from .loop.task import Task
    from .loop.trace import Trace
    from .middleware import Budget
    from .models import ScriptedModel, connect
    from .plans.adaptive import Adaptive
    from .plans.self_refine import BestOfN, SelfRefine
    from .result import Result
    from .runs import batch, batch_sync, calibrate, calibrate_sync
    from .session.api import refine, refine_many, refine_sync, stream
    from .usage import Usage

__version__ = "0.2.0"

_LAZY_MODULES = {
    "Adaptive": "plans.adaptive",
    "BestOfN": "plans.self_refine",
    "Budget": "middleware",
    "Candidate": "loop.records",
    "CriterionScore": "loop.records",
    "Feedback": "loop.records",
    "Judge": "graders",
    "Result": "result",
    "ScriptedModel": "models",
    "SelfRefine": "plans.self_refine",
    "StopReason": "loop.records",
    "Task": "loop.task",
    "Trace": "loop.trace",
    "Usage": "usage",
    "batch": "runs.api",
    "batch_sync": "runs.api",
    "calibrate": "runs.learning",
    "calibrate_sync": "runs.learning",
    "connect": "models",
    "grade": "grading",
    "grade_sync": "grading",
    "must": "graders",
    "refine": "session.api",
    "refine_many": "session.api",
    "refine_sync": "session.api",
    "stream": "session.api",
    "with_weight": "graders",
}

# available without an import of their own
_MODULES = ("comparison", "errors", "graders", "grading", "validation")

# of the packages above the core, the modules that it uses and does not import (see `extension`)
EXTENSIONS = {
    "graders": "sandbox.graders",
    "observer": "telemetry",
    "sandbox": "sandbox",
    "tests": "sandbox.code.tests",
    "trained": "train.grader",
}

_MOVED_NAMES = {
    "Comparison": "loop.records",
    "Failure": "loop.records",
    "Outcome": "loop.records",
    "Priors": "plans.quality.priors",
    "Ranker": "graders",
    "plan_from_generator": "plans",
}

__all__ = [
    "Adaptive",
    "BestOfN",
    "Budget",
    "Candidate",
    "CriterionScore",
    "Feedback",
    "Judge",
    "Result",
    "ScriptedModel",
    "SelfRefine",
    "StopReason",
    "Task",
    "Trace",
    "Usage",
    "batch",
    "batch_sync",
    "calibrate",
    "calibrate_sync",
    "connect",
    "grade",
    "grade_sync",
    "must",
    "refine",
    "refine_many",
    "refine_sync",
    "stream",
    "with_weight",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name in _MOVED_NAMES:
        raise AttributeError(f"redraft.{name} is in redraft.{_MOVED_NAMES[name]}")
    from .base.lazy_imports import attribute_loader

    return attribute_loader(__name__, _LAZY_MODULES)(name)


def __dir__() -> list[str]:
    return [*__all__, "__version__", *_MODULES]
