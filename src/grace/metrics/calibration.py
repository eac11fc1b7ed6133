"""Is a confidence calibrated, and if not, how: a test, a slope, the two parts of the Brier score.

Shapes: N responses, Q questions, B bins, R simulations.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from grace.metrics.kernels import Floats, bin_index, check, check_questions

CLIP = 1e-6
"""Confidences are clipped to [CLIP, 1 - CLIP] before a logarithm is taken."""

_SIMULATIONS = 2000


class Calibration(NamedTuple):
    """What is known of the calibration of confidences.

    `p_calibrated` is how often a perfectly calibrated confidence would show an ECE this large. The
    log-odds of being right are `slope` times those of the confidence, plus `offset` (1 and 0 when
    calibrated; a slope below 1 is a confidence that goes too far to both sides); nan when they
    cannot be fitted. The Brier score is `brier_calibration`, the squared gaps in the bins of ECE
    less what chance adds, plus `brier_refinement`, which no map of the bins could take away.
    """

    p_calibrated: float
    slope: float
    offset: float
    brier_calibration: float
    brier_refinement: float


def calibration(
    confidence: ArrayLike,
    correct: ArrayLike,
    questions: Sequence[Hashable] | None = None,
    *,
    bins: int = 10,
    seed: int = 0,
) -> Calibration:
    """Test confidences for calibration, fit its slope and offset, and split the Brier score.

    The test compares the ECE with that of simulated grades, each right with exactly its
    confidence. Where several responses answer one question (`questions`, one per response), their
    grades are not independent; then the signs of the errors of whole questions are drawn instead.
    Source: Widmann et al. 2019, arXiv 1910.11385 (the test); Cox 1958 (slope and offset); Ferro and
    Fricker 2012, "A bias-corrected decomposition of the Brier score".
    """
    confidence_N, correct_N = check(confidence, correct, bins)
    gap_N = correct_N - confidence_N
    bin_N = bin_index(confidence_N, bins)
    names = range(len(gap_N)) if questions is None else questions
    check_questions(names, len(gap_N))
    at = {question: row for row, question in enumerate(dict.fromkeys(names))}
    rng = np.random.default_rng(seed)
    in_bin_NB = np.eye(bins)[bin_N]
    if len(at) == len(gap_N):
        right_RN = rng.random((_SIMULATIONS, len(gap_N)), dtype=np.float32) < confidence_N
        simulated_RB = right_RN @ in_bin_NB - confidence_N @ in_bin_NB
    else:
        gap_QB = np.zeros((len(at), bins))
        row_N = np.array([at[question] for question in names])
        np.add.at(gap_QB, (row_N, bin_N), gap_N)
        simulated_RB = rng.choice([-1.0, 1.0], (_SIMULATIONS, len(at))) @ gap_QB
    gap_B = gap_N @ in_bin_NB
    as_large = np.abs(simulated_RB).sum(axis=1) >= np.abs(gap_B).sum() - 1e-9
    n_B = in_bin_NB.sum(axis=0)
    square_B = gap_N**2 @ in_bin_NB
    used_B = np.maximum(n_B, 1)
    chance_B = (square_B - gap_B**2 / used_B) / np.maximum(n_B - 1, 1)
    brier = float((gap_N**2).mean())
    bias = max(0.0, float((gap_B**2 / used_B - np.where(n_B > 1, chance_B, square_B)).sum()))
    bias = min(brier, bias / len(gap_N))
    p = (1 + int(as_large.sum())) / (1 + _SIMULATIONS)
    return Calibration(p, *_line(confidence_N, correct_N), bias, brier - bias)


def _line(confidence_N: Floats, correct_N: Floats) -> tuple[float, float]:
    """Fit the log-odds of being right as a line in those of the confidence; nan without a fit."""
    x_N = log_odds(confidence_N)
    right, wrong = x_N[correct_N == 1], x_N[correct_N == 0]
    if not len(right) or not len(wrong) or np.ptp(x_N) < CLIP:
        return math.nan, math.nan
    if right.min() >= wrong.max() or right.max() <= wrong.min():  # they do not overlap
        return math.nan, math.nan
    x_PN = np.stack([x_N, np.ones_like(x_N)])
    slope, offset = newton(x_PN, correct_N, np.array([1.0, 0.0]), np.full(2, 1e-9))
    return float(slope), float(offset)


def newton(
    x_PN: Floats,
    y_N: Floats,
    point_P: Floats,
    weight_P: Floats,
    free_P: NDArray[np.bool_] | slice = np.s_[:],
    share_N: Floats | float = 1.0,
) -> Floats:
    """Fit slopes, drawn towards 1, and an offset, towards 0; those not free keep their values."""
    start_P = np.append(np.ones(len(x_PN) - 1), 0.0)

    def loss(point_P: Floats) -> tuple[float, Floats]:
        logit_N, away_P = point_P @ x_PN, weight_P * (point_P - start_P)
        value = np.sum(share_N * (np.logaddexp(0, logit_N) - y_N * logit_N))
        slope_P = x_PN @ (share_N * (sigmoid(logit_N) - y_N)) + away_P
        return float(value + away_P @ (point_P - start_P) / 2), slope_P

    value, slope_P = loss(point_P)
    for _ in range(100):
        p_N = sigmoid(point_P @ x_PN)
        curve_PP = (x_PN * share_N * p_N * (1 - p_N)) @ x_PN.T + np.diag(weight_P)
        step_P = np.zeros(len(x_PN))
        step_P[free_P] = np.linalg.solve(curve_PP[free_P][:, free_P], slope_P[free_P])
        while loss(point_P - step_P)[0] > value:
            step_P /= 2
        point_P = point_P - step_P
        value, slope_P = loss(point_P)
        if np.abs(step_P).max() < 1e-12:
            break
    return point_P


def sigmoid(logit: Floats) -> Floats:
    """Return 1 / (1 + exp(-x)), without overflow."""
    return 1 / (1 + np.exp(np.minimum(-logit, 700)))


def log_odds(confidence: ArrayLike) -> Floats:
    """Return log(c / (1 - c)) of confidences, clipped by `CLIP`."""
    clipped = np.clip(np.asarray(confidence, dtype=np.float64), CLIP, 1 - CLIP)
    return np.log(clipped) - np.log1p(-clipped)
