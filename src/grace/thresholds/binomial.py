"""Exact binomial bounds and tests, for many pairs of counts at once."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]


def lower_bound(right: ArrayLike, n: ArrayLike, delta: float) -> Floats:
    """Return the one-sided Clopper-Pearson lower bound of a share; 0 without any right one."""
    from scipy.special import betaincinv

    def bound(right: Indices, n: Indices) -> Floats:
        found = betaincinv(np.maximum(right, 1), n - np.minimum(right, n) + 1, delta)
        return np.where(right > 0, found, 0.0)

    return _by_pair(bound, right, n)


def p_value(right: ArrayLike, n: ArrayLike, target: float) -> Floats:
    """Return P(Binomial(n, target) >= right), 1 where right is 0."""
    from scipy.special import betainc

    def tail(right: Indices, n: Indices) -> Floats:
        found = betainc(np.maximum(right, 1), n - right + 1, target)
        return np.where(right > 0, found, 1.0)

    return _by_pair(tail, right, n)


def least_points(target: float, delta: float) -> int:
    """Return how many points are needed to guarantee a target even if all of them are right."""
    return math.ceil(math.log(delta) / math.log(target) - 1e-9)


def _by_pair(
    function: Callable[[Indices, Indices], Floats], right: ArrayLike, n: ArrayLike
) -> Floats:
    """Return a function of two counts, computed once per pair: among many draws few differ."""
    right, n = np.broadcast_arrays(right, n)
    width = int(n.max(initial=0)) + 1
    code, place = np.unique(right.astype(np.intp) * width + n, return_inverse=True)
    return function(code // width, code % width)[place].reshape(right.shape)
