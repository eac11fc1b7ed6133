"""The chance that a wrong explanation ends in the right answer, below which c should not fall.

A wrong explanation still ends in the right option now and then. Log-odds that are linear in the
states then say too little where they are low, and too much in the middle. The three-parameter
logistic model of item response theory (Birnbaum 1968) has a lower asymptote for that:

    c = floor + (1 - floor) * sigmoid(slope * log-odds + bias)
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from grace.calibration import CLIP, log_losses, standard_error
from grace.probe.rows import Array, sigmoid

MOST = 0.5  # the largest floor: two options
LEAST_GAIN = 2.0  # of the held-out log loss, in standard errors, as for LoRA


class Guessing(NamedTuple):
    """A floor, and the slope and the bias of the log-odds above it.

    Attributes:
        floor: in [0, `MOST`].
        slope: positive factor on the log-odds.
        bias: added to them.
    """

    floor: float = 0.0
    slope: float = 1.0
    bias: float = 0.0

    def confidence(self, odds_N: Array, limit: float) -> Array:
        """Return c of log-odds, which `limit` bounds after slope and bias, as in `Evidence`."""
        above_N = sigmoid(np.clip(self.slope * odds_N + self.bias, -limit, limit))
        c_N: Array = self.floor + (1 - self.floor) * above_N
        return c_N


def fit_guessing(
    odds_N: Array, labels_N: Array, groups_N: Sequence[Hashable], fold_N: Array, limit: float
) -> tuple[Guessing, Array]:
    """Fit a floor to held-out log-odds; it is 0 unless it clearly lowers their log loss.

    Args:
        odds_N: the log-odds of each answer by a fit that has not seen it.
        labels_N: 1 or True where the answer is right.
        groups_N: its question.
        fold_N: the fold of each answer.
        limit: bound on the absolute log-odds, to which those that are fitted to are clipped.

    Returns:
        The floor, and c of each answer (N,) by a fit that has not seen its fold.
    """
    right_N, seen_N = np.asarray(labels_N, dtype=np.float64), np.clip(odds_N, -limit, limit)
    unseen_N = np.empty(len(odds_N))
    for fold in np.unique(fold_N):
        out_N = fold_N == fold
        unseen_N[out_N] = _fit(seen_N[~out_N], right_N[~out_N]).confidence(odds_N[out_N], limit)
    plain_N = Guessing().confidence(odds_N, limit)
    gain_N = log_losses(plain_N, right_N) - log_losses(unseen_N, right_N)
    if gain_N.mean() <= LEAST_GAIN * standard_error(gain_N, groups_N):
        return Guessing(), plain_N
    return _fit(seen_N, right_N), unseen_N


def _fit(odds_N: Array, right_N: Array) -> Guessing:
    """Return the floor, the slope and the bias of the largest likelihood."""
    from scipy.optimize import minimize

    def loss(numbers: Array) -> tuple[float, Array]:
        floor, slope, bias = numbers
        above_N = sigmoid(slope * odds_N + bias)
        c_N = np.clip(floor + (1 - floor) * above_N, CLIP, 1 - CLIP)
        by_c_N = (c_N - right_N) / (c_N * (1 - c_N))
        by_logit_N = by_c_N * (1 - floor) * above_N * (1 - above_N)
        slopes = [by_c_N @ (1 - above_N), by_logit_N @ odds_N, by_logit_N.sum()]
        return float(log_losses(c_N, right_N).mean()), np.array(slopes) / len(c_N)

    bounds = [(0.0, MOST), (0.1, 10.0), (None, None)]
    found = minimize(loss, [0.1, 1.0, 0.0], jac=True, method="L-BFGS-B", bounds=bounds)
    return Guessing(*found.x.tolist())
