"""What a threshold can be asked to guarantee, and what it then does.

Shapes: G thresholds, strict to loose; D independent draws of calibration data.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from grace.errors import UserInputError
from grace.thresholds.binomial import Floats, Indices, least_points, lower_bound, p_value

Truths = NDArray[np.bool_]

_TAILS = (1e-4, 1e-5, 1e-6)
GRID: tuple[float, ...] = (
    *(1 - tail for tail in reversed(_TAILS)),
    *(thousandths / 1000 for thousandths in range(999, 0, -1)),
    *_TAILS,
    0.0,
)
"""The thresholds that are tried, strict to loose. It must never depend on the calibration data."""

_RATE_SHARE = 0.1  # of delta, spent on how often two strategies differ when a margin is allowed


@dataclass(frozen=True, slots=True)
class AccuracyGuarantee:
    """At least `target` of the answers given at `tau` are right, except with probability `delta`.

    `tau` is None when no threshold can guarantee it. `accepted` of `n` calibration questions were
    answered and `right` of those were right, at tau or else at the strictest threshold tested.
    `bound` is the Clopper-Pearson lower bound of the accuracy there, at the level of its test.
    """

    tau: float | None
    target: float
    delta: float
    n: int
    accepted: int
    right: int
    bound: float

    @property
    def coverage(self) -> float:
        """Share of the calibration questions that are answered."""
        return self.accepted / self.n

    @property
    def needed(self) -> int:
        """Fewest answered questions that could guarantee this, were all of them right."""
        return least_points(self.target, self.delta)

    def __str__(self) -> str:
        seen = f"{self.right} of {self.accepted} right, {self.n} questions"
        promise = f"at least {self.target:.1%} right with probability {1 - self.delta:.0%}"
        if self.tau is not None:
            return (
                f"confidence >= {self.tau:g}: {promise}; answers {self.coverage:.1%} ({seen}, "
                f"bound {self.bound:.1%})"
            )
        if self.n < self.needed:
            return (
                f"no threshold can promise {promise} with {self.n} points: at least {self.needed} "
                "would be needed even if all were right"
            )
        return (
            f"no threshold can promise {promise} with {self.n} points: the strictest tested has "
            f"{seen}, bound {self.bound:.1%}; lower the target, or calibrate on more questions"
        )


@dataclass(frozen=True, slots=True)
class NoWorseGuarantee:
    """At `tau` accuracy is at most `margin` below the baseline's, except with probability `delta`.

    `tau` is None when no threshold can guarantee it. Of `n` calibration questions `better` were
    right where the baseline was wrong, and `worse` the other way round, at tau or else at the
    strictest threshold. `bound` is a lower bound of the difference in accuracy, cut off at 0.
    """

    tau: float | None
    margin: float
    delta: float
    n: int
    better: int
    worse: int
    bound: float

    def __str__(self) -> str:
        seen = f"{self.better} better, {self.worse} worse of {self.n} questions"
        below = f"at most {self.margin:.1%} below" if self.margin else "at least"
        promise = f"accuracy {below} the baseline's with probability {1 - self.delta:.0%}"
        if self.tau is not None:
            return f"confidence >= {self.tau:g}: {promise} ({seen})"
        return (
            f"no threshold can promise {promise}: the strictest tested has {seen}; "
            "allow a larger margin, or calibrate on more questions"
        )


Guarantee = AccuracyGuarantee | NoWorseGuarantee


class Accurate(NamedTuple):
    """To guarantee: at least `target` of the answers that are given are right.

    With `abstain` an answer is given only where it reaches tau; else every question gets one.
    Counts are of the questions answered at each threshold, and of those answered right.
    """

    target: float
    abstain: bool = True

    def check(self, name: str = "target") -> None:
        """Refuse a target outside (0, 1)."""
        check_level(self.target, name)

    def pick(self, answered_DG: ArrayLike, right_DG: ArrayLike, n: int, delta: float) -> Indices:
        """Return the index of the loosest threshold that is guaranteed in each draw, -1: none.

        A threshold that answers too few questions can never pass, however right they are. So when
        strict thresholds abstain, sequences start where enough questions are answered (a number
        that depends on n, target and delta alone): one early, one at half of the questions, each
        at half of delta. A sequence that fails at its first, smallest test then does not decide
        alone.
        """
        self.check()
        check_level(delta, "delta")
        answered_DG, starts = np.asarray(answered_DG), self._starts(n, delta)
        passes_DG = p_value(right_DG, answered_DG, self.target) <= delta / len(starts)
        picked = [walk(passes_DG, (answered_DG < start).sum(axis=1)) for start in starts]
        loosest: Indices = np.max(picked, axis=0)
        return loosest

    def guarantee(
        self,
        answered_G: ArrayLike,
        right_G: ArrayLike,
        n: int,
        *,
        delta: float = 0.05,
        grid: Sequence[float] = GRID,
    ) -> AccuracyGuarantee:
        """Choose tau by the counts among n calibration questions.

        Raises:
            UserInputError: an impossible target, delta or grid.
        """
        check_grid(grid)
        answered_G, right_G = np.asarray(answered_G), np.asarray(right_G)
        picked = self.pick(answered_G[None], right_G[None], n, delta)[0]
        starts = self._starts(n, delta)
        reached = np.flatnonzero(answered_G >= min(starts[0], answered_G.max()))
        at = picked if picked >= 0 else reached[0]
        answered, right = int(answered_G[at]), int(right_G[at])
        return AccuracyGuarantee(
            tau=float(grid[at]) if picked >= 0 else None,
            target=self.target,
            delta=delta,
            n=n,
            accepted=answered,
            right=right,
            bound=float(lower_bound(right, answered, delta / len(starts))),
        )

    def _starts(self, n: int, delta: float) -> list[int]:
        return starts(n, self.target, delta) if self.abstain else [0]


class NoWorse(NamedTuple):
    """To guarantee: accuracy is at most `margin` below that of a baseline on the same questions.

    Counts are of the questions right at each threshold that the baseline gets wrong, and of those
    wrong that it gets right. A margin of 0 asks for proof of no loss at all, which takes a
    strategy that is clearly better than the baseline.
    """

    margin: float = 0.0

    def check(self, name: str = "the margin") -> None:
        """Refuse a margin outside [0, 1)."""
        if not 0 <= self.margin < 1:
            raise UserInputError(
                f"{name} is {self.margin}; give a loss of accuracy in [0, 1), e.g. 0.01"
            )

    def pick(self, better_DG: ArrayLike, worse_DG: ArrayLike, n: int, delta: float) -> Indices:
        """Return the index of the loosest threshold that is guaranteed in each draw, -1: none."""
        self.check()
        check_level(delta, "delta")
        bound_DG = self._bound(np.asarray(better_DG), np.asarray(worse_DG), n, delta)
        return walk(bound_DG >= -self.margin, np.zeros(len(bound_DG), dtype=np.intp))

    def guarantee(
        self,
        better_G: ArrayLike,
        worse_G: ArrayLike,
        n: int,
        *,
        delta: float = 0.05,
        grid: Sequence[float] = GRID,
    ) -> NoWorseGuarantee:
        """Choose tau by the counts among n calibration questions.

        Raises:
            UserInputError: an impossible margin, delta or grid.
        """
        check_grid(grid)
        better_G, worse_G = np.asarray(better_G), np.asarray(worse_G)
        picked = self.pick(better_G[None], worse_G[None], n, delta)[0]
        at = max(picked, 0)
        return NoWorseGuarantee(
            tau=float(grid[at]) if picked >= 0 else None,
            margin=self.margin,
            delta=delta,
            n=n,
            better=int(better_G[at]),
            worse=int(worse_G[at]),
            bound=float(self._bound(better_G, worse_G, n, delta)[at]),
        )

    def _bound(self, better: Indices, worse: Indices, n: int, delta: float) -> Floats:
        """Return a lower bound of the difference in accuracy, 0 where it is shown to be no loss.

        Given that two strategies differ on a question, which of them is right is a coin with an
        unknown bias (McNemar 1947): Clopper-Pearson bounds it below. For a margin the rate of such
        questions is bounded above too, with a tenth of delta.
        """
        differ = better + worse
        spent = _RATE_SHARE if self.margin else 0.0
        wins = lower_bound(better, differ, delta * (1 - spent))
        rate = 1 - lower_bound(n - differ, n, delta * spent) if self.margin else 1.0
        loss: Floats = rate * (1 - 2 * wins)
        return np.minimum(-loss, 0.0)


def walk(passes_DG: Truths, first_D: Indices) -> Indices:
    """Return the last threshold before the first failure from `first_D` on, -1 for none."""
    untested_DG = np.arange(passes_DG.shape[1]) < first_D[:, None]
    fails_DG = ~(passes_DG | untested_DG)
    end_D = np.where(fails_DG.any(axis=1), fails_DG.argmax(axis=1), passes_DG.shape[1])
    return np.where(end_D > first_D, end_D - 1, -1)


def starts(n: int, target: float, delta: float) -> list[int]:
    """Return the numbers of answers at which sequences start: one or two, in ascending order."""
    half = max(least_points(target, delta), n // 2)
    early = _start_with_errors(target, delta / 2, half)
    return [early, half] if early < half else [half]


def _start_with_errors(target: float, delta: float, most: int) -> int:
    """Return the fewest answers, at most `most`, that pass with half of the errors allowed."""
    errors = 0
    for count in range(least_points(target, delta), most):
        if p_value(count - errors, count, target) <= delta:
            if errors >= count * (1 - target) / 2:
                return count
            errors += 1
    return most


def check_level(value: float, name: str) -> None:
    """Refuse a share that is not strictly between 0 and 1."""
    if not 0 < value < 1:
        raise UserInputError(f"{name} is {value}; give a share above 0 and below 1, e.g. 0.9")


def check_grid(grid: Sequence[float]) -> Sequence[float]:
    """Return the grid, refusing one that does not go from strict to loose."""
    if len(grid) == 0 or any(a <= b for a, b in itertools.pairwise(grid)):
        raise UserInputError(
            f"the grid of {len(grid)} thresholds must go from strict to loose; sort it, high first"
        )
    return grid
