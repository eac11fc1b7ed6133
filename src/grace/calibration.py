"""Maps from raw to calibrated confidence, fitted on validation answers and applied to test answers.

`fit(confidence_N, correct_N)` returns a frozen object; `.transform(confidence)` keeps the shape
and stays in [0, 1]. No map adds information: Platt with a > 0 and Temperature do not change AUROC.
No slope can be fitted to constant confidence or to labels of one class; each class documents what
it does then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from grace.metrics.calibration import CLIP, newton, sigmoid
from grace.metrics.calibration import log_odds as log_odds
from grace.metrics.kernels import Floats, check

STEEPEST = 50.0
"""Largest slope and offset of Platt scaling, in logits per standard deviation of confidence."""

SLOPE_SPREAD, OFFSET_SPREAD, FLATTEST = 0.2, 0.3, 0.01
"""Of `LogOdds`: standard deviations of the priors of slope and offset, and the smallest slope."""


@dataclass(frozen=True, slots=True)
class Platt:
    """sigmoid(a * confidence + b).

    `loss="mse"` is the paper's baseline, fitted to convergence; `"log"` is Platt's maximum
    likelihood, for any finite score, such as a log-probability. `a` is negative if surer answers
    are wrong more often. Separable labels give a steep but finite map. With constant confidence,
    a = 0 and the map is the accuracy; with one class, a = 0 and it is (right + 1) / (n + 2), which
    is never 0 or 1.
    Source: Platt 1999; arXiv 2509.09438 section 4.1.
    """

    a: float
    b: float

    @classmethod
    def fit(
        cls, confidence: ArrayLike, correct: ArrayLike, *, loss: Literal["mse", "log"] = "mse"
    ) -> Platt:
        """Fit a and b on validation labels."""
        confidence_N, correct_N = check(confidence, correct, bounded=loss == "mse")
        center, scale = confidence_N.mean(), confidence_N.std()
        one_class = correct_N.min() == correct_N.max()
        if one_class or np.ptp(confidence_N) < CLIP:
            smooth = 1.0 if one_class else 0.0
            rate = (correct_N.sum() + smooth) / (len(correct_N) + 2 * smooth)
            return cls(0.0, float(np.log(rate / (1 - rate))))
        z_N = (confidence_N - center) / scale
        best = _smallest(_log_loss, np.zeros(2), z_N, correct_N)
        if loss == "mse":  # not convex: from there, steeper, and with the other sign
            starts = [best.x, 4 * best.x, -best.x, np.zeros(2)]
            fits = [_smallest(_squared_error, start, z_N, correct_N) for start in starts]
            best = min(fits, key=lambda fit: float(fit.fun))
        slope, offset = best.x
        return cls(float(slope / scale), float(offset - slope * center / scale))

    def transform(self, confidence: ArrayLike) -> Floats:
        """Map confidences, keeping the shape."""
        return sigmoid(self.a * np.asarray(confidence, dtype=np.float64) + self.b)


@dataclass(frozen=True, slots=True)
class Temperature:
    """sigmoid(logit(confidence) / temperature), fitted by maximum likelihood.

    The temperature is in [0.01, 100]; it is at an end when there is no optimum (all right and sure,
    all wrong and sure). Confidence is clipped to [1e-6, 1 - 1e-6] first.
    Source: Guo et al. 2017, arXiv 1706.04599, section 4.2, for one probability.
    """

    temperature: float

    @classmethod
    def fit(cls, confidence: ArrayLike, correct: ArrayLike) -> Temperature:
        """Fit the temperature on validation labels."""
        from scipy.optimize import minimize_scalar

        confidence_N, correct_N = check(confidence, correct)
        logit_N = log_odds(confidence_N)
        if not np.any(logit_N):
            return cls(1.0)

        def loss(log_inverse: float) -> float:
            point = np.array([np.exp(log_inverse), 0.0])
            return float(_log_loss(point, logit_N, correct_N)[0])

        limit = np.log(100)
        best = minimize_scalar(
            loss, bounds=(-limit, limit), method="bounded", options={"xatol": 1e-9}
        )
        return cls(float(np.exp(-best.x)))

    def transform(self, confidence: ArrayLike) -> Floats:
        """Map confidences, keeping the shape."""
        return sigmoid(log_odds(confidence) / self.temperature)


@dataclass(frozen=True, slots=True)
class LogOdds:
    """sigmoid(sum_p a_p x_p + b): Platt's map of parts that add up to calibrated log-odds.

    A single part is the log-odds of a confidence. Fitted by penalised maximum likelihood: normal
    priors have their mean at slopes of 1 and an offset of 0, so that few answers change little, and
    confidences that are calibrated already stay as they are. Slopes are positive, so that the order
    by each part stays.
    """

    a: tuple[float, ...]
    b: float

    @classmethod
    def fit(
        cls,
        parts_PN: ArrayLike,
        correct_N: ArrayLike,
        spread: ArrayLike = SLOPE_SPREAD,
        weights_N: ArrayLike = 1.0,
    ) -> LogOdds:
        """Fit slopes (priors of this `spread`) and offset: strictly convex, so one minimum."""
        x_PN = np.atleast_2d(np.asarray(parts_PN, dtype=np.float64))
        x_PN = np.concatenate([x_PN, np.ones((1, x_PN.shape[1]))])
        y_N = np.asarray(correct_N, dtype=np.float64)
        weight_P = np.ones(len(x_PN)) / OFFSET_SPREAD**2
        weight_P[:-1] = np.asarray(spread, dtype=np.float64) ** -2.0
        free_P = np.ones(len(x_PN), dtype=bool)
        found_P = np.append(np.ones(len(x_PN) - 1), 0.0)
        while True:
            found_P = newton(x_PN, y_N, found_P, weight_P, free_P, np.asarray(weights_N, float))
            flat_P = np.append(found_P[:-1] < FLATTEST, False)
            if not flat_P.any():
                return cls(tuple(found_P[:-1].tolist()), float(found_P[-1]))
            found_P[flat_P], free_P = FLATTEST, free_P & ~flat_P

    def transform(self, parts_PN: ArrayLike) -> Floats:
        """Return the confidences of answers with these parts, shape (N,)."""
        x_PN = np.atleast_2d(np.asarray(parts_PN, dtype=np.float64))
        return sigmoid(np.asarray(self.a) @ x_PN + self.b)


@dataclass(frozen=True, slots=True)
class Isotonic:
    """The non-decreasing map with the least squared error, linear between its knots.

    Ties are pooled first; outside the knots the map is constant. With constant confidence or one
    class it is the accuracy everywhere, which may be exactly 0 or 1.
    Source: Zadrozny and Elkan 2002 (pool adjacent violators).
    """

    knots: tuple[float, ...]
    values: tuple[float, ...]

    @classmethod
    def fit(cls, confidence: ArrayLike, correct: ArrayLike) -> Isotonic:
        """Fit the map on validation labels."""
        from sklearn.isotonic import IsotonicRegression

        model = IsotonicRegression().fit(*check(confidence, correct))
        return cls(tuple(model.X_thresholds_.tolist()), tuple(model.y_thresholds_.tolist()))

    def transform(self, confidence: ArrayLike) -> Floats:
        """Map confidences, keeping the shape."""
        return np.interp(np.asarray(confidence, np.float64), self.knots, self.values)


def log_losses(confidence: ArrayLike, correct: ArrayLike) -> Floats:
    """Return the log loss of each response in nats, with confidences clipped by `CLIP`."""
    clipped_N = np.clip(np.asarray(confidence, dtype=np.float64), CLIP, 1 - CLIP)
    correct_N = np.asarray(correct, dtype=np.float64)
    return -correct_N * np.log(clipped_N) - (1 - correct_N) * np.log1p(-clipped_N)


def standard_error(value_N: ArrayLike, groups_N: Sequence[Hashable]) -> float:
    """Return the standard error of a mean, clustered by group; inf for a single group."""
    numbers: dict[Hashable, int] = {}
    group_N = [numbers.setdefault(group, len(numbers)) for group in groups_N]
    value_N = np.asarray(value_N, dtype=np.float64)
    if len(numbers) < 2:
        return math.inf
    away_G = np.bincount(group_N, weights=value_N - value_N.mean())
    return math.sqrt(len(away_G) / (len(away_G) - 1) * float(away_G @ away_G)) / value_N.size


def _smallest(loss: Callable[..., Any], start: Floats, z_N: Floats, correct_N: Floats) -> Any:
    from scipy.optimize import minimize

    return minimize(
        loss,
        np.clip(start, -STEEPEST, STEEPEST),
        args=(z_N, correct_N),
        jac=True,
        method="L-BFGS-B",
        bounds=[(-STEEPEST, STEEPEST)] * 2,
        options={"ftol": 1e-15, "gtol": 1e-10},
    )


def _log_loss(point: Floats, z_N: Floats, correct_N: Floats) -> tuple[float, Floats]:
    logit_N = point[0] * z_N + point[1]
    loss = np.mean(np.logaddexp(0, logit_N) - correct_N * logit_N)
    error_N = sigmoid(logit_N) - correct_N
    return float(loss), np.array([np.mean(error_N * z_N), np.mean(error_N)])


def _squared_error(point: Floats, z_N: Floats, correct_N: Floats) -> tuple[float, Floats]:
    p_N = sigmoid(point[0] * z_N + point[1])
    error_N = p_N - correct_N
    slope_N = error_N * p_N * (1 - p_N)
    return float(np.mean(error_N**2)) / 2, np.array([np.mean(slope_N * z_N), np.mean(slope_N)])
