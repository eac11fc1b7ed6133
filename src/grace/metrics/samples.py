"""Confidences and correctness: checks, sorting, and sums over bins and ties.

Shapes: N responses, R resamples, T groups of tied confidences.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from grace.errors import UserInputError

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]
MOST_BINS = 1000


class Sorted(NamedTuple):
    """The data by rising confidence; each run of ties begins at one of `starts_T`."""

    confidence_N: Floats
    correct_N: Floats
    starts_T: Indices
    order_N: Indices
    bins: int


def check(
    confidence: ArrayLike, correct: ArrayLike, bins: int = 10, *, bounded: bool = True
) -> tuple[Floats, Floats]:
    """Return both as float64 arrays of shape (N,)."""
    confidence_N = np.asarray(confidence, dtype=np.float64)
    correct_N = np.asarray(correct, dtype=np.float64)
    if confidence_N.ndim != 1 or confidence_N.shape != correct_N.shape:
        raise UserInputError(
            f"confidence has shape {confidence_N.shape} and correct {correct_N.shape}; "
            "give two lists of the same length"
        )
    if not len(confidence_N):
        raise UserInputError("there are 0 responses to evaluate; give at least one")
    inside_N = (confidence_N >= 0) & (confidence_N <= 1)
    bad = ~(inside_N if bounded else np.isfinite(confidence_N))
    if bad.any():
        at = int(np.argmax(bad))
        wanted = "a probability in [0, 1]" if bounded else "a finite number"
        raise UserInputError(
            f"confidence[{at}] is {confidence_N[at]}, expected {wanted}; "
            "leave out responses without a confidence"
        )
    wrong = (correct_N != 0) & (correct_N != 1)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise UserInputError(f"correct[{at}] is {correct_N[at]}, expected true or false")
    if not 1 <= bins <= MOST_BINS:
        raise UserInputError(f"bins is {bins}, expected 1 to {MOST_BINS}")
    return confidence_N, correct_N


def sort_by_confidence(confidence_N: Floats, correct_N: Floats, bins: int = 10) -> Sorted:
    """Sort by rising confidence and find the runs of ties."""
    order_N = np.lexsort((correct_N, confidence_N))
    confidence_N = confidence_N[order_N]
    starts_T = np.flatnonzero(np.diff(confidence_N, prepend=-1.0))
    return Sorted(confidence_N, correct_N[order_N], starts_T, order_N, bins)


def bin_index(confidence_N: Floats, bins: int) -> Indices:
    """Return the equal-width bin of each confidence: [k/bins, (k+1)/bins), the last one closed."""
    edges = np.arange(1, bins) / bins
    return np.searchsorted(edges, confidence_N, side="right")


def scatter(index_RN: Indices, value_RN: Floats, size: int) -> Floats:
    """Add up each row's values by index: (R, N) to (R, size)."""
    flat = (np.arange(len(index_RN))[:, None] * size + index_RN).ravel()
    total = np.bincount(flat, weights=value_RN.ravel(), minlength=len(index_RN) * size)
    return total.astype(np.float64).reshape(len(index_RN), size)


def check_questions(questions: Sequence[Any], n: int) -> None:
    """Raise UserInputError unless there is one question id for each of n responses."""
    if len(questions) != n:
        raise UserInputError(f"{len(questions)} question ids for {n} responses; give one each")
