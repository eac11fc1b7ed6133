"""Is a confidence calibrated, and if not, how: a test, a slope, the two parts of the Brier score.

Shapes: N responses, Q questions, B bins, R simulations.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from grace.metrics.samples import bin_index, check, check_questions

_CLIP = 1e-6
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


def _line(confidence_N: np.ndarray, correct_N: np.ndarray) -> tuple[float, float]:
    """Fit the log-odds of being right as a line in those of the confidence, by Newton's method."""
    clipped_N = np.clip(confidence_N, _CLIP, 1 - _CLIP)
    x_NP = np.stack([np.log(clipped_N / (1 - clipped_N)), np.ones_like(clipped_N)], axis=1)
    right, wrong = x_NP[correct_N == 1, 0], x_NP[correct_N == 0, 0]
    if not len(right) or not len(wrong) or np.ptp(x_NP[:, 0]) < _CLIP:
        return math.nan, math.nan
    if right.min() >= wrong.max() or right.max() <= wrong.min():  # they do not overlap
        return math.nan, math.nan
    point_P = np.array([1.0, 0.0])
    loss = _log_loss(x_NP @ point_P, correct_N)
    for _ in range(50):
        probability_N = 1 / (1 + np.exp(-x_NP @ point_P))
        weight_N = np.maximum(probability_N * (1 - probability_N), 1e-12)
        step_P = np.linalg.solve(
            x_NP.T * weight_N @ x_NP + 1e-12 * np.eye(2), x_NP.T @ (correct_N - probability_N)
        )
        while (after := _log_loss(x_NP @ (point_P + step_P), correct_N)) > loss + 1e-12:
            step_P = step_P / 2
        point_P, loss = point_P + step_P, after
        if np.abs(step_P).max() < 1e-10:
            break
    slope, offset = map(float, point_P)
    return slope, offset


def _log_loss(logit_N: np.ndarray, correct_N: np.ndarray) -> float:
    return float((np.logaddexp(0, logit_N) - correct_N * logit_N).mean())
