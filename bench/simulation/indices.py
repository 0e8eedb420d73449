"""The index of BEACON: what one more draw may cost, for normal rewards with unknown mean and
variance and a flat prior.

Baucells & Zorc 2024, "Search in the dark". `stopping` uses it, and loads it late: numpy and scipy
take a while.
"""

from __future__ import annotations

from functools import lru_cache
from math import exp, lgamma, log, pi

import numpy as np
from scipy.special import gammaincinv, stdtr, stdtrit


def index_at(k, zeta, first, most):
    """Return the index after k draws, from `first` to `most` - 1, if the best is `zeta` scales
    above the mean of the next.
    """
    zetas, indices = indices_by_draw(first, most)
    return float(np.interp(zeta, zetas, indices[k]))


def density(x, df):
    """Return the density of Student's t."""
    constant = exp(lgamma((df + 1) / 2) - lgamma(df / 2) - log(df * pi) / 2)
    return constant * (1 + x**2 / df) ** (-(df + 1) / 2)


def chi_squared_quantile(level, df):
    """Return a quantile of the chi-squared distribution."""
    return 2 * gammaincinv(df / 2, level)


def one_step_index(k, zeta):
    """Return the expected improvement by one more draw after k, in scales: E[max(0, u - zeta)], u
    Student t with k - 1 degrees.
    """
    df = k - 1
    return (df + zeta**2) / (df - 1) * density(zeta, df) - zeta * stdtr(df, -zeta)


@lru_cache(maxsize=4)
def indices_by_draw(first, most):
    """Compute the index at a grid of standings for each number of draws, backwards from the last
    draw.

    With V_k(zeta, c) the expected improvement by drawing on once and optimally thereafter, net of
    later costs: V_k = one_step_index + E_u[max(0, r V_{k+1}(zeta', c / r) - c)], and the index is
    the c at which V_k = c. A draw u changes the scale by the factor r, and the standing to zeta'.
    """
    zetas = np.concatenate([np.linspace(0, 4, 33), np.linspace(4.5, 16, 24)])
    costs = np.geomspace(1e-4, 4, 48)
    levels = (np.arange(100) + 0.5) / 100
    following, indices = None, {}
    for k in range(most - 1, first - 1, -1):
        values = np.repeat(one_step_index(k, zetas)[:, None], len(costs), axis=1)
        if following is not None:
            u = stdtrit(k - 1, levels)[None, :]
            w = 1 / (k + 1)
            r = np.sqrt((1 - w * w) * (k - 1 + u * u) / k)
            after = (np.maximum(zetas[:, None], u) - u * w) / r
            for j, cost in enumerate(costs):
                later = (
                    r
                    * interpolate(
                        following, zetas, costs, after, np.broadcast_to(cost / r, after.shape)
                    )
                    - cost
                )
                values[:, j] += np.maximum(0.0, later).mean(axis=1)
        indices[k] = [crossing(costs, row) for row in values]
        following = values
    return zetas, indices


def interpolate(values, zetas, costs, zeta, cost):
    """Interpolate a table linearly in the standing and in the logarithm of the cost; beyond its
    ends it is constant.
    """
    at_cost = np.clip(
        np.log(cost / costs[0]) / np.log(costs[1] / costs[0]), 0, len(costs) - 1.000001
    )
    at_zeta = np.clip(np.interp(zeta, zetas, np.arange(len(zetas))), 0, len(zetas) - 1.000001)
    i, j = at_zeta.astype(int), at_cost.astype(int)
    a, b = at_zeta - i, at_cost - j
    low = values[i, j] * (1 - b) + values[i, j + 1] * b
    high = values[i + 1, j] * (1 - b) + values[i + 1, j + 1] * b
    return low * (1 - a) + high * a


def crossing(costs, values):
    """Return the cost at which the value of drawing on equals it."""
    excess = values - costs
    if excess[0] <= 0:
        return float(max(values[0], 0.0))
    j = int(np.argmax(excess <= 0)) or len(costs) - 1
    share = excess[j - 1] / (excess[j - 1] - excess[j])
    return float(costs[j - 1] + share * (costs[j] - costs[j - 1]))
