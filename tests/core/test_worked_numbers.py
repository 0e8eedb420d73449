"""The worked numbers in the docstring of `redraft.quality`."""

from math import sqrt

import pytest

import redraft.quality
from redraft.quality.lineage import Node, Observations, TreeShape
from redraft.quality.posterior import Posterior, expected_improvement
from redraft.quality.priors import Priors


@pytest.mark.parametrize(
    ("noise_weight", "mean", "sd"),
    [(1.0, 0.659, 0.109), (1 / 3, 0.677, sqrt(0.0346 * (1 - 0.0346 / 0.043)))],
)
def test_the_posterior_of_one_draft(noise_weight, mean, sd):
    """A draft scored 0.70 once, and three times."""
    shape = TreeShape((Node("generate", None, noise_weight),), 1.0)
    posterior = Posterior(Observations(shape, (0.70,), {0: 0}), Priors())
    assert posterior.means[0] == pytest.approx(mean, abs=0.0005)
    assert posterior.sds[0] == pytest.approx(sd, abs=0.0005)
    assert f"{mean:.3f}" in redraft.quality.__doc__


def test_the_value_of_a_step():
    """The knowledge gradient of a step that is behind by half a standard deviation."""
    assert expected_improvement(-0.05, 0.10) == pytest.approx(0.0198, abs=0.00005)
