"""Every figure that validations, comparisons and their pages show: pure functions over plain
sequences, each with its formula and source.

- `agreement`: two sides that judge the same rows, such as a grader and people: rates, kappa, alpha,
  correlations, calibration errors, the noise of repeats.
- `intervals`: one sample: the interval of a share, of a mean of clusters, of any statistic
  (bootstrap), and of a mean that is looked at after every row.
- `paired`: two samples of the same rows: the difference B - A, win rates, slices, how many rows
  would decide, and whether a judge has changed.
- `prediction`: few labels and many scores: what people would say of all answers.
- `samples`: the arguments of all of these.

A result is None if it is undefined: for too few data, or for input without variation where the
measure divides by it. It is never NaN, and warnings of libraries are suppressed. A cluster is what
several rows have in common, such as a task or a document: its rows do not count as independent. An
interval is the pair of its ends, in the unit of its value. Nothing here knows cases, verdicts, runs
or graders. Needs `redraft[validate]`.
"""

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
    clustered_mean,
    confidence_sequence,
    interval_verdict,
    limited,
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
    grouped,
    import_library,
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
    "ThreeWayVerdict",
    "WinRate",
    "bootstrap_interval",
    "brier_score",
    "check_dependencies",
    "check_equal_lengths",
    "clustered_mean",
    "cohen_kappa",
    "concordance_values",
    "confidence_sequence",
    "effective_votes",
    "expected_calibration_error",
    "finite_numbers",
    "fleiss_kappa",
    "grouped",
    "import_library",
    "interval_verdict",
    "isotonic_blocks",
    "judge_drift",
    "kendall",
    "krippendorff_alpha",
    "labels_needed",
    "limited",
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
