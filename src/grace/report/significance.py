"""Intervals over questions and seeds, paired differences, and the marks that follow from them.

All results on one test task are evaluated on the same resamples of its questions. So whatever
two results have in common cancels in their difference, whether they differ in estimator or in
training task.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grace.metrics import Estimate, Resamples, calibration, difference
from grace.metrics.resampling import estimated
from grace.report.inputs import EstimatorResult, Key
from grace.report.names import COMPARED
from grace.report.rows import Interval

BOOTSTRAPPED = (*COMPARED, "aurc")
"""Without adaptive and smooth ECE, whose bins and kernel move with the resample: too wide."""

NOTHING = Estimate(math.nan, math.nan, math.nan)

Draws = NDArray[np.float64]


class Paired(NamedTuple):
    """Two sides in one metric: their means over what they share, and the estimate of `a - b`."""

    a: float
    b: float
    estimate: Estimate
    seeds: list[int]
    n: int

    def gap(self) -> dict[str, Any]:
        """Return the fields that every row about a difference has."""
        interval = or_none(self.estimate)
        return {"difference": self.estimate.value, "interval": interval, "n": self.n}

    def over_seeds(self) -> dict[str, Any]:
        """Return the fields of a row about a difference over seeds."""
        seed = self.seeds[0] if len(self.seeds) == 1 else None
        return {"seed": seed, "seeds": tuple(self.seeds), **self.gap()}


Compare = Callable[[str, str], Paired | None]
"""Returns the paired difference of two estimators in one metric, None if they share no response."""


class Trials:
    """All results of a report on shared resamples of their test task's questions."""

    def __init__(
        self, results: Sequence[EstimatorResult], *, bins: int, resamples: int, seed: int
    ) -> None:
        self._seed, self._bins = seed, bins
        self._draws: dict[tuple[Key, frozenset[str] | None], dict[str, Draws]] = {}
        self._estimates: dict[tuple[int, ...], tuple[Estimate, float]] = {}
        by_task: dict[str, list[Hashable]] = {}
        for result in results:
            by_task.setdefault(result.task, []).extend(_questions(result))
        self._resamples = {
            task: Resamples(questions, resamples=resamples, seed=seed, bins=bins)
            for task, questions in by_task.items()
            if questions
        }

    def draws(
        self, result: EstimatorResult, only: frozenset[str] | None = None
    ) -> dict[str, Draws]:
        """Return the draws of each metric on a result; entry 0 is that of the data."""
        at = result.answered()
        if only is not None and len(only) < len(at):
            at = [i for i in at if result.ids[i] in only]
        else:
            only = None
        if (result.key, only) not in self._draws:
            questions = _questions(result)
            self._draws[result.key, only] = self._resamples[result.task].evaluate(
                np.array([result.confidence[i] for i in at], dtype=np.float64),
                [result.correct[i] for i in at],
                [questions[i] for i in at],
                BOOTSTRAPPED if only is None else tuple(COMPARED),
            )
        return self._draws[result.key, only]

    def estimate(self, results: Sequence[EstimatorResult], metric: str) -> Estimate:
        """Return a metric over the seeds of one estimator, nan without any confidence."""
        draws_S = [self.draws(result)[metric] for result in results if result.answered()]
        return self._estimated(draws_S, self._seed)[0] if draws_S else NOTHING

    def _estimated(self, draws_S: Sequence[Draws], seed: int) -> tuple[Estimate, float]:
        """Estimate once what stands beside many others."""
        key = tuple(map(id, draws_S))  # of arrays that `_draws` keeps
        if key not in self._estimates:
            self._estimates[key] = estimated(draws_S, seed)
        return self._estimates[key]

    def p_calibrated(self, results: Sequence[EstimatorResult]) -> float | None:
        """Test the confidences of all seeds together for calibration; None without any."""
        names = {result.key: _questions(result) for result in results}
        rated = [
            (result.confidence[at], result.correct[at], names[result.key][at])
            for result in results
            for at in result.answered()
        ]
        if not rated:
            return None
        confidence, correct, questions = zip(*rated, strict=True)
        return calibration(confidence, correct, questions, bins=self._bins).p_calibrated

    def paired(
        self, a: Sequence[EstimatorResult], b: Sequence[EstimatorResult]
    ) -> dict[str, Paired]:
        """Compare two lists of results, one per seed, on the seeds and responses in both."""
        other = {result.seed: result for result in b}
        sides, seeds, n = [], [], 0
        for result in a:
            common = _common(result, other[result.seed]) if result.seed in other else None
            if common:
                sides.append((self.draws(result, common), self.draws(other[result.seed], common)))
                seeds.append(result.seed)
                n += len(common)
        return {metric: self._paired(metric, sides, seeds, n) for metric in COMPARED if sides}

    def _paired(
        self,
        metric: str,
        sides: Sequence[tuple[dict[str, Draws], dict[str, Draws]]],
        seeds: list[int],
        n: int,
    ) -> Paired:
        both = [(a[metric], b[metric]) for a, b in sides]
        defined = [(a, b) for a, b in both if not np.isnan(a[0] + b[0]).any()]
        if not defined:
            return Paired(math.nan, math.nan, NOTHING, seeds, n)
        a_S, b_S = zip(*defined, strict=True)
        mean_a, mean_b = (self._estimated(side_S, self._seed)[0].value for side_S in (a_S, b_S))
        gap = difference(a_S, b_S, seed=self._seed, estimated=self._estimated)
        return Paired(mean_a, mean_b, gap, seeds, n)


