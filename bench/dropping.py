"""The saving of aborting hopeless samples: early stopping with it and without, at equal accuracy.

Reads finished runs with `train.trace=true`, and draws in each, once, eight samples of every
validation and every test question. For each `stop`, the confidence at which early stopping takes an
answer, it chooses the largest `drop` with which the vote is as accurate on the validation questions
as without (within `--within` points). Only that one is rated on the test questions, in the same
orders.

    python bench/dropping.py runs/sums/seed-0 runs/sums/seed-1 runs/sums/seed-2
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np
from guarantees import SAMPLES, pool_of
from numpy.typing import NDArray

from grace.pipeline.context import open_run
from grace.scaling import Pool, replay

ORDERS = 20
STOPS = (0.6, 0.7, 0.8, 0.9)
DROPS = tuple(n / 100 for n in range(20, 62, 2))
Row = NDArray[np.float64]


class Votes(NamedTuple):
    """Of each question the share of orders that end right, and the tokens on average."""

    accuracy_Q: Row
    tokens_Q: Row


def name_of(stop: float, drop: float) -> str:
    """Return the name of a policy."""
    return f"grace-es,threshold={stop},drop={drop}"


def votes(pool: Pool, policies: list[str]) -> dict[str, Votes]:
    """Return the outcome of each policy on a pool, in the same orders."""
    curves = replay(pool, policies, budgets=[SAMPLES], orders=ORDERS).curves.values()
    return {
        policy: Votes(curve.accuracy_BQ[0], curve.tokens_BQ[0])
        for policy, curve in zip(policies, curves, strict=True)
    }


def measured(path: Path, within: float) -> dict[str, tuple[float, Votes]]:
    """Return majority voting, and by stop early stopping alone and with the chosen drop."""
    context = open_run(path)
    pools = [pool_of(context, name) for name in ("validation", "test")]
    every = [name_of(stop, drop) for stop in STOPS for drop in (0.0, *DROPS)]
    chosen = votes(pools[0], every)
    drops = {}
    for stop in STOPS:
        least = chosen[name_of(stop, 0.0)].accuracy_Q.mean() - within / 100
        good = [d for d in DROPS if chosen[name_of(stop, d)].accuracy_Q.mean() >= least]
        drops[stop] = max(good, default=0.0)
    rated = ["sc", *(name_of(stop, d) for stop in STOPS for d in (0.0, drops[stop]))]
    seen = votes(pools[1], list(dict.fromkeys(rated)))
    found = {"sc": (0.0, seen["sc"])}
    for stop in STOPS:
        found[f"stop {stop}"] = (0.0, seen[name_of(stop, 0.0)])
        found[f"stop {stop}, dropping"] = (drops[stop], seen[name_of(stop, drops[stop])])
    return found


def compared(one: Votes, other: Votes) -> str:
    """Return the gain in accuracy and tokens over another, with 95% bootstrap intervals."""
    rng = np.random.default_rng(0)
    count = len(one.accuracy_Q)

    def differences(rows: NDArray[np.intp]) -> tuple[float, float]:
        more = 100 * (one.accuracy_Q[rows].mean() - other.accuracy_Q[rows].mean())
        return more, 100 * (1 - one.tokens_Q[rows].mean() / other.tokens_Q[rows].mean())

    drawn = [differences(rng.integers(0, count, count)) for _ in range(1000)]
    middle = differences(np.arange(count))
    cells = zip(middle, *np.percentile(drawn, [2.5, 97.5], axis=0), strict=True)
    return " | ".join(f"{value:+.1f} [{low:.1f}, {high:.1f}]" for value, low, high in cells)


def main() -> None:
    """Print a table over the questions of all runs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+", help="finished runs with train.trace=true")
    parser.add_argument("--within", type=float, default=0.0, help="points that may be lost")
    given = parser.parse_args()
    made = [measured(path, given.within) for path in given.runs]
    total = {
        name: Votes(*map(np.concatenate, zip(*(each[name][1] for each in made), strict=True)))
        for name in made[0]
    }
    print("| | drop | accuracy | tokens | against none: accuracy | % fewer tokens |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, all_ in total.items():
        drops = ", ".join(f"{each[name][0]:g}" for each in made) if "dropping" in name else ""
        against = total[name.removesuffix(", dropping")] if drops else total["sc"]
        print(
            f"| {name} | {drops} | {100 * all_.accuracy_Q.mean():.1f} "
            f"| {all_.tokens_Q.mean():.0f} | {compared(all_, against)} |"
        )


if __name__ == "__main__":
    main()
