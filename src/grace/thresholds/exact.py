"""Exact binomial bounds and tests.

Shapes: D independent draws of calibration data, G thresholds.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

_RATE_SHARE = 0.1  # of delta, spent on how often two strategies differ when a margin is allowed


def lower_bound(right: ArrayLike, n: ArrayLike, delta: float) -> Floats:
    """Return the one-sided Clopper-Pearson lower bound of a share; 0 without any right one."""
    from scipy.special import betaincinv

    def bound(right: Indices, n: Indices) -> Floats:
        found = betaincinv(np.maximum(right, 1), n - np.minimum(right, n) + 1, delta)
        return np.where(right > 0, found, 0.0)

    return _by_pair(bound, right, n)


def p_value(right_DG: Indices, n_DG: Indices, target: float) -> Floats:
    """Return P(Binomial(n, target) >= right), 1 where right is 0."""
    from scipy.special import betainc

    def tail(right: Indices, n: Indices) -> Floats:
        found = betainc(np.maximum(right, 1), n - right + 1, target)
        return np.where(right > 0, found, 1.0)

    return _by_pair(tail, right_DG, n_DG)


def least_points(target: float, delta: float) -> int:
    """Return how many points are needed to promise a target even if all of them are right."""
    return math.ceil(math.log(delta) / math.log(target) - 1e-9)


def difference_bound(
    better_DG: Indices, worse_DG: Indices, n: int, margin: float, delta: float
) -> Floats:
    """Return a lower bound of the difference in accuracy, 0 where it is shown to be no loss.

    Given that two strategies differ on a question, which of them is right is a coin with an
    unknown bias (McNemar 1947): Clopper-Pearson bounds it below. For a margin the rate of such
    questions is bounded above too, with a tenth of delta.
    """
    differ_DG = better_DG + worse_DG
    spent = _RATE_SHARE if margin else 0.0
    wins_DG = lower_bound(better_DG, differ_DG, delta * (1 - spent))
    rate_DG = 1 - lower_bound(n - differ_DG, n, delta * spent) if margin else 1.0
    loss_DG: Floats = rate_DG * (1 - 2 * wins_DG)
    return np.minimum(-loss_DG, 0.0)


def _by_pair(
    function: Callable[[Indices, Indices], Floats], right: ArrayLike, n: ArrayLike
) -> Floats:
    """Return a function of two counts, computed once per pair: among many draws few differ."""
    right, n = np.broadcast_arrays(right, n)
    width = int(n.max(initial=0)) + 1
    code, place = np.unique(right.astype(np.intp) * width + n, return_inverse=True)
    return function(code // width, code % width)[place].reshape(right.shape)
