"""Thresholds with a guarantee: tau is chosen on calibration data by Learn then Test.

With probability at least 1 - delta over the draw of the calibration data, the guarantee holds for
new questions from the same source. `docs/thresholds.md` explains what that means, and what it does
not mean.

The grid of thresholds is fixed in advance. Each is a null hypothesis, "the guarantee is false at
this threshold", with an exact binomial p-value. They are tested from strict to loose, and the first
that cannot be rejected ends the sequence: this needs no correction for the number of thresholds.
The last one rejected is tau.

With several sources of questions, the hypothesis at a threshold is "the guarantee is false in some
source", and it is rejected where the test of every source rejects at the full level: an
intersection-union test, which needs no correction for the number of sources, either.

Sources: Angelopoulos et al. 2021 (arXiv 2110.01052), Learn then Test; Bauer 1991 (Statistics in
Medicine 10), tests in a fixed sequence; Clopper and Pearson 1934 (Biometrika 26), exact bounds;
Berger 1982 (Technometrics 24), intersection-union tests.

Shapes: N questions, G thresholds, S sources, D independent draws of calibration data.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from grace.errors import UserInputError
from grace.metrics.kernels import check

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]
SHARES = 2**53  # a bound is a multiple of 1 / SHARES


def lower_bound(right: int, n: int, delta: float) -> float:
    """Return the one-sided Clopper-Pearson lower bound of the share right / n.

    It is the share at which as many right ones, or more, have probability delta.
    """

    def tail(share: int) -> float:
        return float(_tails(n, share / SHARES)[right])

    return bisect.bisect_left(range(SHARES), delta, key=tail) / SHARES if right else 0.0


def p_value(right: ArrayLike, n: ArrayLike, target: float) -> Floats:
    """Return P(Binomial(n, target) >= right)."""
    right, n = np.broadcast_arrays(right, n)
    tail = np.empty(n.shape)
    for count in np.unique(n):
        here = n == count
        tail[here] = _tails(int(count), target)[right[here]]
    return tail


def least_points(target: float, delta: float) -> int:
    """Return how many answers a guarantee needs at least, if all of them are right."""
    return math.ceil(math.log(delta) / math.log(target) - 1e-9)


def _tails(n: int, share: float) -> Floats:
    """Return P(Binomial(n, share) >= k) for k = 0 to n: (n + 1,).

    The probability of each k is the product of ratios of neighbours from the likeliest k on, which
    keeps the error of their logarithms small.
    """
    k = np.arange(1, n + 1)
    log_ratio = np.log((n + 1 - k) / k) + (math.log(share) - math.log1p(-share))
    mode = min(int((n + 1) * share), n)
    below, above = -log_ratio[:mode][::-1].cumsum()[::-1], log_ratio[mode:].cumsum()
    mass = np.exp(np.concatenate([below, [0.0], above]))
    tails: Floats = mass[::-1].cumsum()[::-1] / mass.sum()
    return tails


_TAILS = (1e-4, 1e-5, 1e-6)
GRID: tuple[float, ...] = (
    *(1 - tail for tail in reversed(_TAILS)),
    *(thousandths / 1000 for thousandths in range(999, 0, -1)),
    *_TAILS,
    0.0,
)
"""The thresholds to test, strict to loose. They must not depend on the calibration data."""
OTHERS = "others"  # questions without a source, where others have one


class Counts(NamedTuple):
    """Of `n` questions, how many are answered at each threshold, and how many rightly: (G,)."""

    accepted_G: Indices
    right_G: Indices
    n: int


@dataclass(frozen=True, slots=True)
class SourceAccuracy:
    """What a threshold does in one source of questions; fields as those of `AccuracyGuarantee`.

    `covered` is false of a source with fewer questions than a guarantee needs: it took no part.
    """

    source: str
    n: int
    accepted: int
    right: int
    bound: float
    covered: bool = True


@dataclass(frozen=True, slots=True)
class AccuracyGuarantee:
    """At least `target` of the answers given at `tau` are right, except with probability `delta`.

    `tau` is None when no threshold can guarantee it. At tau, or else at the strictest threshold
    tested, `accepted` of `n` calibration questions were answered and `right` of those were right.
    `bound` is the Clopper-Pearson lower bound of the accuracy there, at the level of the test. With
    `sources` the guarantee holds in each of those that are covered, so in every mixture of them;
    `n`, `accepted` and `right` are their sums, and `bound` is the lowest of theirs.
    """

    tau: float | None
    target: float
    delta: float
    n: int
    accepted: int
    right: int
    bound: float
    sources: tuple[SourceAccuracy, ...] = ()

    @property
    def coverage(self) -> float:
        """The share of the calibration questions that are answered."""
        return self.accepted / self.n

    @property
    def needed(self) -> int:
        """The fewest answered questions that could guarantee this, if all of them were right."""
        return least_points(self.target, self.delta)

    def __str__(self) -> str:
        covered = [one for one in self.sources if one.covered]
        named = ", ".join(one.source for one in covered)
        where = "" if not self.sources else f" in each of {named}" if named else " in every source"
        sure = f"with probability {_sure(self.delta)}"
        promise = f"at least {_percent(self.target)} right{where} {sure}"
        if self.tau is None:
            return f"no threshold can promise {promise} {self._why_not(covered)}"
        few = [f"{one.source} ({one.n})" for one in self.sources if not one.covered]
        left = f"; nothing is promised of {', '.join(few)}: fewer than {self.needed} questions"
        lowest = "lowest " if covered else ""
        return (
            f"confidence >= {self.tau:g}: {promise}; answers {self.coverage:.1%} ({self.right} of "
            f"{self.accepted} right, {self.n} questions, {lowest}bound {self.bound:.1%})"
            f"{left if few else ''}"
        )

    def _why_not(self, covered: Sequence[SourceAccuracy]) -> str:
        """Say where no threshold passes; of several sources that is the one of the lowest bound."""
        tested: Sequence[AccuracyGuarantee | SourceAccuracy] = covered or [self]
        if self.sources and not covered:
            tested = [max(self.sources, key=lambda one: one.n)]
        starts_S = _begun([one.n for one in tested], self.target, self.delta).counts_KS[0]
        pairs = zip(tested, starts_S, strict=True)
        at, start = min(pairs, key=lambda pair: (pair[0].accepted >= pair[1], pair[0].bound))
        whose = f" of {at.source}" if isinstance(at, SourceAccuracy) else ""
        if at.n < self.needed:
            return (
                f"with {at.n} questions{whose}: at least {self.needed} would be needed even if all "
                "answers were right"
            )
        seen = f"the strictest tested has {at.right} of {at.accepted} right, bound {at.bound:.1%}"
        if at.accepted < start:
            seen = f"only {at.accepted} reach the loosest threshold, {start} must"
        return f"with {at.n} questions{whose}: {seen}; lower the target, or calibrate on more"


def selective(
    confidence: ArrayLike,
    correct: ArrayLike,
    *,
    target: float,
    delta: float = 0.05,
    sources: Sequence[str] | None = None,
) -> AccuracyGuarantee:
    """Choose tau for "answer when c reaches tau, else abstain", in each of `sources` if given."""
    confidence_N = np.asarray(confidence, dtype=np.float64)
    _, correct_N = check(np.nan_to_num(confidence_N), correct)

    def count(rows: Any) -> tuple[Indices, Indices]:
        return accepted_counts(confidence_N[rows], correct_N[rows])

    parts = counted(count, len(confidence_N), sources)
    return guarantee(parts, target=target, delta=delta)


def counted(
    count: Callable[[Any], tuple[Indices, Indices]], n: int, sources: Sequence[str] | None
) -> dict[str, Counts]:
    """Return the counts of the questions of each source, under "" where no sources are told."""
    if sources is None:
        return {"": Counts(*count(np.s_[:]), n)}
    if len(sources) != n:
        raise UserInputError(f"there are {len(sources)} sources of {n} answers; give one of each")
    name_N = np.asarray([str(name or OTHERS) for name in sources])
    rows_of = {name: np.flatnonzero(name_N == name) for name in sorted(set(name_N.tolist()))}
    return {name: Counts(*count(rows), len(rows)) for name, rows in rows_of.items()}


def accepted_counts(
    confidence_N: ArrayLike, correct_N: ArrayLike, grid: Sequence[float] = GRID
) -> tuple[Indices, Indices]:
    """Return how many answers reach each threshold, and how many of those are right: (G,)."""
    confidence_N = np.asarray(confidence_N, dtype=np.float64)
    cell_N = np.searchsorted(
        -np.asarray(grid), np.where(np.isnan(confidence_N), np.inf, -confidence_N)
    )
    every = np.ones(len(cell_N), dtype=bool)
    accepted_G, right_G = (
        np.bincount(cell_N[chosen_N], minlength=len(grid) + 1)[:-1].cumsum()
        for chosen_N in (every, np.asarray(correct_N, dtype=bool))
    )
    return accepted_G, right_G


def guarantee(
    parts: Mapping[str, Counts],
    *,
    target: float,
    delta: float = 0.05,
    grid: Sequence[float] = GRID,
) -> AccuracyGuarantee:
    """Choose tau for every source of enough questions; one without a name is all there is."""
    check_level(target, "target")
    check_level(delta, "delta", 0.05)
    if not len(grid) or any(a <= b for a, b in itertools.pairwise(grid)):
        raise UserInputError("the grid of thresholds must go from strict to loose; sort it so")
    enough = {k: one for k, one in parts.items() if one.n >= least_points(target, delta)}
    tested = enough or parts
    accepted_SG, right_SG = (np.array([one[k] for one in tested.values()]) for k in (0, 1))
    n_S = [one.n for one in tested.values()]
    begun = _begun(n_S, target, delta)
    picked = int(pick(accepted_SG[:, None], right_SG[:, None], n_S, target, delta)[0])
    first = min(int(_untested(accepted_SG[:, None], begun.counts_KS[0])[0]), len(grid) - 1)
    at = picked if picked >= 0 else first
    shown = []
    for name, (accepted_G, right_G, n) in parts.items():
        accepted, right = int(accepted_G[at]), int(right_G[at])
        bound = lower_bound(right, accepted, begun.level)
        shown.append(SourceAccuracy(name, n, accepted, right, bound, name in enough))
    counting = [one for one in shown if one.covered] or shown
    return AccuracyGuarantee(
        tau=float(grid[at]) if picked >= 0 else None,
        target=target,
        delta=delta,
        n=sum(one.n for one in counting),
        accepted=sum(one.accepted for one in counting),
        right=sum(one.right for one in counting),
        bound=min(one.bound for one in counting),
        sources=() if "" in parts else tuple(shown),
    )


def pick(
    accepted_SDG: ArrayLike, right_SDG: ArrayLike, n_S: Sequence[int], target: float, delta: float
) -> Indices:
    """Return the index of the loosest threshold with the guarantee in every source, -1: none: (D,).

    A threshold that too few answers reach can never pass, even if all are right. So two sequences
    of tests start where enough answers of each source do, early and at a quarter of the questions,
    each with half of delta: the first and smallest test does not decide alone (multiple starts,
    Learn then Test).
    """
    accepted_SDG, begun = np.asarray(accepted_SDG), _begun(n_S, target, delta)
    passes_DG = np.all(p_value(right_SDG, accepted_SDG, target) <= begun.level, axis=0)
    picked = [_walk(passes_DG, _untested(accepted_SDG, count_S)) for count_S in begun.counts_KS]
    loosest_D: Indices = np.max(picked, axis=0)
    return loosest_D


def _untested(accepted_SDG: Indices, count_S: Sequence[int]) -> Indices:
    """Return how many thresholds fewer answers of some source reach than its count: (D,)."""
    few_DG = (accepted_SDG < np.asarray(count_S)[:, None, None]).any(axis=0)
    untested_D: Indices = few_DG.sum(axis=1)
    return untested_D


class _Begun(NamedTuple):
    """The level of each sequence, and for each the answers of every source where it starts."""

    level: float
    counts_KS: list[tuple[int, ...]]


def _begun(n_S: Sequence[int], target: float, delta: float) -> _Begun:
    """Return the sequences of several sources: two if every source has questions for two."""
    every = [starts(n, target, delta) for n in n_S]
    sequences = min(map(len, every))
    counts_KS = list(zip(*(one[-sequences:] for one in every), strict=True))
    return _Begun(delta / sequences, counts_KS)


def starts(n: int, target: float, delta: float) -> list[int]:
    """Return the numbers of answers at which sequences start: one or two, in ascending order.

    They depend only on n, target and delta.
    """
    late = max(least_points(target, delta), n // 4)
    early = _start_with_errors(target, delta / 2, late)
    return [early, late] if early < late else [late]


@functools.cache
def _start_with_errors(target: float, delta: float, most: int) -> int:
    """Return the fewest answers, at most `most`, that pass with half of the allowed errors."""
    errors = 0
    for count in range(least_points(target, delta), most):
        if p_value(count - errors, count, target) <= delta:
            if errors >= count * (1 - target) / 2:
                return count
            errors += 1
    return most


def _walk(passes_DG: NDArray[np.bool_], first_D: Indices) -> Indices:
    """Return the last threshold before the first failure from `first_D` on, -1 for none."""
    untested_DG = np.arange(passes_DG.shape[1]) < first_D[:, None]
    fails_DG = ~(passes_DG | untested_DG)
    end_D = np.where(fails_DG.any(axis=1), fails_DG.argmax(axis=1), passes_DG.shape[1])
    return np.where(end_D > first_D, end_D - 1, -1)


def _percent(share: float) -> str:
    """Return a promised share in percent with at least one decimal, and never rounded, as 80.0%."""
    text = f"{100 * share:.10f}".rstrip("0")
    return f"{text}0%" if text.endswith(".") else f"{text}%"


def _sure(delta: float) -> str:
    """Return 1 - delta in percent, never rounded up to more than holds, as 97.5 or 99.9."""
    return f"{100 * (1 - delta):.10g}%"


def check_level(value: float, name: str, example: float = 0.9) -> None:
    """Raise UserInputError for a share that is not strictly between 0 and 1."""
    if not 0 < value < 1:
        raise UserInputError(f"{name} is {value}; give a share above 0 and below 1, e.g. {example}")
