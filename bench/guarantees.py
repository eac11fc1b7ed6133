"""How often a guarantee is false, over random halves of a run's test questions.

Reads finished runs, and draws in each, once, eight samples of every test question. Thresholds are
chosen on 1,000 random halves of the questions, for several accuracies. Each line is the worst of
these and of the runs: the share of halves whose guarantee is false of the other half, whose
sampling noise comes on top of what a guarantee covers. With --larger, a cascade's thresholds are
chosen on draws of half as many questions and judged on all, where what is true is known, for
several shares of the larger model's accuracy.

    python bench/guarantees.py runs/wiki/seed-0 runs/wiki/seed-1
    python bench/guarantees.py runs/small --larger runs/large
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from grace.measuring import Both, read_both
from grace.pipeline.context import Context, open_run
from grace.pipeline.scaling.pools import draw_pool, read_pool
from grace.scaling import Pool
from grace.scaling.replaying import early_stops
from grace.thresholds import pick
from grace.thresholds.cascade import cascade

SAMPLES, SPLITS = 8, 1000
DELTAS = (0.05, 0.1, 0.2)
ACCURACIES = (0.5, 0.6, 0.7, 0.8, 0.9)
KEPT = (0.85, 0.9, 0.95)
GRID = tuple(k / 100 for k in range(100, -1, -1))
Halves = NDArray[np.bool_]


def pool_of(context: Context, name: str) -> Pool:
    """Return `SAMPLES` samples of every question of a split, drawn once."""
    temperature = context.settings.sample.draw_temperature
    split = context.directory.split(name).tuned
    return read_pool(draw_pool(context, "tuned", split, SAMPLES, temperature), ["grace"])


def halves(count: int) -> Halves:
    """Return random halves of the questions: (D, Q)."""
    first = np.broadcast_to(np.arange(count) < count // 2, (SPLITS, count))
    return np.random.default_rng(0).permuted(first, axis=1)


def accuracy(pool: Pool, budget: int) -> Iterator[tuple[float, float]]:
    """Yield delta, and how often "at least so many answers are right" is false, early stopping."""
    part_DQ = halves(pool.num_questions).astype(np.float32)
    answered_GQ, right_GQ = early_stops(pool, budget, "grace", GRID)
    answered_DG, right_DG = (
        (part_DQ @ each.T.astype(np.float32)).astype(int) for each in (answered_GQ, right_GQ)
    )
    answered_G, right_G = answered_GQ.sum(axis=1), right_GQ.sum(axis=1)
    rows_D = np.arange(SPLITS)
    for target, delta in itertools.product(ACCURACIES, DELTAS):
        picked_D = pick([answered_DG], [right_DG], [int(part_DQ[0].sum())], target, delta)
        found_D = picked_D >= 0
        rest_DG = right_G - right_DG < target * (answered_G - answered_DG)
        yield delta, float((found_D & rest_DG[rows_D, picked_D]).mean())


def measured(pool: Pool) -> Iterator[tuple[str, float, float]]:
    """Yield every guarantee of a pool: its kind, delta, and how often it is false."""
    for kind, budget in (("one sample", 1), (f"early stopping of {SAMPLES} samples", SAMPLES)):
        yield from ((kind, *one) for one in accuracy(pool, budget))


def forwarding(both: Both) -> Iterator[tuple[float, float]]:
    """Yield delta, and how often "at least so many of all are right" is false of a cascade.

    The questions are the world: thresholds are chosen on draws from them, with replacement.
    """
    c_N = np.array([np.nan if c is None else c for c in both.confidence])
    small_N, large_N = np.array(both.small), np.array(both.large)
    drawn_DM = np.random.default_rng(0).integers(0, len(c_N), (SPLITS, len(c_N) // 2))
    for share, delta in itertools.product(KEPT, DELTAS):
        target, false = share * large_N.mean(), 0
        for rows in drawn_DM:
            tau = cascade(c_N[rows], small_N[rows], large_N[rows], target=target, delta=delta).tau
            if tau is not None:
                false += np.where(c_N >= tau, small_N, large_N).mean() < target
        yield delta, false / SPLITS


def main() -> None:
    """Print the worst of each kind."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--larger", type=Path, help="run of a larger model: the cascade's alone")
    given = parser.parse_args()
    worst: dict[str, dict[float, float]] = {}
    for path in given.runs:
        if given.larger:
            kinds = (("cascade", *one) for one in forwarding(read_both(path, given.larger)))
        else:
            kinds = measured(pool_of(open_run(path), "test"))
        for kind, delta, found in kinds:
            by_delta = worst.setdefault(kind, {})
            by_delta[delta] = max(by_delta.get(delta, 0.0), found)
    print("| guarantee: false in | " + " | ".join(map(str, DELTAS)) + " |")
    print("| --- |" + " --- |" * len(DELTAS))
    for kind, by_delta in worst.items():
        cells = [f"{100 * share:.1f}%" for share in by_delta.values()]
        print(f"| {kind} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
