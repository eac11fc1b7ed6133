"""Statistics of a report: intervals over questions and seeds, and paired differences.

All results on one test task are evaluated on the same resamples of its questions. So whatever
two results have in common cancels in their difference, whether they differ in estimator or in
training task.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grace.metrics import Resamples, interval, over_seeds
from grace.report.inputs import EstimatorResult, Key
from grace.report.names import COMPARED
from grace.report.rows import Ends

BOOTSTRAPPED = (*COMPARED, "adaptive_ece", "aurc")
"""Smooth ECE searches a kernel width in every resample, ten times the work of the others."""

Draws = NDArray[np.float64]


class SeedsEstimate(NamedTuple):
    """A mean over seeds, the standard deviation over them, and the interval of the mean."""

    mean: float
    spread: float
    interval: tuple[float, float]


class Paired(NamedTuple):
    """The means of both sides over what they share, and the interval of `a - b`."""

    a: float
    b: float
    interval: tuple[float, float]
    seeds: list[int]
    n: int

    @property
    def difference(self) -> float:
        """The mean of a minus that of b."""
        return self.a - self.b

    @property
    def clear(self) -> int:
        """The sign of the difference if its interval excludes 0, else 0."""
        low, high = self.interval
        return int(low > 0) - int(high < 0)

    def gap(self) -> dict[str, Any]:
        """Return the fields that all rows on a difference share."""
        return {"difference": self.difference, "interval": ends(self.interval), "n": self.n}

    def over_seeds(self) -> dict[str, Any]:
        """Return this and the seeds."""
        seed = self.seeds[0] if len(self.seeds) == 1 else None
        return {"seed": seed, "seeds": tuple(self.seeds), **self.gap()}


class Trials:
    """Every result of a report on shared resamples of its test task's questions."""

    def __init__(
        self, results: Sequence[EstimatorResult], *, bins: int, resamples: int, seed: int
    ) -> None:
        self._seed = seed
        self._questions = {result.key: _questions(result) for result in results}
        self._answered = {result.key: result.answered() for result in results}
        self._draws: dict[tuple[Key, frozenset[str] | None], dict[str, Draws]] = {}
        by_task: dict[str, list[Hashable]] = {}
        for result in results:
            by_task.setdefault(result.task, []).extend(self._questions[result.key])
        self._resamples = {
            task: Resamples(questions, resamples=resamples, seed=seed, bins=bins)
            for task, questions in by_task.items()
            if questions
        }

    def draws(
        self, result: EstimatorResult, only: frozenset[str] | None = None
    ) -> dict[str, Draws]:
        """Return each metric on a result (entry 0) and on the resamples of it.

        With `only`, over the responses with these ids.
        """
        at = self._answered[result.key]
        if only is not None and len(only) < len(at):
            at = [i for i in at if result.ids[i] in only]
        else:
            only = None
        if (result.key, only) not in self._draws:
            self._draws[result.key, only] = self._resamples[result.task].evaluate(
                np.array([result.confidence[i] for i in at], dtype=np.float64),
                [result.correct[i] for i in at],
                [self._questions[result.key][i] for i in at],
                BOOTSTRAPPED if only is None else tuple(COMPARED),
            )
        return self._draws[result.key, only]

    def estimate(self, results: Sequence[EstimatorResult], metric: str) -> SeedsEstimate:
        """Return a metric over the seeds of one estimator."""
        value_SR = [self.draws(result)[metric] for result in results if self._answered[result.key]]
        if not value_SR:
            return SeedsEstimate(math.nan, math.nan, (math.nan, math.nan))
        mean_R = over_seeds(value_SR, seed=self._seed)
        known = [value_R[0] for value_R in value_SR if not math.isnan(value_R[0])]
        spread = float(np.std(known, ddof=1)) if len(known) > 1 else math.nan
        return SeedsEstimate(float(mean_R[0]), spread, interval(metric, mean_R))

    def paired(
        self, a: Sequence[EstimatorResult], b: Sequence[EstimatorResult]
    ) -> dict[str, Paired]:
        """Compare two lists of results, one per seed, on the seeds and responses in both.

        Returns nothing when they share none.
        """
        other = {result.seed: result for result in b}
        sides, seeds, n = [], [], 0
        for result in a:
            if result.seed not in other or not (common := self._common(result, other[result.seed])):
                continue
            sides.append((self.draws(result, common), self.draws(other[result.seed], common)))
            seeds.append(result.seed)
            n += len(common)
        return {metric: self._paired(metric, sides, seeds, n) for metric in COMPARED if sides}

    def _common(self, a: EstimatorResult, b: EstimatorResult) -> frozenset[str]:
        """Return the ids of the responses for which both have a confidence."""
        if not a.ids or not b.ids:
            return frozenset()
        mine, theirs = ([r.ids[i] for i in self._answered[r.key]] for r in (a, b))
        return frozenset(mine).intersection(theirs)

    def _paired(
        self,
        metric: str,
        sides: Sequence[tuple[dict[str, Draws], dict[str, Draws]]],
        seeds: list[int],
        n: int,
    ) -> Paired:
        both = [(a[metric], b[metric]) for a, b in sides]
        defined = [(a, b) for a, b in both if not math.isnan(a[0] + b[0])]
        if not defined:
            return Paired(math.nan, math.nan, (math.nan, math.nan), seeds, n)
        gap_R = over_seeds([a - b for a, b in defined], seed=self._seed)
        mean_a, mean_b = (
            float(np.mean([side[0] for side in values])) for values in zip(*defined, strict=True)
        )
        return Paired(mean_a, mean_b, interval(metric, gap_R, difference=True), seeds, n)


