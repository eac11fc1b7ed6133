"""Exact binomial bounds and tests, for many pairs of counts at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]
MOST_TERMS = 10**5  # of a continued fraction; about the root of the larger count are enough


def lower_bound(right: ArrayLike, n: ArrayLike, delta: float) -> Floats:
    """Return the one-sided Clopper-Pearson lower bound of the share right / n."""

    def bound(right: Indices, n: Indices) -> Floats:
        share_N = _share_of(np.maximum(right, 1), n - np.minimum(right, n) + 1, delta)
        return np.where(right > 0, share_N, 0.0)

    return _by_pair(bound, right, n)


def p_value(right: ArrayLike, n: ArrayLike, target: float) -> Floats:
    """Return P(Binomial(n, target) >= right), 1 where right is 0."""

    def tail(right: Indices, n: Indices) -> Floats:
        a_N, b_N = np.maximum(right, 1), n - right + 1
        tail_N = np.exp(_log_incomplete_beta(a_N, b_N, np.full(len(a_N), target)))
        return np.where(right > 0, tail_N, 1.0)

    return _by_pair(tail, right, n)


def least_points(target: float, delta: float) -> int:
    """Return how many answers a guarantee needs at least, if all of them are right."""
    return math.ceil(math.log(delta) / math.log(target) - 1e-9)


def _by_pair(
    function: Callable[[Indices, Indices], Floats], right: ArrayLike, n: ArrayLike
) -> Floats:
    """Apply a function of two counts once per distinct pair, of which many draws have few."""
    right, n = np.broadcast_arrays(right, n)
    width = int(n.max(initial=0)) + 1
    code, place = np.unique(right.astype(np.intp) * width + n, return_inverse=True)
    return function(code // width, code % width)[place].reshape(right.shape)


def _share_of(a_N: Indices, b_N: Indices, delta: float) -> Floats:
    """Return the x at which the regularised incomplete beta function I_x(a, b) is delta.

    Newton's method on logarithms starts where it would be if the log-odds of x were normal. As
    log I is concave in log x for b at least 1, x approaches the root from below from the second
    step on, whatever the start.
    """
    away = NormalDist().inv_cdf(delta)
    x_N = 1 / (1 + b_N / a_N * np.exp(-away * np.sqrt(1 / a_N + 1 / b_N)))
    for _ in range(100):
        log_tail_N = _log_incomplete_beta(a_N, b_N, x_N)
        log_slope_N = _log_power(a_N, b_N, x_N) - np.log1p(-x_N) - log_tail_N
        step_N = (log_tail_N - math.log(delta)) * np.exp(-log_slope_N)
        x_N = np.clip(x_N * np.exp(-step_N), np.finfo(float).tiny, np.nextafter(1.0, 0.0))
        if np.all(np.abs(step_N) < 1e-9):  # the next step is its square
            break
    return x_N


def _log_incomplete_beta(a_N: Indices, b_N: Indices, x_N: Floats) -> Floats:
    """Return the logarithm of the regularised incomplete beta function I_x(a, b), 0 < x < 1.

    I is x^a (1 - x)^b / (a B(a, b)) times a continued fraction (DLMF 8.17.22), which converges fast
    where x is below the mean; elsewhere I_x(a, b) = 1 - I_{1-x}(b, a).
    """
    far_N = x_N * (a_N + b_N + 2) > a_N + 1
    near_N = np.where(far_N, 1 - x_N, x_N)
    low_N, high_N = np.where(far_N, b_N, a_N), np.where(far_N, a_N, b_N)
    log_N = _log_power(a_N, b_N, x_N) - np.log(low_N * _fraction(low_N, high_N, near_N))
    log_other_N = np.log1p(-np.minimum(np.exp(log_N), 1.0), where=far_N, out=np.zeros(len(log_N)))
    return np.where(far_N, log_other_N, log_N)


def _log_power(a_N: Indices, b_N: Indices, x_N: Floats) -> Floats:
    """Return log(x^a (1 - x)^b / B(a, b))."""
    gamma_N = (_log_gamma(a_N + b_N) - _log_gamma(a_N)) - _log_gamma(b_N)
    return gamma_N + a_N * np.log(x_N) + b_N * np.log1p(-x_N)


def _log_gamma(count_N: Indices) -> Floats:
    counts, place_N = np.unique(count_N, return_inverse=True)
    return np.array([math.lgamma(count) for count in counts.tolist()])[place_N]


def _fraction(a_N: Indices, b_N: Indices, x_N: Floats) -> Floats:
    """Return the denominator of the continued fraction 1 / (1 + d1 / (1 + d2 / (1 + ...))).

    Lentz's method; the denominators of all terms are positive where x is below the mean.
    """
    value_N = c_N = np.ones(len(x_N))
    d_N = np.zeros(len(x_N))
    for m in range(MOST_TERMS):
        odd_N = -(a_N + m) * (a_N + b_N + m) * x_N / ((a_N + 2 * m) * (a_N + 2 * m + 1))
        k = m + 1
        even_N = k * (b_N - k) * x_N / ((a_N + 2 * k - 1) * (a_N + 2 * k))
        for term_N in (odd_N, even_N):
            d_N, c_N = 1 / (1 + term_N * d_N), 1 + term_N / c_N
            value_N = value_N * c_N * d_N
        if np.all(np.abs(c_N * d_N - 1) < 1e-15):
            break
    return value_N
