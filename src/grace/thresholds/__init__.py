"""Thresholds with a guarantee: tau chosen on calibration data by Learn then Test.

With probability at least 1 - delta over the draw of the calibration data, what is guaranteed holds
for new questions from the same source. `docs/thresholds.md` says what that means and what it does
not.

Each threshold of a grid that is fixed in advance is a hypothesis "it is false here", with an exact
binomial p-value. They are tested from strict to loose and the first one that cannot be rejected
ends the sequence, so no level is lost to the number of thresholds. The last one rejected is tau.

Sources: Angelopoulos et al. 2021 (arXiv 2110.01052), Learn then Test; Bauer 1991 (Statistics in
Medicine 10), tests in a fixed sequence; Clopper and Pearson 1934 (Biometrika 26), exact bounds.

Shapes: N questions, G thresholds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from grace.errors import UserInputError
from grace.thresholds.binomial import Indices, least_points, lower_bound, p_value
from grace.thresholds.guarantees import (
    GRID,
    AccuracyGuarantee,
    Accurate,
    Guarantee,
    NoWorse,
    NoWorseGuarantee,
    check_grid,
    check_level,
    walk,
)

__all__ = [
    "GRID",
    "AccuracyGuarantee",
    "Accurate",
    "DropGuarantee",
    "Guarantee",
    "NoWorse",
    "NoWorseGuarantee",
    "accepted_counts",
    "check_level",
    "few_dropped",
    "least_points",
    "lower_bound",
    "selective",
]


def selective(
    confidence: ArrayLike,
    correct: ArrayLike,
    *,
    target: float,
    delta: float = 0.05,
    grid: Sequence[float] = GRID,
) -> AccuracyGuarantee:
    """Choose tau for "answer when the confidence reaches tau, else abstain".

    Args:
        confidence: one per calibration question, of its one answer; nan where there is none.
        correct: whether that answer is right.
        target: wanted accuracy of the answers that are given, in (0, 1).
        delta: accepted probability that the guarantee is false, in (0, 1).
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
    accepted_G, right_G = accepted_counts(confidence_N, correct_N, grid)
    return Accurate(target).guarantee(
        accepted_G, right_G, confidence_N.size, delta=delta, grid=grid
    )


def accepted_counts(
    confidence_N: ArrayLike, correct_N: ArrayLike, grid: Sequence[float] = GRID
) -> tuple[Indices, Indices]:
    """Return how many answers reach each threshold, and how many of those are right: (G,)."""
    confidence_N = np.asarray(confidence_N, dtype=np.float64)
    strict_first = -np.asarray(check_grid(grid))
    cell_N = np.searchsorted(strict_first, np.where(np.isnan(confidence_N), np.inf, -confidence_N))
    every = np.ones(len(cell_N), dtype=bool)
    accepted_G, right_G = (
        np.bincount(cell_N[chosen_N], minlength=len(grid) + 1)[:-1].cumsum()
        for chosen_N in (every, np.asarray(correct_N, dtype=bool))
    )
    return accepted_G, right_G


DROPS = GRID[::-1]  # the thresholds that are tried: the first drops nothing


@dataclass(frozen=True, slots=True)
class DropGuarantee:
    """At most `alpha` of the right samples are dropped below `drop`, but with probability `delta`.

    `drop` is 0 where nothing can be dropped. Of `n` right samples of calibration questions, one of
    each, `dropped` were, and `bound` is the Clopper-Pearson upper bound of their share.
    """

    drop: float
    alpha: float
    delta: float
    n: int
    dropped: int
    bound: float

    def __str__(self) -> str:
        if self.drop:
            return (
                f"samples below {self.drop:g} are dropped: at most {self.alpha:.1%} of the right "
                f"ones with probability {1 - self.delta:.1%} ({self.dropped} of {self.n} were)"
            )
        needed = least_points(1 - self.alpha, self.delta)
        return (
            f"no sample is dropped: {self.n} right samples cannot show that at most "
            f"{self.alpha:.1%} of them would be" + (f" ({needed} could)" if self.n < needed else "")
        )


def few_dropped(lowest_N: ArrayLike, alpha: float, delta: float = 0.05) -> DropGuarantee:
    """Choose the largest threshold that drops few right samples.

    Thresholds are tested from low to high, each with an exact binomial test of "more than alpha of
    the right samples are dropped"; the first that cannot be rejected ends the sequence.

    Args:
        lowest_N: the lowest confidence along each right sample, one sample per question.
        alpha: accepted share of right samples that are dropped, in (0, 1).
        delta: accepted probability that more are, in (0, 1).

    Raises:
        UserInputError: an impossible alpha or delta.
    """
    check_level(alpha, "--drop")
    check_level(delta, "delta")
    low_N = np.sort(np.asarray(lowest_N, dtype=np.float64))
    dropped_G = np.searchsorted(low_N, DROPS, side="left")
    passes_G = p_value(len(low_N) - dropped_G, np.full(len(DROPS), len(low_N)), 1 - alpha) <= delta
    at = int(max(walk(passes_G[None], np.zeros(1, dtype=np.intp))[0], 0))
    dropped = int(dropped_G[at])
    bound = 1 - float(lower_bound(len(low_N) - dropped, len(low_N), delta)) if len(low_N) else 1.0
    return DropGuarantee(float(DROPS[at]), alpha, delta, len(low_N), dropped, bound)
