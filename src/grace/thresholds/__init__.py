"""Thresholds that keep a promise: tau chosen on calibration data by Learn-then-Test.

With probability at least 1 - delta over the draw of the calibration data, the promise holds for
new questions from the same source. `docs/thresholds.md` says what that means and what it does not.

Each threshold of a grid that is fixed in advance is a hypothesis "the promise is broken here",
with an exact binomial p-value. They are tested from strict to loose and the first one that cannot
be rejected ends the sequence, so no level is lost to the number of thresholds. The last one
rejected is tau.

Sources: Angelopoulos et al. 2021 (arXiv 2110.01052), Learn then Test; Bauer 1991 (Statistics in
Medicine 10), tests in a fixed sequence; Clopper and Pearson 1934 (Biometrika 26), exact bounds.

Shapes: N questions, G thresholds, D independent draws of calibration data.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from grace.errors import UserInputError
from grace.thresholds.exact import Indices, difference_bound, least_points, lower_bound
from grace.thresholds.promises import AccuracyPromise, NoWorsePromise
from grace.thresholds.sequence import check_level, pick_accurate, pick_no_worse, starts

__all__ = [
    "GRID",
    "AccuracyPromise",
    "NoWorsePromise",
    "accepted_counts",
    "check_level",
    "least_points",
    "lower_bound",
    "pick_accurate",
    "pick_no_worse",
    "promise_accuracy",
    "promise_no_worse",
    "selective",
]

_TAILS = (1e-4, 1e-5, 1e-6)
GRID: tuple[float, ...] = (
    *(1 - tail for tail in reversed(_TAILS)),
    *(thousandths / 1000 for thousandths in range(999, 0, -1)),
    *_TAILS,
    0.0,
)
"""The thresholds that are tried, strict to loose. It must never depend on the calibration data."""


def selective(
    confidence: ArrayLike,
    correct: ArrayLike,
    *,
    target: float,
    delta: float = 0.05,
    grid: Sequence[float] = GRID,
) -> AccuracyPromise:
    """Choose tau for "answer when the confidence reaches tau, else abstain".

    Args:
        confidence: one per calibration question, of its one answer; nan where there is none.
        correct: whether that answer is right.
        target: wanted accuracy of the answers that are given, in (0, 1).
        delta: accepted probability that the promise is broken, in (0, 1).
        grid: thresholds from strict to loose, chosen without looking at these data.

    Raises:
        UserInputError: unusable data, target, delta or grid.
    """
    confidence_N = np.asarray(confidence, dtype=np.float64)
    correct_N = np.asarray(correct)
    if confidence_N.ndim != 1 or correct_N.shape != confidence_N.shape or not correct_N.size:
        raise UserInputError(
            f"confidences have shape {confidence_N.shape}, correctness {correct_N.shape}; "
            "give one of each per question"
        )
    accepted, right = accepted_counts(confidence_N[None], correct_N[None], grid)
    return promise_accuracy(
        accepted[0], right[0], confidence_N.size, target=target, delta=delta, grid=grid
    )


def accepted_counts(
    confidence_DN: ArrayLike, correct_DN: ArrayLike, grid: Sequence[float] = GRID
) -> tuple[Indices, Indices]:
    """Return how many answers reach each threshold, and how many of those are right: (D, G)."""
    confidence = np.asarray(confidence_DN, dtype=np.float64)
    strict_first = -np.asarray(_check_grid(grid))
    cell = np.searchsorted(strict_first, np.where(np.isnan(confidence), np.inf, -confidence))
    size = len(grid) + 1
    place = (cell + np.arange(len(cell))[:, None] * size).ravel()

    def reach(weights: Any) -> Indices:
        counts = np.bincount(place, weights, minlength=len(cell) * size).reshape(-1, size)
        reached: Indices = counts[:, :-1].cumsum(axis=1).astype(np.intp)
        return reached

    return reach(None), reach(np.asarray(correct_DN, dtype=np.float64).ravel())


def promise_accuracy(
    accepted_G: ArrayLike,
    right_G: ArrayLike,
    n: int,
    *,
    target: float,
    delta: float = 0.05,
    grid: Sequence[float] = GRID,
    abstains: bool = True,
) -> AccuracyPromise:
    """Choose tau from the number of answers given, and of right ones, at each threshold.

    Args:
        accepted_G: questions answered at each threshold of the grid.
        right_G: those answered right.
        n: calibration questions.
        target: wanted accuracy of the answers that are given, in (0, 1).
        delta: accepted probability that the promise is broken, in (0, 1).
        grid: the thresholds, strict to loose.
        abstains: whether a strict threshold answers few questions (see `pick_accurate`).

    Raises:
        UserInputError: an impossible target, delta or grid.
    """
    _check_grid(grid)
    accepted_1G, right_1G = np.atleast_2d(accepted_G), np.atleast_2d(right_G)
    picked = pick_accurate(accepted_1G, right_1G, n, target, delta, abstains)[0]
    begins = starts(n, target, delta) if abstains else [0]
    reached = np.flatnonzero(accepted_1G[0] >= min(begins[0], accepted_1G[0].max()))
    at = picked if picked >= 0 else reached[0]
    accepted, right = int(accepted_1G[0, at]), int(right_1G[0, at])
    return AccuracyPromise(
        tau=float(grid[at]) if picked >= 0 else None,
        target=target,
        delta=delta,
        n=n,
        accepted=accepted,
        right=right,
        bound=float(lower_bound(right, accepted, delta / len(begins))),
    )


def promise_no_worse(
    better_G: ArrayLike,
    worse_G: ArrayLike,
    n: int,
    *,
    margin: float = 0.0,
    delta: float = 0.05,
    grid: Sequence[float] = GRID,
) -> NoWorsePromise:
    """Choose tau so that accuracy is at most `margin` below a baseline's on the same questions.

    Args:
        better_G: questions right at each threshold that the baseline got wrong.
        worse_G: questions wrong at each threshold that the baseline got right.
        n: calibration questions.
        margin: accepted loss of accuracy, in [0, 1); 0 asks for proof of no loss at all, which
            takes a strategy that is clearly better than the baseline.
        delta: accepted probability that the promise is broken, in (0, 1).
        grid: the thresholds, strict to loose.

    Raises:
        UserInputError: an impossible margin, delta or grid.
    """
    _check_grid(grid)
    better_1G, worse_1G = np.atleast_2d(better_G), np.atleast_2d(worse_G)
    picked = pick_no_worse(better_1G, worse_1G, n, margin, delta)[0]
    at = max(picked, 0)
    return NoWorsePromise(
        tau=float(grid[at]) if picked >= 0 else None,
        margin=margin,
        delta=delta,
        n=n,
        better=int(better_1G[0, at]),
        worse=int(worse_1G[0, at]),
        bound=float(difference_bound(better_1G, worse_1G, n, margin, delta)[0, at]),
    )


def _check_grid(grid: Sequence[float]) -> Sequence[float]:
    """Return the grid, refusing one that does not go from strict to loose."""
    if len(grid) == 0 or any(a <= b for a, b in itertools.pairwise(grid)):
        raise UserInputError(
            f"the grid of {len(grid)} thresholds must go from strict to loose; sort it, high first"
        )
    return grid
