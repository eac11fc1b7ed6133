"""How often promises are broken: made on many random parts of a pool, checked on all of it.

Shapes: Q questions, G thresholds, D parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grace.scaling.pool import Pool
from grace.scaling.promises import Truths, early_stops, majority_right
from grace.strategies.tally import Floats, Indices
from grace.thresholds import GRID, pick_accurate, pick_no_worse


class BrokenPromises(NamedTuple):
    """What became of the promises made on random parts of a pool, as shares of the parts.

    `promised`: a threshold was found. `broken`: it was, and over the whole pool, from which the
    part was drawn, the promise does not hold: this is what delta bounds. `broken_on_rest`: the
    same over the other part alone, whose own noise comes on top. `coverage` is the mean share of
    questions answered over the whole pool, 0 where nothing was promised.
    """

    delta: float
    splits: int
    promised: float
    broken: float
    broken_on_rest: float
    coverage: float


def broken_promises(
    pool: Pool,
    target: float,
    *,
    budget: int,
    delta: float = 0.05,
    abstain: bool = True,
    estimator: str = "grace",
    grid: Sequence[float] = GRID,
    splits: int = 1000,
    share: float = 0.5,
    seed: int = 0,
) -> BrokenPromises:
    """Do `accuracy_threshold` on many random parts of a pool.

    Args:
        pool: samples of all questions; each part of it is a draw of calibration data.
        target: wanted accuracy of the answers that are given, in (0, 1).
        budget: most samples per question; 1 is selective answering.
        delta: accepted probability that the promise is broken, in (0, 1).
        abstain: answer only when a sample reaches tau; else vote when none does, always answer.
        estimator: whose confidences.
        grid: thresholds from strict to loose, chosen without looking at these data.
        splits: how many random parts.
        share: questions in each part, as a share of the pool.
        seed: seed of the parts.

    Raises:
        UserInputError: as for `accuracy_threshold`.
    """
    answered_GQ, right_GQ = early_stops(pool, budget, abstain, estimator, grid)
    part_DQ = _parts(pool.num_questions, splits, share, seed)
    answered_DG, right_DG = _counts(part_DQ, answered_GQ), _counts(part_DQ, right_GQ)
    size = int(part_DQ[0].sum())
    picked_D = pick_accurate(answered_DG, right_DG, size, target, delta, abstain)
    all_G, all_right_G = answered_GQ.sum(axis=1), right_GQ.sum(axis=1)
    rest_DG, rest_right_DG = all_G - answered_DG, all_right_G - right_DG
    return _summary(
        delta,
        picked_D,
        all_right_G < target * all_G,
        rest_right_DG < target * rest_DG,
        all_G / pool.num_questions,
    )


def broken_no_worse(
    pool: Pool,
    *,
    budget: int,
    margin: float = 0.0,
    delta: float = 0.05,
    estimator: str = "grace",
    grid: Sequence[float] = GRID,
    splits: int = 1000,
    share: float = 0.5,
    seed: int = 0,
) -> BrokenPromises:
    """Do `no_worse_threshold` on many random parts of a pool.

    Args:
        pool: samples of all questions; each part of it is a draw of calibration data.
        budget: most samples per question, of both.
        margin: accepted loss of accuracy, in [0, 1).
        delta: accepted probability that the promise is broken, in (0, 1).
        estimator: whose confidences.
        grid: thresholds from strict to loose, chosen without looking at these data.
        splits: how many random parts.
        share: questions in each part, as a share of the pool.
        seed: seed of the parts.

    Raises:
        UserInputError: as for `no_worse_threshold`.
    """
    _, right_GQ = early_stops(pool, budget, False, estimator, grid)
    baseline_Q = majority_right(pool, budget)
    better_GQ, worse_GQ = right_GQ & ~baseline_Q, ~right_GQ & baseline_Q
    part_DQ = _parts(pool.num_questions, splits, share, seed)
    better_DG, worse_DG = _counts(part_DQ, better_GQ), _counts(part_DQ, worse_GQ)
    size = int(part_DQ[0].sum())
    picked_D = pick_no_worse(better_DG, worse_DG, size, margin, delta)
    gain_G = better_GQ.sum(axis=1) - worse_GQ.sum(axis=1)
    return _summary(
        delta,
        picked_D,
        gain_G < -margin * pool.num_questions,
        gain_G - better_DG + worse_DG < -margin * (pool.num_questions - size),
        np.ones(len(grid)),
    )


def _summary(
    delta: float, picked_D: Indices, broken_G: Truths, on_rest_DG: Truths, coverage_G: Floats
) -> BrokenPromises:
    found_D = picked_D >= 0
    on_rest_D = on_rest_DG[np.arange(len(picked_D)), picked_D]
    return BrokenPromises(
        delta=delta,
        splits=len(picked_D),
        promised=float(found_D.mean()),
        broken=float((found_D & broken_G[picked_D]).mean()),
        broken_on_rest=float((found_D & on_rest_D).mean()),
        coverage=float((found_D * coverage_G[picked_D]).mean()),
    )


def _parts(count: int, splits: int, share: float, seed: int) -> NDArray[np.float32]:
    """Return random parts of the questions as rows of 0 and 1: (D, Q)."""
    size = min(max(1, round(share * count)), count - 1)
    first = np.broadcast_to(np.arange(count) < size, (splits, count))
    return np.random.default_rng(seed).permuted(first, axis=1).astype(np.float32)


def _counts(part_DQ: NDArray[np.float32], true_GQ: Truths) -> Indices:
    """Return how many questions of each part are true at each threshold: (D, G)."""
    counts: Indices = (part_DQ @ true_GQ.T.astype(np.float32)).astype(np.intp)
    return counts
