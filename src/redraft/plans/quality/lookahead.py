"""What a posterior expects of texts that do not exist yet (formulas: README.md, "A text that no
judge sees").
"""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

from .posterior import Posterior
from .tree import GAIN_INDEX, dot


class ExpectedQuality(NamedTuple):
    """The expected quality of a text, in points of the score and not limited to [0, 1], and its
    standard deviation.
    """

    mean: float
    sd: float


def expected_text(posterior: Posterior, role: str, parent: int | None) -> ExpectedQuality:
    """Return the expected quality of one more text: a draft, or one made from `parent`."""
    text = posterior.tree.predict_candidate(
        role, None if parent is None else posterior.node_indices[parent]
    )
    variance = text.text.quality_variance - dot(text.quality_cov, text.quality_cov)
    return ExpectedQuality(posterior.mean_of(text.text), sqrt(max(0.0, variance)))


def task_gain_sd(posterior: Posterior) -> float:
    """Return the standard deviation of the task's gain, given the scores."""
    tree = posterior.tree
    return sqrt(
        max(0.0, tree.qualities.cov(GAIN_INDEX, GAIN_INDEX) - tree.whitened_cov(GAIN_INDEX)[1])
    )
