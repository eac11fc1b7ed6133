"""The chance that a wrong explanation ends in the right answer, below which c should not fall.

A wrong explanation still ends in the right option now and then. Log-odds that are linear in the
states then say too little where they are low, and too much in the middle. The three-parameter
logistic model of item response theory (Birnbaum 1968) has a lower asymptote for that:

    c = floor + (1 - floor) * sigmoid(slope * log-odds + bias)
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from grace.calibration import CLIP, log_losses
from grace.probe.rows import Array, sigmoid

MOST = 0.5  # the largest floor: two options
LEAST_GAIN = 2.0  # of the held-out log loss, in standard errors, as for LoRA


class Guessing(NamedTuple):
    """A fitted floor, with the slope and the bias of the log-odds above it.

    Attributes:
        floor: in [0, `MOST`].
        slope: positive factor on the log-odds.
        bias: added to them.
        unseen: c of each answer (N,) by a fit that has not seen its fold.
    """

    floor: float
    slope: float
    bias: float
    unseen: Array


def fit_guessing(odds_N: Array, labels_N: Array, fold_N: Array) -> Guessing | None:
    """Fit a floor to held-out log-odds; None if that does not clearly lower their log loss.

    Args:
        odds_N: the log-odds of each answer by a fit that has not seen it.
        labels_N: 1 or True where the answer is right.
        fold_N: the fold of each answer.
    """
    right_N = np.asarray(labels_N, dtype=np.float64)
    unseen_N = np.empty(len(odds_N))
    for fold in np.unique(fold_N):
        out_N = fold_N == fold
        unseen_N[out_N] = _c(_fit(odds_N[~out_N], right_N[~out_N]), odds_N[out_N])
    gain_N = log_losses(sigmoid(odds_N), right_N) - log_losses(unseen_N, right_N)
    if gain_N.mean() <= LEAST_GAIN * gain_N.std() / math.sqrt(len(gain_N)):
        return None
    slope, bias, floor = _fit(odds_N, right_N).tolist()
    return Guessing(floor, slope, bias, unseen_N)


def _c(numbers: Array, odds_N: Array) -> Array:
    slope, bias, floor = numbers
    c_N: Array = floor + (1 - floor) * sigmoid(slope * odds_N + bias)
    return c_N


def _fit(odds_N: Array, right_N: Array) -> Array:
    """Return slope, bias and floor of the largest likelihood."""
    from scipy.optimize import minimize

    def loss(numbers: Array) -> tuple[float, Array]:
        slope, bias, floor = numbers
        above_N = sigmoid(slope * odds_N + bias)
        c_N = np.clip(floor + (1 - floor) * above_N, CLIP, 1 - CLIP)
        by_c_N = (c_N - right_N) / (c_N * (1 - c_N))
        by_logit_N = by_c_N * (1 - floor) * above_N * (1 - above_N)
        slopes = [by_logit_N @ odds_N, by_logit_N.sum(), by_c_N @ (1 - above_N)]
        return float(log_losses(c_N, right_N).mean()), np.array(slopes) / len(c_N)

    bounds = [(0.1, 10.0), (None, None), (0.0, MOST)]
    found: Array = minimize(loss, [1.0, 0.0, 0.1], jac=True, method="L-BFGS-B", bounds=bounds).x
    return found
