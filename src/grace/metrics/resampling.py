"""Bootstrap intervals: resampling is a choice of counts, so no data are copied or sorted again.

Shapes: N responses, R resamples.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from grace.errors import UserInputError
from grace.metrics.kernels import METRICS, metric_names
from grace.metrics.samples import Floats, check, question_codes, scatter, sort_by_confidence

_CHUNK = 2_000_000
"""Largest number of entries in one block of resample counts (16 MB)."""


class Difference(NamedTuple):
    """`metric(a) - metric(b)` over the n responses in both, with its bootstrap interval."""

    difference: float
    low: float
    high: float
    n: int


def bootstrap(
    confidence: ArrayLike,
    correct: ArrayLike,
    metrics: str | Sequence[str] | None = None,
    *,
    resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
    bins: int = 10,
    questions: Sequence[Any] | None = None,
) -> dict[str, tuple[float, float]]:
    """Return percentile bootstrap intervals by metric name; all of `METRICS` when none is named.

    With `questions` (one per response) whole questions are resampled, which is what several
    responses per question need. Resamples where a metric is undefined are left out. ECE and its
    variants are biased upwards, in a resample more than in the data, so their intervals reach
    further up than down and can lie above a very small value.
    """
    data = sort_by_confidence(*check(confidence, correct, bins), bins)
    names = metric_names(metrics)
    found: dict[str, list[Floats]] = {name: [] for name in names}
    for counts_RN in _resample(len(data.confidence_N), resamples, seed, questions):
        counts_RN = counts_RN[:, data.order_N]
        for name in names:
            found[name].append(METRICS[name](data, counts_RN))
    return {name: _interval(np.concatenate(found[name]), level) for name in names}


def paired_bootstrap(
    a_confidence: ArrayLike,
    a_correct: ArrayLike,
    b_confidence: ArrayLike,
    b_correct: ArrayLike,
    metric: str,
    *,
    a_ids: Sequence[Any] | None = None,
    b_ids: Sequence[Any] | None = None,
    a_questions: Sequence[Any] | None = None,
    resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
    bins: int = 10,
) -> Difference:
    """Return metric(a) - metric(b) with an interval; both see the same resamples.

    With `a_ids` and `b_ids` (unique ids) only the responses in both are compared; without them
    the rows must already be aligned. With `a_questions` (one per response of a) whole questions
    are resampled.

    Raises:
        UserInputError: no common id, a repeated id, or different lengths without ids.
    """
    a = check(a_confidence, a_correct, bins)
    b = check(b_confidence, b_correct, bins)
    rows_a, rows_b = _align(len(a[0]), len(b[0]), a_ids, b_ids)
    sides = [
        sort_by_confidence(a[0][rows_a], a[1][rows_a], bins),
        sort_by_confidence(b[0][rows_b], b[1][rows_b], bins),
    ]
    (name,) = metric_names(metric)
    ones = np.ones((1, len(rows_a)))
    value = [float(METRICS[name](data, ones)[0]) for data in sides]
    gaps: list[Floats] = []
    questions = None if a_questions is None else [a_questions[row] for row in rows_a]
    for counts_RN in _resample(len(rows_a), resamples, seed, questions):
        left, right = (METRICS[name](data, counts_RN[:, data.order_N]) for data in sides)
        gaps.append(left - right)
    low, high = _interval(np.concatenate(gaps), level)
    return Difference(value[0] - value[1], low, high, len(rows_a))


def _resample(
    n: int, resamples: int, seed: int, questions: Sequence[Any] | None
) -> Iterator[Floats]:
    code_N = None if questions is None else question_codes(questions, n)
    units = n if code_N is None else int(code_N.max()) + 1
    rng = np.random.default_rng(seed)
    step = max(1, _CHUNK // n)
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        drawn = rng.integers(units, size=(rows, units))
        counts = scatter(drawn, np.ones(drawn.shape), units)
        yield counts if code_N is None else counts[:, code_N]


def _interval(value_R: Floats, level: float) -> tuple[float, float]:
    value_R = value_R[~np.isnan(value_R)]
    if not len(value_R):
        return math.nan, math.nan
    low, high = np.quantile(value_R, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _align(
    num_a: int, num_b: int, a_ids: Sequence[Any] | None, b_ids: Sequence[Any] | None
) -> tuple[list[int], list[int]]:
    if a_ids is None or b_ids is None:
        if num_a != num_b:
            raise UserInputError(
                f"{num_a} responses against {num_b}; give a_ids and b_ids to join them"
            )
        return list(range(num_a)), list(range(num_a))
    at_a, at_b = _index(a_ids, num_a), _index(b_ids, num_b)
    common = [key for key in at_a if key in at_b]
    if not common:
        raise UserInputError("the two sides share no id, so they cannot be compared")
    return [at_a[key] for key in common], [at_b[key] for key in common]


def _index(ids: Sequence[Any], n: int) -> dict[Any, int]:
    if len(ids) != n or len(set(ids)) != n:
        raise UserInputError(f"{len(set(ids))} different ids for {n} responses; give one each")
    return {key: at for at, key in enumerate(ids)}