def leader(mean: Mapping[str, float], better: int, compare: Compare) -> str | None:
    """Return the best that no other is clearly better than, in the responses that both rate."""
    defined = {name: value for name, value in mean.items() if not math.isnan(value)}
    if not defined:
        return None
    first, *others = sorted(defined, key=lambda name: (-better * defined[name], name))
    for name in others:
        if _clear(compare(name, first)) == better:
            first = name
    return first


def marks(mean: Mapping[str, float], better: int, compare: Compare) -> dict[str, str]:
    """Mark estimators as "best", "tied", "second" or "tied second"; most have no mark.

    "best" needs a paired interval that excludes 0 against every other estimator, so it needs no
    correction for many comparisons. All that are not clearly worse than the leader are "tied"
    (unless that is everyone: then nothing is marked). Only when one is best is there a second,
    by the same rule among the rest.
    """
    left = {name: value for name, value in mean.items() if not math.isnan(value)}
    marked: dict[str, str] = {}
    for alone, shared in (("best", "tied"), ("second", "tied second")):
        first = leader(left, better, compare)
        if first is None:
            break
        group = [n for n in left if n == first or _clear(compare(n, first)) != -better]
        if len(group) == len(left):
            break
        marked |= dict.fromkeys(group, alone if len(group) == 1 else shared)
        if len(group) > 1:
            break
        del left[first]
    return marked


def _clear(pair: Paired | None) -> int:
    return 0 if pair is None else pair.estimate.clear


def or_none(found: Estimate) -> Interval | None:
    """Return the interval of an estimate, None if it is undefined."""
    return None if math.isnan(found.low) else found.interval


def _common(a: EstimatorResult, b: EstimatorResult) -> frozenset[str]:
    """Return the ids of the responses for which both have a confidence."""
    if not a.ids or not b.ids:
        return frozenset()
    ids_a, ids_b = ([result.ids[i] for i in result.answered()] for result in (a, b))
    return frozenset(ids_a).intersection(ids_b)


def question_of(response_id: str) -> str:
    """Return the question id in a response id "<question>#<sample>"."""
    return response_id.rpartition("#")[0] or response_id


def _questions(result: EstimatorResult) -> list[Hashable]:
    """Return the group or question of each response; without ids, no two share a question."""
    if result.groups:
        return list(result.groups)
    if result.ids:
        return [question_of(response_id) for response_id in result.ids]
    return [(result.key, at) for at in range(len(result.confidence))]
