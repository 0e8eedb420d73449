"""Validation of graders: their verdicts are compared with labels of people, in a validation card.

`validate` and `validate_sync` do all of it; `propose_rubric` asks a model for a rubric.
`fit_calibration` maps scores to labels of people, and `ppi_mean` and others estimate what people
would say of many answers from few labels. `paired_difference` and others say whether one of two
sets of scores is better, `bradley_terry` how strong several competitors are, `compare_graders`
which of two graders is better. Importing this package loads nothing: each name is loaded when it is
first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.lazy_imports import attribute_loader

if TYPE_CHECKING:
    from .api import validate, validate_sync
    from .attacks import Attack
    from .calibration import Calibration, LabelPrediction, fit_calibration
    from .cases import LabelledCase
    from .grader_comparison import (
        GraderComparison,
        compare_graders,
        compare_graders_sync,
    )
    from .label_file import (
        Label,
        LabelFile,
        LabelItem,
        LabelQuestion,
        LabelSet,
        read_labels,
    )
    from .labelled import read_cases
    from .rubric_proposal import propose_rubric
    from .run import ValidationResult
    from .statistics import (
        ConfidenceSequence,
        EffectiveVotes,
        JudgeDrift,
        LabelEstimate,
        PairedDifference,
        Strength,
        WinRate,
        bradley_terry,
        confidence_sequence,
        effective_votes,
        judge_drift,
        labels_needed,
        paired_difference,
        ppi_difference,
        ppi_mean,
        rogan_gladen,
        rogan_gladen_difference,
        rows_to_decide,
        slice_differences,
        win_rate,
    )
else:
    __getattr__ = attribute_loader(
        __name__,
        {
            "Attack": "attacks",
            "Calibration": "calibration",
            "ConfidenceSequence": "statistics",
            "EffectiveVotes": "statistics",
            "GraderComparison": "grader_comparison",
            "JudgeDrift": "statistics",
            "Label": "label_file",
            "LabelEstimate": "statistics",
            "LabelPrediction": "calibration",
            "LabelFile": "label_file",
            "LabelItem": "label_file",
            "LabelQuestion": "label_file",
            "LabelSet": "label_file",
            "LabelledCase": "cases",
            "PairedDifference": "statistics",
            "Strength": "statistics",
            "ValidationResult": "run",
            "WinRate": "statistics",
            "bradley_terry": "statistics",
            "compare_graders": "grader_comparison",
            "compare_graders_sync": "grader_comparison",
            "confidence_sequence": "statistics",
            "effective_votes": "statistics",
            "fit_calibration": "calibration",
            "judge_drift": "statistics",
            "labels_needed": "statistics",
            "paired_difference": "statistics",
            "ppi_difference": "statistics",
            "ppi_mean": "statistics",
            "propose_rubric": "rubric_proposal",
            "read_cases": "labelled",
            "read_labels": "label_file",
            "rogan_gladen": "statistics",
            "rogan_gladen_difference": "statistics",
            "rows_to_decide": "statistics",
            "slice_differences": "statistics",
            "validate": "api",
            "validate_sync": "api",
            "win_rate": "statistics",
        },
    )

__all__ = [
    "Attack",
    "Calibration",
    "ConfidenceSequence",
    "EffectiveVotes",
    "GraderComparison",
    "JudgeDrift",
    "Label",
    "LabelEstimate",
    "LabelFile",
    "LabelItem",
    "LabelPrediction",
    "LabelQuestion",
    "LabelSet",
    "LabelledCase",
    "PairedDifference",
    "Strength",
    "ValidationResult",
    "WinRate",
    "bradley_terry",
    "compare_graders",
    "compare_graders_sync",
    "confidence_sequence",
    "effective_votes",
    "fit_calibration",
    "judge_drift",
    "labels_needed",
    "paired_difference",
    "ppi_difference",
    "ppi_mean",
    "propose_rubric",
    "read_cases",
    "read_labels",
    "rogan_gladen",
    "rogan_gladen_difference",
    "rows_to_decide",
    "slice_differences",
    "validate",
    "validate_sync",
    "win_rate",
]
