"""How often promises are broken: made on many random parts of a pool, checked on all of it.

Shapes: Q questions, G thresholds, D parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grace.scaling.pool import Pool
from grace.scaling.promises import Accurate, NoWorse, Truths
from grace.strategies.tally import Floats, Indices
from grace.thresholds import GRID

DELTAS = (0.05, 0.1, 0.2)


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
    wanted: Accurate | NoWorse,
    *,
    budget: int,
    deltas: Sequence[float] = DELTAS,
    estimator: str = "grace",
    grid: Sequence[float] = GRID,
    splits: int = 1000,
    share: float = 0.5,
    seed: int = 0,
) -> list[BrokenPromises]:
    """Choose thresholds on many random parts of a pool, and check what each promises.

    Args:
        pool: samples of all questions; each part of it is a draw of calibration data.
        wanted: what is promised, as by `accuracy_threshold` or `no_worse_threshold`.
        budget: most samples per question; 1 is selective answering.
        deltas: accepted probabilities that the promise is broken, in (0, 1); one result each.
        estimator: whose confidences.
        grid: thresholds from strict to loose, chosen without looking at these data.
        splits: how many random parts.
        share: questions in each part, as a share of the pool.
        seed: seed of the parts.

    Raises:
        UserInputError: as for `accuracy_threshold` and `no_worse_threshold`.
    """
    one_GQ, two_GQ = wanted.tables(pool, budget, estimator, grid)
    part_DQ = _parts(pool.num_questions, splits, share, seed)
    n, size = pool.num_questions, int(part_DQ[0].sum())
    one_DG, two_DG = _counts(part_DQ, one_GQ), _counts(part_DQ, two_GQ)
    one_G, two_G = one_GQ.sum(axis=1), two_GQ.sum(axis=1)
    broken_G = wanted.broken(one_G, two_G, n)
    on_rest_DG = wanted.broken(one_G - one_DG, two_G - two_DG, n - size)
    coverage_G = wanted.coverage(one_G, n)
    return [
        _summary(delta, wanted.pick(one_DG, two_DG, size, delta), broken_G, on_rest_DG, coverage_G)
        for delta in deltas
    ]


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
