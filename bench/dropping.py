"""The saving of aborting hopeless samples: early stopping with it and without, at equal accuracy.

Reads finished runs with `grace.trace=true`, and draws in each, once, eight samples of every
validation and every test question. `stop` is the confidence at which early stopping takes an
answer, `drop` that below which a sample is aborted. Both are chosen on the validation questions and
rated on the test questions, in the same orders, in two ways:

- for each `stop`, the largest `drop` with which the vote is as accurate as without (within
  `--within` points);
- for the accuracy that early stopping has at each `stop`, the fewest tokens that reach it: by
  `stop` alone, and by `stop` and `drop` together.

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
FINE_STOPS = tuple(n / 100 for n in range(40, 100, 5))
DROPS = tuple(n / 100 for n in range(20, 62, 2))
Row = NDArray[np.float64]
Policy = tuple[float, float]  # stop, drop


class Votes(NamedTuple):
    """Of each question the share of orders that end right, and the tokens on average."""

    accuracy_Q: Row
    tokens_Q: Row


class Line(NamedTuple):
    """What is rated of one run: a policy, or `None` for majority voting, and its outcome."""

    policy: Policy | None
    votes: Votes


def votes(pool: Pool, policies: list[Policy | None]) -> list[Votes]:
    """Return the outcome of each policy on a pool, in the same orders."""
    names = ["sc" if p is None else f"grace-es,threshold={p[0]},drop={p[1]}" for p in policies]
    asked = list(dict.fromkeys(names))
    curves = replay(pool, asked, budgets=[SAMPLES], orders=ORDERS).curves.values()
    found = {
        name: Votes(curve.accuracy_BQ[0], curve.tokens_BQ[0])
        for name, curve in zip(asked, curves, strict=True)
    }
    return [found[name] for name in names]


def chosen(pool: Pool, within: float) -> dict[str, Policy | None]:
    """Return the policies that validation questions choose, by the name of their line."""
    every = [(stop, drop) for stop in FINE_STOPS for drop in (0.0, *DROPS)]
    seen = dict(zip(every, votes(pool, [*every]), strict=True))
    right = {policy: outcome.accuracy_Q.mean() for policy, outcome in seen.items()}
    tokens = {policy: outcome.tokens_Q.mean() for policy, outcome in seen.items()}
    lines: dict[str, Policy | None] = {"sc": None}
    for stop in STOPS:
        least = right[stop, 0.0] - within / 100
        good = [drop for drop in DROPS if right[stop, drop] >= least]
        lines[f"stop {stop}"] = (stop, 0.0)
        lines[f"stop {stop}, dropping"] = (stop, max(good, default=0.0))
    for stop in STOPS:
        as_good = [policy for policy in every if right[policy] >= right[stop, 0.0]]
        alone = [policy for policy in as_good if policy[1] == 0]
        lines[f"accuracy of {stop}"] = min(alone, key=tokens.__getitem__)
        lines[f"accuracy of {stop}, dropping"] = min(as_good, key=tokens.__getitem__)
    return lines


def measured(path: Path, within: float) -> dict[str, Line]:
    """Return the outcome on a run's test questions of all that its validation questions choose."""
    context = open_run(path)
    validation, test = (pool_of(context, name) for name in ("validation", "test"))
    lines = chosen(validation, within)
    seen = votes(test, [*lines.values()])
    return {
        name: Line(policy, outcome)
        for (name, policy), outcome in zip(lines.items(), seen, strict=True)
    }


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
    parser.add_argument("runs", type=Path, nargs="+", help="finished runs with grace.trace=true")
    parser.add_argument("--within", type=float, default=0.0, help="points that may be lost")
    given = parser.parse_args()
    made = [measured(path, given.within) for path in given.runs]
    total = {
        name: Votes(*map(np.concatenate, zip(*(each[name].votes for each in made), strict=True)))
        for name in made[0]
    }
    print("| | stop/drop | accuracy | tokens | against none: accuracy | % fewer tokens |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, all_ in total.items():
        policies = [each[name].policy for each in made]
        told = ", ".join(
            "/".join(f"{value:g}" for value in policy) for policy in policies if policy
        )
        against = total[name.removesuffix(", dropping")] if "dropping" in name else total["sc"]
        print(
            f"| {name} | {told} | {100 * all_.accuracy_Q.mean():.1f} "
            f"| {all_.tokens_Q.mean():.0f} | {compared(all_, against)} |"
        )


if __name__ == "__main__":
    main()
