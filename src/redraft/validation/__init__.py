"""Validation of graders: their verdicts compared with the labels of people, the measures, and the validation card.

`validate` and `validate_sync` do all of it; `propose_rubric` asks a model for a rubric. Importing this package loads nothing:
each name is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy_imports import attribute_loader

if TYPE_CHECKING:
    from .api import validate, validate_sync
    from .attacks import Attack
    from .cases import LabelledCase
    from .labelled import read_cases
    from .rubric_proposal import propose_rubric
    from .run import ValidationResult
else:
    __getattr__ = attribute_loader(
        __name__,
        {
            "Attack": "attacks",
            "LabelledCase": "cases",
            "ValidationResult": "run",
            "propose_rubric": "rubric_proposal",
            "read_cases": "labelled",
            "validate": "api",
            "validate_sync": "api",
        },
    )

__all__ = ["Attack", "LabelledCase", "ValidationResult", "propose_rubric", "read_cases", "validate", "validate_sync"]
