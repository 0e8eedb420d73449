"""Every figure that validations, comparisons and their pages show: pure functions over plain
sequences, each with its formula and source.

- `agreement`: two sides that judge the same rows, such as a grader and people: rates, kappa, alpha,
  correlations, calibration errors, the noise of repeats.
- `intervals`: one sample: the interval of a share, of a mean of clusters, of any statistic
  (bootstrap), and of a mean that is looked at after every row.
- `paired`: two samples of the same rows: the difference B - A, win rates, slices, how many rows
  would decide, and whether a judge has changed.
- `prediction`: few labels and many scores: what people would say of all answers.
- `strengths`: several competitors, from comparisons of two at a time.
- `samples`: the arguments of all of these.

A result is None if it is undefined: for too few data, or for input without variation where the
measure divides by it. It is never NaN, and warnings of libraries are suppressed. A cluster is what
several rows have in common, such as a task or a document: its rows do not count as independent. An
interval is the pair of its ends, in the unit of its value. Nothing here knows cases, verdicts, runs
or graders. Needs `redraft[validate]`. Importing this package loads nothing: each name is loaded
when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...base.lazy_imports import attribute_loader

if TYPE_CHECKING:
    from .agreement import (
        IsotonicBlock,
        LabelScores,
        brier_score,
        cohen_kappa,
        concordance_values,
        expected_calibration_error,
        fleiss_kappa,
        isotonic_blocks,
        kendall,
        krippendorff_alpha,
        mean_ranks,
        noise_sigma,
        partial_rank_correlation,
        pearson,
        precision_recall_f1,
        reliability_bins,
        spearman,
    )
    from .intervals import (
        ClusteredMean,
        ConfidenceSequence,
        Interval,
        ThreeWayVerdict,
        bootstrap_interval,
        clip_interval,
        clustered_mean,
        confidence_sequence,
        interval_verdict,
        score_interval,
        share_interval,
        t_quantile,
        wilson_interval,
    )
    from .paired import (
        EffectiveVotes,
        JudgeDrift,
        PairedDifference,
        WinRate,
        effective_votes,
        judge_drift,
        paired_difference,
        rows_to_decide,
        slice_differences,
        win_rate,
    )
    from .prediction import (
        LabelEstimate,
        labels_needed,
        ppi_difference,
        ppi_mean,
        rogan_gladen,
        rogan_gladen_difference,
    )
    from .samples import (
        check_dependencies,
        check_equal_lengths,
        finite_numbers,
        group_values,
        import_library,
    )
    from .strengths import Strength, bradley_terry
else:
    __getattr__ = attribute_loader(
        __name__,
        {
            "ClusteredMean": "intervals",
            "ConfidenceSequence": "intervals",
            "EffectiveVotes": "paired",
            "Interval": "intervals",
            "IsotonicBlock": "agreement",
            "JudgeDrift": "paired",
            "LabelEstimate": "prediction",
            "LabelScores": "agreement",
            "PairedDifference": "paired",
            "Strength": "strengths",
            "ThreeWayVerdict": "intervals",
            "WinRate": "paired",
            "bootstrap_interval": "intervals",
            "bradley_terry": "strengths",
            "brier_score": "agreement",
            "check_dependencies": "samples",
            "check_equal_lengths": "samples",
            "clip_interval": "intervals",
            "clustered_mean": "intervals",
            "cohen_kappa": "agreement",
            "concordance_values": "agreement",
            "confidence_sequence": "intervals",
            "effective_votes": "paired",
            "expected_calibration_error": "agreement",
            "finite_numbers": "samples",
            "fleiss_kappa": "agreement",
            "group_values": "samples",
            "import_library": "samples",
            "interval_verdict": "intervals",
            "isotonic_blocks": "agreement",
            "judge_drift": "paired",
            "kendall": "agreement",
            "krippendorff_alpha": "agreement",
            "labels_needed": "prediction",
            "mean_ranks": "agreement",
            "noise_sigma": "agreement",
            "paired_difference": "paired",
            "partial_rank_correlation": "agreement",
            "pearson": "agreement",
            "ppi_difference": "prediction",
            "ppi_mean": "prediction",
            "precision_recall_f1": "agreement",
            "reliability_bins": "agreement",
            "rogan_gladen": "prediction",
            "rogan_gladen_difference": "prediction",
            "rows_to_decide": "paired",
            "score_interval": "intervals",
            "share_interval": "intervals",
            "slice_differences": "paired",
            "spearman": "agreement",
            "t_quantile": "intervals",
            "wilson_interval": "intervals",
            "win_rate": "paired",
        },
    )

__all__ = [
    "ClusteredMean",
    "ConfidenceSequence",
    "EffectiveVotes",
    "Interval",
    "IsotonicBlock",
    "JudgeDrift",
    "LabelEstimate",
    "LabelScores",
    "PairedDifference",
    "Strength",
    "ThreeWayVerdict",
    "WinRate",
    "bootstrap_interval",
    "bradley_terry",
    "brier_score",
    "check_dependencies",
    "check_equal_lengths",
    "clip_interval",
    "clustered_mean",
    "cohen_kappa",
    "concordance_values",
    "confidence_sequence",
    "effective_votes",
    "expected_calibration_error",
    "finite_numbers",
    "fleiss_kappa",
    "group_values",
    "import_library",
    "interval_verdict",
    "isotonic_blocks",
    "judge_drift",
    "kendall",
    "krippendorff_alpha",
    "labels_needed",
    "mean_ranks",
    "noise_sigma",
    "paired_difference",
    "partial_rank_correlation",
    "pearson",
    "ppi_difference",
    "ppi_mean",
    "precision_recall_f1",
    "reliability_bins",
    "rogan_gladen",
    "rogan_gladen_difference",
    "rows_to_decide",
    "score_interval",
    "share_interval",
    "slice_differences",
    "spearman",
    "t_quantile",
    "wilson_interval",
    "win_rate",
]
