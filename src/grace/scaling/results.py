"""The results of a replay: curves per question, their means with intervals, and differences.

Shapes: Q questions, S samples, B budgets, V numbers of votes (0 to the largest budget), D draws
(entry 0 is the data themselves), P policies, M measures.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from grace.errors import UserInputError
from grace.metrics import Estimate, Resamples, estimate, over_seeds, percentiles, won_pairs
from grace.scaling.pool import Pool
from grace.strategies.tally import Floats

Measure = Literal["accuracy", "samples", "tokens"]
MEASURES: tuple[Measure, ...] = ("accuracy", "samples", "tokens")


class Reach(NamedTuple):
    """The samples that a policy needs for the accuracy of a reference at a budget."""

    accuracy: Estimate
    reference_samples: Estimate
    samples: Estimate  # inf where the policy's curve does not reach the accuracy
    saved: Estimate  # paired difference to the samples of the reference
    reached: float  # share of resamples in which the curve reaches it


@dataclass(frozen=True, slots=True)
class Curve:
    """One policy at all budgets: means over the orders, question by question."""

    name: str
    estimator: str | None  # if it reads one
    threshold: float | None  # if it has one
    budgets: tuple[int, ...]
    value_MBQ: Floats  # of `MEASURES`
    used_BV: Floats  # share of decisions that took v samples

    def cut(self, budgets: tuple[int, ...]) -> Curve:
        """Return the curve at some of its budgets."""
        rows = [self.budgets.index(budget) for budget in budgets]
        return dataclasses.replace(
            self,
            budgets=budgets,
            value_MBQ=self.value_MBQ[:, rows],
            used_BV=self.used_BV[rows, : max(budgets) + 1],
        )


class Scaling:
    """The curves of all policies on the same orders and resamples of questions, of some seeds."""

    def __init__(
        self, seeds: Sequence[Sequence[Curve]], questions: Sequence[Sequence[Hashable]] = ()
    ) -> None:
        """Keep the curves and budgets that all seeds have; draws are computed when needed."""
        named = [{curve.name: curve for curve in curves} for curves in seeds]
        names = [name for name in named[0] if all(name in each for each in named)]
        every = [curves[0].budgets for curves in seeds]
        self.budgets = tuple(b for b in every[0] if all(b in each for each in every))
        self._seeds = [{name: each[name].cut(self.budgets) for name in names} for each in named]
        self.curves = self._seeds[0]
        self._questions = questions or [range(seeds[0][0].value_MBQ.shape[-1])]

    @property
    def num_questions(self) -> int:
        """The number of different questions."""
        return len({name for part in self._questions for name in part})

    def used(self, policy: str, budget: int) -> Floats:
        """Return the shares of decisions at a budget that took 0, 1, 2, ... samples: (V,)."""
        at = self._place(policy, budget)[1]
        mean: Floats = np.mean([part[policy].used_BV[at] for part in self._seeds], axis=0)
        return mean

    def draws(self, policy: str, budget: int, measure: Measure = "accuracy") -> Floats:
        """Return the mean over questions and seeds (entry 0) and its draws: (D,)."""
        return over_seeds(self._each_seed(policy, budget, measure)).round(12)

    def estimate(self, policy: str, budget: int, measure: Measure = "accuracy") -> Estimate:
        """Return a mean with its 95% interval."""
        value, low, high = percentiles(self.draws(policy, budget, measure))
        ends = {"accuracy": (0.0, 1.0), "samples": (1.0, float(budget)), "tokens": (0.0, np.inf)}
        least, most = ends[measure]
        return Estimate(value, max(low, least), min(high, most))

    def difference(
        self, policy: str, baseline: str, budget: int, measure: Measure = "accuracy"
    ) -> Estimate:
        """Return the paired difference policy - baseline at one budget, with its 95% interval."""
        sides = (self._each_seed(name, budget, measure) for name in (policy, baseline))
        return percentiles(over_seeds(np.subtract(*sides)).round(12))

    def reach(self, policy: str, reference: str, budget: int) -> Reach:
        """Return how many samples a policy needs for the accuracy of another at a budget.

        Between two budgets the curve is a straight line: the value of a mix of both budgets, drawn
        question by question. The first place where the curve reaches the accuracy counts.
        """
        target_D = self.draws(reference, budget)
        spent_D = self.draws(reference, budget, "samples")
        place = self._place(policy, budget)[0]
        drawn_SDF = self._draws[:, :, place].reshape(*self._draws.shape[:2], -1)
        curve_DBM = over_seeds(drawn_SDF).round(12).reshape(-1, *self._draws.shape[3:])
        needed_D = _first_reach(curve_DBM[:, :, 0], curve_DBM[:, :, 1], target_D)
        return Reach(
            accuracy=self.estimate(reference, budget),
            reference_samples=self.estimate(reference, budget, "samples"),
            samples=percentiles(needed_D),
            saved=percentiles(spent_D - needed_D),
            reached=float(np.isfinite(needed_D[1:]).mean()),
        )

    def spread(self, policy: str, budget: int) -> float | None:
        """Return the standard deviation of the accuracy over seeds, None for one seed."""
        value_S = self._each_seed(policy, budget, "accuracy")[:, 0]
        return float(np.std(value_S, ddof=1)) if len(value_S) > 1 else None

    def _each_seed(self, policy: str, budget: int, measure: Measure) -> Floats:
        """Return the draws of each seed: (S, D)."""
        return self._draws[:, :, *self._place(policy, budget), MEASURES.index(measure)]

    def _place(self, policy: str, budget: int) -> tuple[int, int]:
        if policy not in self.curves or budget not in self.budgets:
            raise UserInputError(
                f"{policy!r} was not replayed with a budget of {budget}; there are "
                f"{', '.join(self.curves)} with {', '.join(map(str, self.budgets))}"
            )
        return list(self.curves).index(policy), self.budgets.index(budget)

    @cached_property
    def _draws(self) -> Floats:
        """The draws of each seed: (S, D, P, B, M)."""
        resamples = Resamples([question for part in self._questions for question in part])
        drawn_SDF = []
        for questions, part in zip(self._questions, self._seeds, strict=True):
            value_PMBQ = np.array([curve.value_MBQ for curve in part.values()])
            top_FQ = value_PMBQ.swapaxes(1, 2).reshape(-1, value_PMBQ.shape[-1])
            drawn_SDF.append(resamples.ratios(questions, top_FQ))
        shape = (-1, len(self.curves), len(self.budgets), len(MEASURES))
        return np.array([drawn_DF.reshape(shape) for drawn_DF in drawn_SDF])


def _first_reach(accuracy_DB: Floats, samples_DB: Floats, target_D: Floats) -> Floats:
    """Return the number of samples at which each curve reaches the accuracy, inf if never: (D,)."""
    reached_DB = accuracy_DB >= target_D[:, None]
    row_D, at_D = np.arange(len(target_D)), reached_DB.argmax(axis=1)
    before_D = np.maximum(at_D - 1, 0)
    low_D, high_D = accuracy_DB[row_D, before_D], accuracy_DB[row_D, at_D]
    rise_D = np.where(high_D > low_D, high_D - low_D, 1.0)
    share_D = np.where(at_D > 0, (target_D - low_D) / rise_D, 0.0)
    from_D, to_D = samples_DB[row_D, before_D], samples_DB[row_D, at_D]
    return np.where(reached_DB.any(axis=1), from_D + share_D * (to_D - from_D), np.inf)


# --- within-question discrimination of a pool's confidences, question by question


class PairWins(NamedTuple):
    """The pairs of a right and a wrong sample of each question."""

    wins_Q: Floats  # in which the right one is surer; a tie is half a win
    pairs_Q: Floats


def pair_wins(pool: Pool, estimator: str) -> PairWins:
    """Count the pairs and the wins of an estimator; samples without a confidence are in no pair."""
    value_QS = pool.confidence(estimator)
    rated_QS = ~np.isnan(value_QS)
    rated = (value_QS[rated_QS], pool.correct_QS[rated_QS], np.nonzero(rated_QS)[0])
    return PairWins(*won_pairs(*rated, pool.num_questions))


def discrimination(
    questions: Sequence[Sequence[Hashable]], parts: Sequence[PairWins]
) -> Estimate | None:
    """Return the mean of WQD over seeds with its interval over questions and seeds.

    None when no question of any seed has both a right and a wrong sample. Source: Taubenfeld et
    al. 2025, arXiv 2502.06233, section 5; see `grace.metrics.wqd`.
    """
    resamples = Resamples([name for part in questions for name in part])
    found = estimate(
        [
            resamples.ratios(own, part.wins_Q[None], part.pairs_Q)[:, 0]
            for own, part in zip(questions, parts, strict=True)
        ]
    )
    return None if np.isnan(found.value) else found