def leader(
    mean: dict[str, float], better: int, compare: Callable[[str, str], Paired | None]
) -> str | None:
    """Return the estimator with the best mean that no other is clearly better than, if any.

    Means can mislead where estimators rate different responses; then the paired difference,
    over the responses that both rate, decides.
    """
    known = {name: value for name, value in mean.items() if not math.isnan(value)}
    if not known:
        return None
    first, *others = sorted(known, key=lambda name: (-better * known[name], name))
    for name in others:
        pair = compare(name, first)
        if pair is not None and pair.clear == better:
            first = name
    return first


def marks(
    mean: dict[str, float], better: int, compare: Callable[[str, str], Paired | None]
) -> dict[str, str]:
    """Return "best", "tied", "second" or "tied second" for the estimators that earn one.

    "best" needs a paired interval that excludes 0 against every other estimator, so it needs no
    correction for many comparisons. All that are not clearly worse than the leader are "tied"
    (unless that is everyone: then nothing is marked). Only when one is best is there a second,
    by the same rule among the rest.
    """
    left = {name: value for name, value in mean.items() if not math.isnan(value)}
    found: dict[str, str] = {}
    for alone, shared in (("best", "tied"), ("second", "tied second")):
        first = leader(left, better, compare)
        if first is None:
            break
        group = [first, *(n for n in left if n != first and not _worse(compare(n, first), better))]
        if len(group) == len(left):
            break
        found |= dict.fromkeys(group, alone if len(group) == 1 else shared)
        if len(group) > 1:
            break
        del left[first]
    return found


def _worse(pair: Paired | None, better: int) -> bool:
    return pair is not None and pair.clear == -better


def ends(interval: tuple[float, float]) -> Ends | None:
    """Return an interval as rows hold it."""
    return None if math.isnan(interval[0]) else interval


def question_of(response_id: str) -> str:
    """Return the question of a response id "<question>#<sample>"."""
    return response_id.rpartition("#")[0] or response_id


def _questions(result: EstimatorResult) -> list[Hashable]:
    """Return the question of each response; without ids, no question is shared."""
    if result.ids:
        return [question_of(response_id) for response_id in result.ids]
    return [(result.key, at) for at in range(len(result.confidence))]
