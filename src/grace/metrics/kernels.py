"""Each metric as one function of checked, sorted data and of counts, for many rows at once.

Shapes: N responses, R resamples, T groups of tied confidences, B bins, G grid points.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from grace.errors import UserInputError

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]
MOST_BINS = 1000


class Sorted(NamedTuple):
    """The data by rising confidence; each run of ties begins at one of `starts_T`."""

    confidence_N: Floats
    correct_N: Floats
    starts_T: Indices
    order_N: Indices
    bins: int


def check(
    confidence: ArrayLike, correct: ArrayLike, bins: int = 10, *, bounded: bool = True
) -> tuple[Floats, Floats]:
    """Return both as float64 arrays of shape (N,)."""
    confidence_N = np.asarray(confidence, dtype=np.float64)
    correct_N = np.asarray(correct, dtype=np.float64)
    if confidence_N.ndim != 1 or confidence_N.shape != correct_N.shape:
        raise UserInputError(
            f"confidence has shape {confidence_N.shape} and correct {correct_N.shape}; "
            "give two lists of the same length"
        )
    if not len(confidence_N):
        raise UserInputError("there are 0 responses to evaluate; give at least one")
    inside_N = (confidence_N >= 0) & (confidence_N <= 1)
    bad = ~(inside_N if bounded else np.isfinite(confidence_N))
    if bad.any():
        at = int(np.argmax(bad))
        wanted = "a probability in [0, 1]" if bounded else "a finite number"
        raise UserInputError(
            f"confidence[{at}] is {confidence_N[at]}, expected {wanted}; "
            "leave out responses without a confidence"
        )
    wrong = (correct_N != 0) & (correct_N != 1)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise UserInputError(f"correct[{at}] is {correct_N[at]}, expected true or false")
    if not 1 <= bins <= MOST_BINS:
        raise UserInputError(f"bins is {bins}, expected 1 to {MOST_BINS}")
    return confidence_N, correct_N


def sort_by_confidence(confidence_N: Floats, correct_N: Floats, bins: int = 10) -> Sorted:
    """Sort by rising confidence and find the runs of ties."""
    order_N = np.lexsort((correct_N, confidence_N))
    confidence_N = confidence_N[order_N]
    starts_T = np.flatnonzero(np.diff(confidence_N, prepend=-1.0))
    return Sorted(confidence_N, correct_N[order_N], starts_T, order_N, bins)


def bin_index(confidence_N: Floats, bins: int) -> Indices:
    """Return the equal-width bin of each confidence: [k/bins, (k+1)/bins), the last one closed."""
    edges = np.arange(1, bins) / bins
    return np.searchsorted(edges, confidence_N, side="right")


def scatter(index_RN: Indices, value_RN: Floats, size: int) -> Floats:
    """Add up each row's values by index: (R, N) to (R, size)."""
    flat = (np.arange(len(index_RN))[:, None] * size + index_RN).ravel()
    total = np.bincount(flat, weights=value_RN.ravel(), minlength=len(index_RN) * size)
    return total.astype(np.float64).reshape(len(index_RN), size)


def check_questions(questions: Sequence[Any], n: int) -> None:
    """Raise UserInputError unless there is one question id for each of n responses."""
    if len(questions) != n:
        raise UserInputError(f"{len(questions)} question ids for {n} responses; give one each")


GRID = 1024
"""Cells of the grid on which smooth ECE convolves; its narrowest kernel is one cell wide."""


class Counted:
    """Sorted data with how often each response counts, one row per resample."""

    def __init__(self, data: Sorted, counts_RN: Floats) -> None:
        self.data, self.counts_RN = data, counts_RN
        self.total_R: Floats = counts_RN.sum(axis=1)

    @cached_property
    def n_RT(self) -> Floats:
        """Responses in each run of ties."""
        return self._by_tie(self.counts_RN)

    @cached_property
    def right_RT(self) -> Floats:
        """Right responses in each run of ties."""
        return self._by_tie(self.counts_RN * self.data.correct_N)

    def _by_tie(self, value_RN: Floats) -> Floats:
        if len(self.data.starts_T) == value_RN.shape[1]:
            return value_RN
        return np.add.reduceat(value_RN, self.data.starts_T, axis=1)

    def mean(self, value_N: Floats) -> Floats:
        """Return the mean over responses of a value, one per resample: (N,) to (R,)."""
        return self.counts_RN @ value_N / self.total_R


def _accuracy(at: Counted) -> Floats:
    return at.mean(at.data.correct_N)


def _brier(at: Counted) -> Floats:
    return at.mean((at.data.confidence_N - at.data.correct_N) ** 2)


def _ece_gaps(at: Counted) -> Floats:
    data = at.data
    gap_NB = np.zeros((len(data.confidence_N), data.bins))
    bin_N = bin_index(data.confidence_N, data.bins)
    gap_NB[np.arange(len(bin_N)), bin_N] = data.correct_N - data.confidence_N
    gap_RB: Floats = at.counts_RN @ gap_NB / at.total_R[:, None]
    return gap_RB


