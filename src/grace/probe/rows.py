"""What all fits share: labels, folds grouped by question, sources, and features that vary.

Shapes: N rows, D features.
"""

from __future__ import annotations

import collections
import heapq
import math
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grace.errors import DataError
from grace.metrics.calibration import sigmoid as sigmoid

Array = NDArray[Any]

FOLDS = 5  # fewer if there are fewer questions
FEWEST = 20  # answers of a source
SPREAD = 1e-3  # features with a smaller standard deviation in training are left out


def labels_of(correct: Sequence[bool], what: str = "training responses") -> NDArray[np.float64]:
    """Return 1.0 for right and 0.0 for wrong answers, shape (N,), to fit a confidence to."""
    label_N = np.array(correct, dtype=np.float64)
    if not len(label_N):
        raise DataError(f"all {what} are empty, or cut: raise sample.max_new_tokens")
    if label_N.min() == label_N.max():
        grade, other = ("right", "harder") if label_N.all() else ("wrong", "easier")
        raise DataError(
            f"all {len(label_N)} {what} are {grade}, so there is no confidence to learn; use "
            f"{other} questions, or another model, prompt or grader"
        )
    return label_N


def check_several(groups_N: Sequence[Hashable]) -> None:
    """Raise DataError unless there are at least two questions, which cross-validation needs."""
    if len(set(groups_N)) < 2:
        raise DataError("a probe needs answers to at least 2 training questions; raise data.train")


def assign_folds(groups_N: Sequence[Hashable], folds: int = FOLDS, seed: int = 0) -> Array:
    """Assign a fold to every row: rows of one group share a fold, and folds are of similar size."""
    rows_of: dict[Hashable, list[int]] = {}
    for row, group in enumerate(groups_N):
        rows_of.setdefault(group, []).append(row)
    names = list(rows_of)
    sizes = [(0, fold) for fold in range(min(folds, len(names)))]
    fold_N = np.empty(len(groups_N), dtype=np.int64)
    for index in np.random.default_rng(seed).permutation(len(names)):
        size, fold = heapq.heappop(sizes)
        rows = rows_of[names[index]]
        fold_N[rows] = fold
        heapq.heappush(sizes, (size + len(rows), fold))
    return fold_N


class Sourced(NamedTuple):
    """The group of an answer: its question, and the source that this is from."""

    source: str
    question: Hashable


def sourced(sources_N: Sequence[str], groups_N: Sequence[Hashable]) -> list[Sourced]:
    """Return the groups with their sources; sources of too few answers count as one together."""
    sizes = collections.Counter(sources_N)
    few = {source for source, size in sizes.items() if size < FEWEST}
    largest = max(sizes, key=sizes.__getitem__, default="")
    rest = "" if sum(sizes[source] for source in few) >= FEWEST else largest
    pairs = zip(sources_N, groups_N, strict=True)
    return [Sourced(rest if source in few else source, group) for source, group in pairs]


def sources_in(groups_N: Sequence[Hashable]) -> list[str]:
    """Return the source of each group, [] unless there are several."""
    found = [group.source if isinstance(group, Sourced) else "" for group in groups_N]
    return found if len(set(found)) > 1 else []


def weights_of(groups_N: Sequence[Hashable]) -> Array:
    """Return weights with a mean of 1 that give every source the same, whatever its size."""
    sources = sources_in(groups_N)
    if not sources:
        return np.ones(len(groups_N))
    names, place_N = np.unique(sources, return_inverse=True)
    size_S = np.bincount(place_N)
    weight_N: Array = len(sources) / (len(names) * size_S[place_N])
    return weight_N


def varying(features_NF: Array) -> Array:
    """Replace features that hardly vary by 0, so that no fit uses them."""
    # their mean would vary in its last bit, and a fit would give that a huge weight
    varying_NF: Array = np.where(features_NF.std(0) < SPREAD, 0.0, features_NF)
    return varying_NF


def spread(features_ND: Array) -> Array:
    """Return the standard deviation of every feature in float64; 1 for a constant one."""
    mean_D, spread_D = (of(axis=0, dtype=np.float64) for of in (features_ND.mean, features_ND.std))
    return np.where(spread_D <= 1e-6 * np.abs(mean_D) + 1e-30, 1.0, spread_D)


def base_rate(right_N: Array) -> float:
    """Return the log-odds of the share of right answers, as of one more answer, half right."""
    return math.log((right_N.sum() + 0.5) / (len(right_N) - right_N.sum() + 0.5))


def losses_at(logit: Array, right: Array) -> Array:
    """Return the log loss of each answer at these log-odds."""
    return losses_and_sigmoid(logit, right)[0]


def losses_and_sigmoid(logit: Array, right: Array) -> tuple[Array, Array]:
    """Return the log losses at some log-odds, and their sigmoid, by a single exponential."""
    small = np.exp(-np.abs(logit))  # `np.logaddexp` alone takes longer than both
    losses: Array = np.maximum(logit, 0) + np.log1p(small) - right * logit
    return losses, np.where(logit >= 0, 1.0, small) / (1 + small)
