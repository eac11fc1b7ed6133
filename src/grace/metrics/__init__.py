"""Metrics of confidences: numpy in, Python float out, always fractions (0.09, not 9%).

Every metric takes `(confidence_N, correct_N)`: probabilities in [0, 1] that a response is right,
and whether it is. Inside, each metric is one function of the data sorted by confidence and of
*counts* (how often each response counts), so that a bootstrap is one weighted evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from grace.metrics.calibration import Calibration as Calibration
from grace.metrics.calibration import calibration as calibration
from grace.metrics.kernels import METRICS as METRICS
from grace.metrics.kernels import (
    Counted,
    Floats,
    bin_index,
    check,
    check_questions,
    metric_names,
    sort_by_confidence,
)
from grace.metrics.resampling import Estimate as Estimate
from grace.metrics.resampling import Resamples as Resamples
from grace.metrics.resampling import bootstrap as bootstrap
from grace.metrics.resampling import difference as difference
from grace.metrics.resampling import estimate as estimate
from grace.metrics.resampling import over_seeds as over_seeds
from grace.metrics.resampling import percentiles as percentiles


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a reliability diagram; confidence and accuracy are None in an empty bin."""

    low: float
    high: float
    n: int
    confidence: float | None
    accuracy: float | None


def ece(confidence: ArrayLike, correct: ArrayLike, bins: int = 10) -> float:
    """Expected calibration error: mean |accuracy - mean confidence| over equal-width bins.

    Bins are [k/bins, (k+1)/bins), the last one closed, so a confidence of exactly 1 counts.
    Accuracy is that of the grades, not of training targets.
    Source: Naeini et al. 2015; arXiv 2509.09438 app. C.
    """
    return evaluate(confidence, correct, "ece", bins=bins)["ece"]


def brier(confidence: ArrayLike, correct: ArrayLike) -> float:
    """Brier score: mean squared difference between confidence and correctness."""
    return evaluate(confidence, correct, "brier")["brier"]


def auroc(confidence: ArrayLike, correct: ArrayLike) -> float:
    """P(a right response has the higher confidence than a wrong one), ties counting half.

    nan when all responses are right or all are wrong.
    """
    return evaluate(confidence, correct, "auroc")["auroc"]


def wqd(confidence: ArrayLike, correct: ArrayLike, questions: Sequence[Any]) -> float:
    """Within-question discrimination: the AUROC over pairs of responses to one question.

    nan when no question has both a right and a wrong response. Ties count half.
    Source: Taubenfeld et al. 2025, arXiv 2502.06233, section 5 (who count ties as failures).
    """
    confidence_N, correct_N = check(confidence, correct)
    check_questions(questions, len(confidence_N))
    code = {question: at for at, question in enumerate(dict.fromkeys(questions))}
    question_N = np.array([code[question] for question in questions])
    wins_Q, pairs_Q = won_pairs(confidence_N, correct_N, question_N, len(code))
    return float(wins_Q.sum() / pairs_Q.sum()) if pairs_Q.any() else math.nan


def won_pairs(
    confidence_N: Floats, correct_N: NDArray[Any], question_N: NDArray[Any], count: int
) -> tuple[Floats, Floats]:
    """Return how many pairs of a right and a wrong response the right one wins, and how many are.

    Both are by question (count,), each a number below `count`; a tie is half a win.
    """
    # Complex numbers are in order of their real part, the question, then of the imaginary one.
    at_N = question_N + 1j * confidence_N
    right, wrong = at_N[correct_N == 1], np.sort(at_N[correct_N == 0])
    first, last = np.searchsorted(wrong, right.real), np.searchsorted(wrong, right.real + 2j)
    below = (np.searchsorted(wrong, right) + np.searchsorted(wrong, right, "right")) / 2
    own = right.real.astype(np.intp)
    both = (below - first, last - first)
    wins_Q, pairs_Q = (np.bincount(own, n, count).astype(np.float64) for n in both)
    return wins_Q, pairs_Q


def reliability(confidence: ArrayLike, correct: ArrayLike, bins: int = 10) -> list[Bar]:
    """Return the bars of a reliability diagram, also of empty bins; the bins are those of ECE."""
    confidence_N, correct_N = check(confidence, correct, bins)
    bin_N = bin_index(confidence_N, bins)
    n_B = np.bincount(bin_N, minlength=bins)
    confidence_B = np.bincount(bin_N, weights=confidence_N, minlength=bins)
    correct_B = np.bincount(bin_N, weights=correct_N, minlength=bins)
    return [
        Bar(
            k / bins,
            (k + 1) / bins,
            int(n),
            float(confidence_B[k] / n) if n else None,
            float(correct_B[k] / n) if n else None,
        )
        for k, n in enumerate(n_B)
    ]


def evaluate(
    confidence: ArrayLike,
    correct: ArrayLike,
    metrics: str | Sequence[str] | None = None,
    *,
    bins: int = 10,
) -> dict[str, float]:
    """Compute several metrics by name; by default all of `METRICS`."""
    data = sort_by_confidence(*check(confidence, correct, bins), bins)
    once = Counted(data, np.ones((1, len(data.confidence_N))))
    return {name: float(METRICS[name](once)[0]) for name in metric_names(metrics)}