def _adaptive_ece_gaps(at: Counted) -> Floats:
    """Over bins of nearly equal numbers of responses; ties go to the bin of their middle rank."""
    bins = at.data.bins
    gap_RT = at.right_RT - at.n_RT * at.data.confidence_N[at.data.starts_T]
    twice_middle_RT = 2 * np.cumsum(at.n_RT, axis=1) - at.n_RT
    bin_RT = (twice_middle_RT * bins / (2 * at.total_R[:, None])).astype(np.intp)
    bin_RT = np.minimum(bin_RT, bins - 1)
    return scatter(bin_RT, gap_RT, bins) / at.total_R[:, None]


def _auroc(at: Counted) -> Floats:
    wrong_RT = at.n_RT - at.right_RT
    below_RT = np.cumsum(wrong_RT, axis=1) - wrong_RT / 2
    wins_R = np.einsum("rt,rt->r", at.right_RT, below_RT)
    pairs_R = at.right_RT.sum(axis=1) * wrong_RT.sum(axis=1)
    auroc_R: Floats = np.full_like(wins_R, np.nan)
    np.divide(wins_R, pairs_R, out=auroc_R, where=pairs_R > 0)
    return auroc_R


def _aurc(at: Counted) -> Floats:
    """Area under the risk-coverage curve: mean error rate of the k surest, over k = 1..n.

    Ties count as the mean over all their orders. Source: Geifman et al. 2019, arXiv 1805.08206.
    """
    n_RT = at.n_RT[:, ::-1]
    wrong_RT = n_RT - at.right_RT[:, ::-1]
    seen_RT = np.cumsum(n_RT, axis=1)
    wrong_before_RT = np.cumsum(wrong_RT, axis=1) - wrong_RT
    # Within ties the j-th response adds (errors before + j * rate) / (rank before + j).
    rate_RT = wrong_RT / np.maximum(n_RT, 1)
    harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, at.total_R.max() + 1))])
    span_RT = np.diff(harmonic[seen_RT.astype(np.intp)], axis=1, prepend=0.0)
    before_RT = np.subtract(seen_RT, n_RT, out=seen_RT)
    area_RT = wrong_RT + (wrong_before_RT - rate_RT * before_RT) * span_RT
    aurc_R: Floats = area_RT.sum(axis=1) / at.total_R
    return aurc_R


def _smooth_ece_gaps(at: Counted) -> Floats:
    """ECE without bins, at the kernel width that equals the error itself, from one cell on.

    It is the integral over [0, 1] of |mean of K(t, c)(y - c)|, K the Gaussian reflected at 0 and 1.
    Source: Blasiok and Nakkiran 2024, arXiv 2309.12236, definition of smECE_*.
    """
    data = at.data
    gap_RN = at.counts_RN * (data.correct_N - data.confidence_N) / at.total_R[:, None]
    cell_N = np.minimum((data.confidence_N * GRID).astype(np.intp), GRID - 1)
    share_N = data.confidence_N * GRID - cell_N
    cell_RN = np.broadcast_to(cell_N, gap_RN.shape)
    gap_RG = scatter(cell_RN, gap_RN * (1 - share_N), GRID + 1)
    gap_RG += scatter(cell_RN + 1, gap_RN * share_N, GRID + 1)
    # The reflected Gaussian is diagonal in the cosine basis: exp(-(k pi s)^2 / 2).
    cosine_RG = np.fft.rfft(gap_RG, n=2 * GRID, axis=1).real
    low_R, high_R = np.full(len(gap_RG), 1 / GRID), np.ones(len(gap_RG))
    for _ in range(16):
        width_R = (low_R + high_R) / 2
        too_narrow_R = np.abs(_smoothed(cosine_RG, width_R)).sum(axis=1) > width_R
        low_R = np.where(too_narrow_R, width_R, low_R)
        high_R = np.where(too_narrow_R, high_R, width_R)
    return _smoothed(cosine_RG, high_R)


def _smoothed(cosine_RG: Floats, width_R: Floats) -> Floats:
    damping_RG = np.exp(-0.5 * (np.pi * width_R[:, None] * np.arange(GRID + 1)) ** 2)
    curve_RG: Floats = np.fft.irfft(cosine_RG * damping_RG, n=2 * GRID, axis=1)[:, : GRID + 1]
    curve_RG[:, 1:-1] *= 2  # the trapezoidal rule: half the weight at both ends
    return curve_RG


GAPS: dict[str, Callable[[Counted], Floats]] = {
    "ece": _ece_gaps,
    "adaptive_ece": _adaptive_ece_gaps,
    "smooth_ece": _smooth_ece_gaps,
}
"""The signed gaps of which a calibration error is the sum of sizes: (R, K)."""


def _error(name: str) -> Callable[[Counted], Floats]:
    return lambda at: np.abs(GAPS[name](at)).sum(axis=1)


METRICS: dict[str, Callable[[Counted], Floats]] = {
    "accuracy": _accuracy,
    "ece": _error("ece"),
    "brier": _brier,
    "auroc": _auroc,
    "adaptive_ece": _error("adaptive_ece"),
    "smooth_ece": _error("smooth_ece"),
    "aurc": _aurc,
}
"""The metrics of `evaluate`, `bootstrap` and `Resamples`, by name."""


def metric_names(metrics: str | Sequence[str] | None) -> list[str]:
    """Return one name or several as a list, all of `METRICS` for None."""
    names = [metrics] if isinstance(metrics, str) else list(METRICS if metrics is None else metrics)
    for name in names:
        if name not in METRICS:
            raise UserInputError(f"unknown metric {name!r}; choose from {', '.join(METRICS)}")
    return names
