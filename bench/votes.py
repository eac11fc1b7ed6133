"""Votes over 8 samples: accuracy, samples, and how good the vote's own confidence is.

Reads finished runs, and draws in each, once, eight samples of every validation and every test
question. `grace-vote` is fitted to the validation questions; with --halves SPLIT, to each half of
that split's questions for the other half. All strategies see the same random orders. The confidence
of a vote is that of `grace-vote`, the share of the votes for sc, asc and esc, and for the others
the mean c of the votes for their answer. --keep writes what `tools/results.py` needs.

    python bench/votes.py runs/sums runs/rules --keep docs/reports/votes.json
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from keeping import add_keep, keep
from numpy.typing import NDArray

from grace.metrics import Estimate, Resamples, percentiles
from grace.pipeline.context import open_run
from grace.pipeline.scaling.pools import votes_of
from grace.scaling import Curve, Pool, Scaling, fit_vote, replay
from grace.scaling.replaying import is_right, outcomes
from grace.strategies import FittedVote, Policy, policy
from grace.strategies.tally import VoteTable

BUDGET = 8
ORDERS, RATED = 20, 4  # orders of the replay, and of those those whose confidence is rated
RULES = ("sc", "asc", "esc", "grace-sc", "grace-es", "grace-cisc", "grace-best")
VOTE, WHOLE, FREE = "grace-vote", "grace-vote to the end", "grace-vote without a fit"
NEVER = 9.0
Rows = NDArray[np.float64]
Fit = tuple[Pool, Pool]  # the questions of a fit, and those that it is rated on


def policies(fitted: FittedVote) -> list[Policy]:
    """Return what is compared."""
    votes = {VOTE: fitted, WHOLE: dataclasses.replace(fitted, threshold=NEVER), FREE: FittedVote()}
    return [*map(policy, RULES), *(Policy(name, vote, "grace") for name, vote in votes.items())]


def halves(pool: Pool) -> list[Fit]:
    """Return each half of the questions for the other."""
    first = np.random.default_rng(0).permutation(pool.num_questions) < pool.num_questions // 2
    one, two = (pool.take(np.flatnonzero(part)) for part in (first, ~first))
    return [(one, two), (two, one)]


def joined(parts: Sequence[Scaling]) -> Scaling:
    """Return the replays of different questions as one."""

    def join(*curves: Curve) -> Curve:
        value_MBQ = np.concatenate([curve.value_MBQ for curve in curves], axis=2)
        return dataclasses.replace(curves[0], value_MBQ=value_MBQ)

    return Scaling([[*map(join, *(part.curves.values() for part in parts))]])


def rated(one: Policy, pool: Pool) -> Iterator[tuple[Rows, Rows]]:
    """Yield the confidence of each question's vote, and whether it is right, in each order."""
    c_QS = pool.confidence("grace")
    rows = np.arange(pool.num_questions)
    for order_QS in pool.orders(RATED):
        votes = Pool(
            np.take_along_axis(pool.answer_QS, order_QS, 1),
            np.take_along_axis(pool.correct_QS, order_QS, 1),
            None,
            {"grace": np.take_along_axis(c_QS, order_QS, 1)},
        )
        table = VoteTable(votes.answer_QS, votes.confidence("grace"))
        (found,) = outcomes(one.strategy, table, [BUDGET])
        used_QT = np.arange(table.answer_RT.shape[1]) < found.used_R[:, None]
        for_QT = used_QT & (table.answer_RT == found.chosen_R[:, None])
        sure_Q = np.zeros(len(rows))
        if isinstance(one.strategy, FittedVote):
            for used in np.unique(found.used_R):
                here = rows[found.used_R == used]
                cut = VoteTable(*(each[here, :used] for each in table))
                sure_Q[here] = one.strategy.confidence(cut)
        elif one.estimator is None:
            sure_Q = for_QT.sum(axis=1) / found.used_R
        else:
            c_QT = np.where(for_QT, np.nan_to_num(table.confidence_RT), 0.0)
            sure_Q = c_QT.sum(axis=1) / np.maximum(for_QT.sum(axis=1), 1)
        sure_Q[found.chosen_R < 0] = 0.0
        yield sure_Q, is_right(found, votes.correct_QS)


def shown(found: Estimate) -> list[float | None]:
    """Return a value and its interval; None where there is none."""
    return [round(float(value), 5) if np.isfinite(value) else None for value in found]


def rows_of(name: str, fits: Sequence[Fit]) -> Iterator[dict[str, Any]]:
    """Yield what is kept of each strategy on one set of questions."""
    by_part = [policies(fit_vote(known)) for known, _ in fits]
    budgets = range(1, BUDGET + 1)
    replayed = joined(
        [
            replay(pool, part, budgets=budgets, orders=ORDERS)
            for part, (_, pool) in zip(by_part, fits, strict=True)
        ]
    )
    ids = [
        f"{part}-{row}" for part, (_, pool) in enumerate(fits) for row in range(len(pool.answer_QS))
    ]
    resamples = Resamples(ids)
    draws: dict[str, Any] = {}
    for same in zip(*by_part, strict=True):
        found = [[*rated(one, pool)] for one, (_, pool) in zip(same, fits, strict=True)]
        orders = [np.concatenate(parts, axis=1) for parts in zip(*found, strict=True)]
        sure_N, right_N = np.concatenate(orders, axis=1)
        questions = ids * RATED
        draws[same[0].name] = resamples.evaluate(
            sure_N, right_N.astype(bool), questions, ("auroc", "brier", "ece")
        )
    single = np.concatenate([pool.correct_QS.mean(axis=1) for _, pool in fits]).mean()
    for one in replayed.curves:
        mine, usual = draws[one], draws["grace-sc"]
        yield {
            "set": name,
            "questions": replayed.num_questions,
            "fitted_to": int(np.mean([known.num_questions for known, _ in fits])),
            "single": round(float(single), 5),
            "strategy": one,
            "accuracy": shown(replayed.estimate(one, BUDGET)),
            "gain": shown(replayed.difference(one, "sc", BUDGET)),
            "samples": shown(replayed.estimate(one, BUDGET, "samples")),
            "for_sc": shown(replayed.reach(one, "sc", BUDGET).samples),
            "ece": round(float(np.abs(mine["ece"][0]).sum()), 5),
            **{key: shown(percentiles(mine[key])) for key in ("auroc", "brier")},
            **{
                f"{key}_gain": shown(percentiles(mine[key] - usual[key]))
                for key in ("auroc", "brier")
            },
        }


def main() -> None:
    """Print a table for each run, and keep the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--halves", choices=("validation", "test"), help="fit on halves of a split")
    add_keep(parser)
    given = parser.parse_args()
    for path in given.runs:
        context = open_run(path)
        pools = (
            votes_of(context, name, BUDGET)
            for name in ([given.halves] if given.halves else ("validation", "test"))
        )
        fits = halves(*pools) if given.halves else [(next(pools), next(pools))]
        name = context.settings.data.task
        rows = [*rows_of(name, fits)]
        for row in rows:
            print(json.dumps(row))
        if given.keep:
            keep(given.keep, rows, ("set", "strategy"))


if __name__ == "__main__":
    main()
