"""Exact binomial tests and bounds."""

from __future__ import annotations

import bisect
import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]
SHARES = 2**53  # a bound is a multiple of 1 / SHARES


def lower_bound(right: int, n: int, delta: float) -> float:
    """Return the one-sided Clopper-Pearson lower bound of the share right / n.

    It is the share at which as many right ones, or more, have probability delta.
    """

    def tail(share: int) -> float:
        return float(_tails(n, share / SHARES)[right])

    return bisect.bisect_left(range(SHARES), delta, key=tail) / SHARES if right else 0.0


def p_value(right: ArrayLike, n: ArrayLike, target: float) -> Floats:
    """Return P(Binomial(n, target) >= right)."""
    right, n = np.broadcast_arrays(right, n)
    tail = np.empty(n.shape)
    for count in np.unique(n):
        here = n == count
        tail[here] = _tails(int(count), target)[right[here]]
    return tail


def least_points(target: float, delta: float) -> int:
    """Return how many answers a guarantee needs at least, if all of them are right."""
    return math.ceil(math.log(delta) / math.log(target) - 1e-9)


def _tails(n: int, share: float) -> Floats:
    """Return P(Binomial(n, share) >= k) for k = 0 to n: (n + 1,).

    The probability of each k is the product of ratios of neighbours from the likeliest k on, which
    keeps the error of their logarithms small.
    """
    k = np.arange(1, n + 1)
    log_ratio = np.log((n + 1 - k) / k) + (math.log(share) - math.log1p(-share))
    mode = min(int((n + 1) * share), n)
    below, above = -log_ratio[:mode][::-1].cumsum()[::-1], log_ratio[mode:].cumsum()
    mass = np.exp(np.concatenate([below, [0.0], above]))
    tails: Floats = mass[::-1].cumsum()[::-1] / mass.sum()
    return tails
