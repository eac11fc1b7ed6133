"""A cascade: a small model answers, and a large one is asked where the small one is not sure.

From the graded answers of both models to the same questions: what accuracy each share of forwarded
questions buys, and a threshold that guarantees one. The guarantee is a sequence of exact binomial
tests as in `grace.thresholds`, from forwarding all below 1 to forwarding nothing: at a threshold
each question counts as right if the model that answers it there is right.

Shapes: N questions, R resamples, G thresholds, S shares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from grace.metrics.kernels import check
from grace.thresholds import GRID, accepted_counts, check_level, lower_bound, p_value

Floats = NDArray[np.float64]
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
RESAMPLES = 1000
BLOCK = 10**7  # weights at a time
CHANCE, ORACLE, OWN = "chance", "oracle", "grace"


@dataclass(frozen=True, slots=True)
class Forwarded:
    """What forwarding a share of the questions gives."""

    share: float  # of the questions, that the large model answers
    below: float | None  # confidence below which they are forwarded; None: all
    # by route; an `oracle` forwards first what only the large model gets right
    accuracy: dict[str, float]
    interval: tuple[float, float]  # 95% of `accuracy["grace"]`, over questions


@dataclass(frozen=True, slots=True)
class CascadeGuarantee:
    """At least `target` of all answers are right below `tau`, except with probability `delta`.

    `tau` is None when no threshold can guarantee it. At tau, or else at 1, `forwarded` of `n`
    questions went to the large model and `right` of all answers were right;
    `bound` is the Clopper-Pearson lower bound of the accuracy there.
    """

    tau: float | None
    target: float
    delta: float
    n: int
    forwarded: int
    right: int
    bound: float

    def __str__(self) -> str:
        seen = f"{self.right} of {self.n} right, bound {self.bound:.1%}"
        promise = f"at least {self.target:.10g} right with probability {1 - self.delta:.10g}"
        if self.tau is None:
            sure = self.n - self.forwarded
            which = f"all but {sure} of confidence 1" if sure else "all"
            return (
                f"no threshold can promise {promise}: even where the large model answers {which}, "
                f"{seen}; lower the target, or grade more questions"
            )
        share = self.forwarded / self.n
        return f"--below {self.tau:g}: {promise}; forwards {share:.1%} ({seen})"


def curve(
    confidence: ArrayLike,
    small: ArrayLike,
    large: ArrayLike,
    others: Mapping[str, ArrayLike] | None = None,
    *,
    shares: Sequence[float] = SHARES,
    seed: int = 0,
) -> list[Forwarded]:
    """Return the accuracy at some shares of forwarded questions; no confidence (nan) goes first."""
    score_N, small_N, large_N = _checked(confidence, small, large)
    random, n = np.random.default_rng(seed), len(score_N)
    gain_N = large_N - small_N
    routes = {OWN: score_N, **{k: np.asarray(v, float) for k, v in (others or {}).items()}}
    orders = {name: _order(values, random) for name, values in routes.items()}
    orders[ORACLE] = np.argsort(-gain_N, kind="stable")
    base, sums = small_N.mean(), {k: np.r_[0, gain_N[o].cumsum()] for k, o in orders.items()}
    ends = _interval(small_N[orders[OWN]], gain_N[orders[OWN]], shares, random)
    points = []
    for share, interval in zip(shares, ends, strict=True):
        count = round(share * n)
        accuracy = {name: float(base + gained[count] / n) for name, gained in sums.items()}
        accuracy[CHANCE] = float(base + share * gain_N.mean())
        kept = score_N[orders[OWN][count:]]
        below = float(kept[0]) if len(kept) and not np.isnan(kept[0]) else None
        points.append(Forwarded(share, below, accuracy, interval))
    return points


def cascade(
    confidence: ArrayLike,
    small: ArrayLike,
    large: ArrayLike,
    *,
    target: float,
    delta: float = 0.05,
) -> CascadeGuarantee:
    """Choose the confidence below which questions are forwarded, so that an accuracy is kept."""
    check_level(target, "target")
    check_level(delta, "delta", 0.05)
    score_N, small_N, large_N = _checked(confidence, small, large)
    n, grid = len(score_N), (1.0, *GRID)
    kept_G, right_G = accepted_counts(score_N, small_N > 0, grid)
    _, rather_G = accepted_counts(score_N, large_N > 0, grid)
    total_G = right_G + int(large_N.sum()) - rather_G
    fails_G = p_value(total_G, n, target) > delta
    passed = int(fails_G.argmax()) if fails_G.any() else len(fails_G)
    at = max(passed - 1, 0)
    right = int(total_G[at])
    return CascadeGuarantee(
        tau=grid[at] if passed else None,
        target=target,
        delta=delta,
        n=n,
        forwarded=n - int(kept_G[at]),
        right=right,
        bound=lower_bound(right, n, delta),
    )


def _checked(
    confidence: ArrayLike, small: ArrayLike, large: ArrayLike
) -> tuple[Floats, Floats, Floats]:
    score_N = np.asarray(confidence, dtype=np.float64)
    _, small_N = check(np.nan_to_num(score_N), small)
    _, large_N = check(np.nan_to_num(score_N), large)
    return score_N, small_N.astype(np.float64), large_N.astype(np.float64)


def _order(score_N: Floats, random: np.random.Generator) -> NDArray[np.intp]:
    """Return questions in the order of forwarding: without a score first, then low scores."""
    return np.lexsort((random.random(len(score_N)), np.where(np.isnan(score_N), -np.inf, score_N)))


def _interval(
    small_N: Floats, gain_N: Floats, shares: Sequence[float], random: np.random.Generator
) -> list[tuple[float, float]]:
    """Return the interval of the accuracy at each share; questions are in order of forwarding."""
    n, found = len(small_N), []
    rows = max(1, BLOCK // n)
    for start in range(0, RESAMPLES, rows):
        weight_RN = random.multinomial(n, np.full(n, 1 / n), size=min(rows, RESAMPLES - start))
        until_RN = weight_RN.cumsum(axis=1)
        base_R = weight_RN @ small_N
        gained = [
            np.clip(share * n - (until_RN - weight_RN), 0, weight_RN) @ gain_N for share in shares
        ]
        found.append((base_R[:, None] + np.stack(gained, axis=1)) / n)
    low_S, high_S = np.percentile(np.concatenate(found), [2.5, 97.5], axis=0)
    return [(float(low), float(high)) for low, high in zip(low_S, high_S, strict=True)]
