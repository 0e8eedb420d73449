"""Validation of graders: their verdicts compared with the labels of people, the measures, and the validation card.

`validate` and `validate_sync` do all of it; `propose_rubric` asks a model for a rubric. `fit_calibration` maps scores to labels of
people, and `ppi_mean` and others estimate what people would say of many answers from few labels. Importing this package loads
nothing: each name is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy_imports import attribute_loader

if TYPE_CHECKING:
    from .api import validate, validate_sync
    from .attacks import Attack
    from .calibration import Calibration, LabelPrediction, fit_calibration
    from .cases import LabelledCase
    from .estimators import LabelEstimate, labels_needed, ppi_difference, ppi_mean, rogan_gladen
    from .labelled import read_cases
    from .rubric_proposal import propose_rubric
    from .run import ValidationResult
else:
    __getattr__ = attribute_loader(
        __name__,
        {
            "Attack": "attacks",
            "Calibration": "calibration",
            "LabelPrediction": "calibration",
            "LabelEstimate": "estimators",
            "LabelledCase": "cases",
            "ValidationResult": "run",
            "fit_calibration": "calibration",
            "labels_needed": "estimators",
            "ppi_difference": "estimators",
            "ppi_mean": "estimators",
            "propose_rubric": "rubric_proposal",
            "read_cases": "labelled",
            "rogan_gladen": "estimators",
            "validate": "api",
            "validate_sync": "api",
        },
    )

__all__ = [
    "Attack",
    "Calibration",
    "LabelEstimate",
    "LabelPrediction",
    "LabelledCase",
    "ValidationResult",
    "fit_calibration",
    "labels_needed",
    "ppi_difference",
    "ppi_mean",
    "propose_rubric",
    "read_cases",
    "rogan_gladen",
    "validate",
    "validate_sync",
]


def __dir__() -> list[str]:
    return __all__
