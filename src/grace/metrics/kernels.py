"""Each metric as one function of sorted data and of counts, for many rows of counts at once.

Shapes: N responses, R resamples, T groups of tied confidences, B bins, G grid points.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from grace.errors import UserInputError
from grace.metrics.samples import Floats, Sorted, bin_index, scatter

GRID = 1024
"""Cells of the grid on which smooth ECE convolves; its narrowest kernel is one cell wide."""


def _mean(sum_R: Floats, counts_RN: Floats) -> Floats:
    mean_R: Floats = sum_R / counts_RN.sum(axis=1)
    return mean_R


def _accuracy(data: Sorted, counts_RN: Floats) -> Floats:
    return _mean(counts_RN @ data.correct_N, counts_RN)


def _brier(data: Sorted, counts_RN: Floats) -> Floats:
    return _mean(counts_RN @ (data.confidence_N - data.correct_N) ** 2, counts_RN)


def _ece(data: Sorted, counts_RN: Floats) -> Floats:
    gap_NB = np.zeros((len(data.confidence_N), data.bins))
    bin_N = bin_index(data.confidence_N, data.bins)
    gap_NB[np.arange(len(bin_N)), bin_N] = data.correct_N - data.confidence_N
    return _mean(np.abs(counts_RN @ gap_NB).sum(axis=1), counts_RN)


def _adaptive_ece(data: Sorted, counts_RN: Floats) -> Floats:
    n_RT = np.add.reduceat(counts_RN, data.starts_T, axis=1)
    gap_N = data.correct_N - data.confidence_N
    gap_RT = np.add.reduceat(counts_RN * gap_N, data.starts_T, axis=1)
    twice_middle_RT = 2 * np.cumsum(n_RT, axis=1) - n_RT
    bin_RT = twice_middle_RT * data.bins // (2 * counts_RN.sum(axis=1, keepdims=True))
    bin_RT = np.minimum(bin_RT, data.bins - 1).astype(np.intp)
    gap_RB = scatter(bin_RT, gap_RT, data.bins)
    return _mean(np.abs(gap_RB).sum(axis=1), counts_RN)


def _auroc(data: Sorted, counts_RN: Floats) -> Floats:
    right_RT = np.add.reduceat(counts_RN * data.correct_N, data.starts_T, axis=1)
    wrong_RT = np.add.reduceat(counts_RN, data.starts_T, axis=1) - right_RT
    below_RT = np.cumsum(wrong_RT, axis=1) - wrong_RT / 2
    wins_R = (right_RT * below_RT).sum(axis=1)
    pairs_R = right_RT.sum(axis=1) * wrong_RT.sum(axis=1)
    auroc_R: Floats = np.full_like(wins_R, np.nan)
    np.divide(wins_R, pairs_R, out=auroc_R, where=pairs_R > 0)
    return auroc_R


def _aurc(data: Sorted, counts_RN: Floats) -> Floats:
    wrong_N = 1 - data.correct_N
    n_RT = np.add.reduceat(counts_RN, data.starts_T, axis=1)[:, ::-1]
    wrong_RT = np.add.reduceat(counts_RN * wrong_N, data.starts_T, axis=1)[:, ::-1]
    seen_RT = np.cumsum(n_RT, axis=1)
    before_RT = seen_RT - n_RT
    wrong_before_RT = np.cumsum(wrong_RT, axis=1) - wrong_RT
    # Within ties the j-th response adds (errors before + j * rate) / (rank before + j).
    rate_RT = np.divide(wrong_RT, n_RT, out=np.zeros_like(n_RT), where=n_RT > 0)
    harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, seen_RT[:, -1].max() + 1))])
    span_RT = harmonic[seen_RT.astype(np.intp)] - harmonic[before_RT.astype(np.intp)]
    area_RT = wrong_RT + (wrong_before_RT - rate_RT * before_RT) * span_RT
    return _mean(area_RT.sum(axis=1), counts_RN)


def _smooth_ece(data: Sorted, counts_RN: Floats) -> Floats:
    gap_RN = counts_RN * (data.correct_N - data.confidence_N)
    gap_RN = gap_RN / counts_RN.sum(axis=1, keepdims=True)
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
        too_narrow_R = _smoothed(cosine_RG, width_R) > width_R
        low_R = np.where(too_narrow_R, width_R, low_R)
        high_R = np.where(too_narrow_R, high_R, width_R)
    return _smoothed(cosine_RG, high_R)


def _smoothed(cosine_RG: Floats, width_R: Floats) -> Floats:
    damping_RG = np.exp(-0.5 * (np.pi * width_R[:, None] * np.arange(GRID + 1)) ** 2)
    curve_RG = 2 * np.abs(np.fft.irfft(cosine_RG * damping_RG, n=2 * GRID, axis=1)[:, : GRID + 1])
    area_R: Floats = curve_RG.sum(axis=1) - (curve_RG[:, 0] + curve_RG[:, -1]) / 2
    return area_R


METRICS: dict[str, Callable[[Sorted, Floats], Floats]] = {
    "accuracy": _accuracy,
    "ece": _ece,
    "brier": _brier,
    "auroc": _auroc,
    "adaptive_ece": _adaptive_ece,
    "smooth_ece": _smooth_ece,
    "aurc": _aurc,
}
"""The metrics that `evaluate`, `bootstrap` and `paired_bootstrap` know by name."""


def metric_names(metrics: str | Sequence[str] | None) -> list[str]:
    """Return the names asked for, all of them for None, refusing unknown ones."""
    names = [metrics] if isinstance(metrics, str) else list(METRICS if metrics is None else metrics)
    for name in names:
        if name not in METRICS:
            raise UserInputError(f"unknown metric {name!r}; known: {', '.join(METRICS)}")
    return names
