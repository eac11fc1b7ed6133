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

import numpy as np
from numpy.typing import ArrayLike

from grace.errors import UserInputError
from grace.thresholds.binomial import Indices, least_points, lower_bound
from grace.thresholds.dropping import DropGuarantee, few_dropped
from grace.thresholds.guarantees import (
    GRID,
    AccuracyGuarantee,
    Accurate,
    Guarantee,
    NoWorse,
    NoWorseGuarantee,
    check_grid,
    check_level,
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
