"""What a replay found: curves per question, their means with intervals, and differences.

Shapes: Q questions, B budgets, V numbers of votes (0 to the largest budget), D draws (entry 0 is
the data themselves).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grace.errors import UserInputError
from grace.strategies import Policy, issued_samples
from grace.strategies.tally import Floats

Measure = Literal["accuracy", "samples", "tokens"]
_BLOCK = 4_000_000  # largest number of entries in one block of resample counts (32 MB)


class Estimate(NamedTuple):
    """A mean over questions with its bootstrap interval."""

    value: float
    low: float
    high: float

    @property
    def width(self) -> float:
        """Width of the interval."""
        return self.high - self.low


class Point(NamedTuple):
    """One policy at one budget; `gain` is its accuracy less the baseline's at that budget."""

    policy: str
    estimator: str | None
    budget: int
    threshold: float | None
    n: int
    accuracy: Estimate
    samples: Estimate
    tokens: Estimate
    gain: Estimate | None


@dataclass(frozen=True, slots=True)
class Curve:
    """One policy at all budgets: means over the orders, question by question.

    `used_BV[b, v]` is the share of decisions at a budget that took v samples.
    """

    policy: Policy
    budgets: tuple[int, ...]
    accuracy_BQ: Floats
    samples_BQ: Floats
    tokens_BQ: Floats
    used_BV: Floats

    def issued(self, parallel: int) -> Floats:
        """Return the mean number of samples issued at each budget in waves of `parallel`."""
        used_V = np.arange(self.used_BV.shape[1])
        per_budget = [
            share_V @ issued_samples(used_V, parallel, budget)
            for share_V, budget in zip(self.used_BV, self.budgets, strict=True)
        ]
        return np.array(per_budget)


class Scaling:
    """The curves of all policies on the same orders of the same questions.

    Intervals are percentiles of a bootstrap over questions; everything sees the same resamples.
    `times_Q` says how often each question was asked (by several seeds); its values then are sums.
    """

    def __init__(
        self,
        curves: Sequence[Curve],
        *,
        times_Q: Floats | None = None,
        resamples: int = 1000,
        seed: int = 0,
    ) -> None:
        self.curves = {curve.policy.name: curve for curve in curves}
        self.budgets = curves[0].budgets
        self.times_Q = np.ones(self.num_questions) if times_Q is None else times_Q
        self._resamples = resamples
        self._seed = seed

    @property
    def num_questions(self) -> int:
        """Q."""
        return len(next(iter(self.curves.values())).accuracy_BQ[0])

    def draws(self, policy: str, budget: int, measure: Measure = "accuracy") -> Floats:
        """Return the mean over questions (entry 0) and over every resample of them.

        Raises:
            UserInputError: a policy or a budget that was not replayed.
        """
        if policy not in self.curves:
            raise UserInputError(f"{policy!r} was not replayed; known: {', '.join(self.curves)}")
        if budget not in self.budgets:
            known = ", ".join(map(str, self.budgets))
            raise UserInputError(f"budget {budget} was not replayed; known: {known}")
        place = (
            list(self.curves).index(policy),
            self.budgets.index(budget),
            MEASURES.index(measure),
        )
        drawn: Floats = self._draws[:, *place]
        return drawn

    def estimate(self, policy: str, budget: int, measure: Measure = "accuracy") -> Estimate:
        """Return a mean with its 95 % interval."""
        return _estimate(self.draws(policy, budget, measure))

    def difference(
        self, policy: str, baseline: str, budget: int, measure: Measure = "accuracy"
    ) -> Estimate:
        """Return the paired difference policy - baseline at one budget, with its 95 % interval."""
        return _estimate(
            self.draws(policy, budget, measure) - self.draws(baseline, budget, measure)
        )

    def points(self, baseline: str = "sc") -> list[Point]:
        """Return every policy at every budget; without the baseline there are no gains."""
        return [
            Point(
                policy=name,
                estimator=curve.policy.estimator,
                budget=budget,
                threshold=getattr(curve.policy.strategy, "threshold", None),
                n=self.num_questions,
                accuracy=self.estimate(name, budget, "accuracy"),
                samples=self.estimate(name, budget, "samples"),
                tokens=self.estimate(name, budget, "tokens"),
                gain=self.difference(name, baseline, budget) if baseline in self.curves else None,
            )
            for name, curve in self.curves.items()
            for budget in self.budgets
        ]

    @cached_property
    def _draws(self) -> Floats:
        """All means: (D, policies, budgets, measures)."""
        value_PMBQ = np.array(
            [(c.accuracy_BQ, c.samples_BQ, c.tokens_BQ) for c in self.curves.values()]
        )
        num = self.num_questions
        flat = value_PMBQ.swapaxes(1, 2).reshape(-1, num)
        parts = [flat.sum(axis=1)[None] / self.times_Q.sum()]
        rng = np.random.default_rng(self._seed)
        for size in _blocks(self._resamples, max(1, _BLOCK // num)):
            counts: NDArray[np.int64] = rng.multinomial(num, np.full(num, 1 / num), size=size)
            parts.append(counts @ flat.T / (counts @ self.times_Q)[:, None])
        shape = (len(self.curves), len(self.budgets), len(MEASURES))
        drawn: Floats = np.concatenate(parts).reshape(-1, *shape)
        return drawn


def joined(parts: Sequence[tuple[Sequence[str], Scaling]]) -> Scaling:
    """Return the mean over several seeds, with intervals over the questions of all of them.

    Args:
        parts: the question ids of each seed and its replay, all with the same budgets. A question
            that several seeds asked is resampled once for all of them. Policies that are not in
            every part are left out.

    Raises:
        UserInputError: no part, or the parts have different budgets.
    """
    if not parts or len({scaling.budgets for _, scaling in parts}) > 1:
        raise UserInputError(
            f"{len(parts)} replays with different budgets, or none, cannot be joined; "
            "scale every run with the same number of samples"
        )
    every = dict.fromkeys(name for names, _ in parts for name in names)
    place = {name: at for at, name in enumerate(every)}
    rows = [np.array([place[name] for name in names]) for names, _ in parts]
    times_U = np.bincount(np.concatenate(rows), minlength=len(place)).astype(np.float64)
    names = [n for n in parts[0][1].curves if all(n in scaling.curves for _, scaling in parts)]
    share_S = np.array([len(at) for at in rows]) / times_U.sum()
    curves = []
    for name in names:
        own = [scaling.curves[name] for _, scaling in parts]
        accuracy_BU, samples_BU, tokens_BU = np.zeros((3, len(own[0].budgets), len(place)))
        for curve, at in zip(own, rows, strict=True):
            accuracy_BU[:, at] += curve.accuracy_BQ
            samples_BU[:, at] += curve.samples_BQ
            tokens_BU[:, at] += curve.tokens_BQ
        used_BV: Floats = np.tensordot(share_S, [curve.used_BV for curve in own], 1)
        which, budgets = own[0].policy, own[0].budgets
        curves.append(Curve(which, budgets, accuracy_BU, samples_BU, tokens_BU, used_BV))
    return Scaling(curves, times_Q=times_U)


MEASURES: tuple[Measure, ...] = ("accuracy", "samples", "tokens")


def _blocks(total: int, most: int) -> list[int]:
    return [min(most, total - start) for start in range(0, total, most)]


def _estimate(value_D: Floats) -> Estimate:
    low, high = np.quantile(value_D[1:], [0.025, 0.975])
    return Estimate(float(value_D[0]), float(low), float(high))
