"""From replays of stored samples to the rows of a report about votes."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from grace.metrics import Estimate
from grace.report.inputs import Replay
from grace.report.names import BASE, BASELINE, shown_budget
from grace.report.rows import group_by, mean_of
from grace.report.rows.votes import (
    Discrimination,
    EqualAccuracy,
    JointStrategy,
    PooledConfidence,
    SeedStrategy,
)
from grace.scaling import PairWins, Scaling, discrimination, joined

REFERENCES = ("sc", "asc", "esc")
"""The strategies whose accuracy the others are to reach with fewer samples."""

POOLED = ("accuracy", "ece", "brier", "auroc")
Joint = TypeVar("Joint", JointStrategy, EqualAccuracy)
SeedWins = tuple[PooledConfidence, Sequence[Hashable], PairWins]


def replay_rows(replays: Sequence[Replay]) -> dict[str, Any]:
    """Return the fields of a report that replays fill."""
    runs = group_by(replays, lambda replay: (replay.task, replay.backbone, replay.name))
    groups = runs.values()  # the replays of a group differ in the seed alone
    # Variants of a run share the rows about their backbone's samples: each is kept once.
    return {
        "scaling": tuple(dict.fromkeys(row for replay in replays for row in seed_rows(replay))),
        "scaling_joint": _widest(
            JointStrategy(**fields, seeds=_seeds(group))
            for group in groups
            for fields in _strategies(group)
        ),
        "equal_accuracy": _widest(row for group in groups for row in equal_rows(group)),
        "pools": tuple(dict.fromkeys(row for replay in replays for row in replay.pools)),
        "discrimination": tuple(_discrimination(replays)),
    }


def seed_rows(replay: Replay) -> list[SeedStrategy]:
    """Return every strategy at every budget, for one seed."""
    return [SeedStrategy(**fields, seed=replay.seed) for fields in _strategies([replay])]


def equal_rows(group: Sequence[Replay]) -> Iterator[EqualAccuracy]:
    """Yield the samples that strategies with a threshold need for the accuracy of `REFERENCES`.

    The references are over the backbone's samples, and over those that the strategy votes over.
    """
    scaling, first = _scaling(group), group[0]
    budget = shown_budget(scaling.budgets)
    for curve in scaling.curves.values():
        if curve.estimator is None or curve.threshold is None:
            continue
        references = [*REFERENCES, *(f"{name}@{first.answers[curve.name]}" for name in REFERENCES)]
        for reference in (name for name in references if name in scaling.curves):
            reach = scaling.reach(curve.name, reference, budget)
            yield EqualAccuracy(
                task=first.task,
                backbone=first.backbone,
                strategy=curve.name,
                estimator=curve.estimator,
                threshold=curve.threshold,
                reference=reference,
                budget=budget,
                seeds=_seeds(group),
                accuracy=reach.accuracy.value,
                interval=_ends(reach.accuracy),
                reference_samples=reach.reference_samples.value,
                reached=reach.reached,
                **_estimated("samples", reach.samples),
                **_estimated("saved", reach.saved),
            )


def _strategies(group: Sequence[Replay]) -> Iterator[dict[str, Any]]:
    """Yield the fields of every strategy at every budget.

    `gain` is the paired difference in accuracy to SC over the backbone's samples, `gain_own` that
    to SC over the tuned model's samples, for strategies that vote over these. `used` are the shares
    of questions that took 1, 2, ... samples.
    """
    scaling, first = _scaling(group), group[0]
    for name, budget in itertools.product(scaling.curves, scaling.budgets):
        curve, answers = scaling.curves[name], first.answers[name]
        accuracy = scaling.estimate(name, budget)
        samples = scaling.estimate(name, budget, "samples")
        gain = gain_own = None
        if BASELINE in scaling.curves:
            gain = scaling.difference(name, BASELINE, budget)
        own = f"{BASELINE}@{first.name}"
        if answers != BASE and own in scaling.curves:
            gain_own = scaling.difference(name, own, budget)
        yield {
            "task": first.task,
            "backbone": first.backbone,
            "strategy": name,
            "answers": answers,
            "estimator": curve.estimator,
            "budget": budget,
            "threshold": curve.threshold,
            "n": scaling.num_questions,
            "accuracy": accuracy.value,
            "interval": _ends(accuracy),
            "spread": scaling.spread(name, budget),
            "mean_samples": samples.value,
            "samples_interval": _ends(samples),
            "mean_tokens": scaling.estimate(name, budget, "tokens").value,
            **_estimated("gain", gain),
            **_estimated("gain_own", gain_own),
            "used": tuple(scaling.used(name, budget)[1 : budget + 1].tolist()),
        }


def _discrimination(replays: Sequence[Replay]) -> Iterator[Discrimination]:
    """Yield how good each estimator's confidences in single samples are, over all seeds."""
    by_estimator: dict[tuple[str, str, str, str], dict[int, SeedWins]] = {}
    for replay in replays:
        for pool in replay.pools:
            for row in pool.confidences:
                wins = replay.wins.get((pool.answers, row.estimator))
                if wins is not None:
                    key = (replay.task, replay.backbone, pool.answers, row.estimator)
                    by_seed = by_estimator.setdefault(key, {})
                    by_seed.setdefault(replay.seed, (row, replay.questions, wins))
    for (task, backbone, answers, estimator), by_seed in by_estimator.items():
        rows, questions, every_wins = zip(*by_seed.values(), strict=True)
        wqd = discrimination(questions, every_wins)
        means: dict[str, Any] = {m: mean_of(getattr(row, m) for row in rows) for m in POOLED}
        yield Discrimination(
            task=task,
            backbone=backbone,
            answers=answers,
            estimator=estimator,
            seeds=tuple(by_seed),
            n=sum(row.n for row in rows),
            **means,
            **_estimated("wqd", wqd),
        )


def _widest(rows: Iterable[Joint]) -> tuple[Joint, ...]:
    """Keep, of the rows about the same thing, the one over the most seeds."""
    widest: dict[tuple[Any, ...], Joint] = {}
    for row in rows:
        key = (row.place, row.strategy, getattr(row, "reference", None), row.budget)
        if len(row.seeds) > len(widest.setdefault(key, row).seeds):
            widest[key] = row
    return tuple(widest.values())


def _scaling(group: Sequence[Replay]) -> Scaling:
    return joined([(replay.questions, Scaling([replay.curves])) for replay in group])


def _seeds(group: Sequence[Replay]) -> tuple[int, ...]:
    return tuple(replay.seed for replay in group)


def _ends(estimate: Estimate) -> tuple[float, float]:
    return estimate.low, estimate.high


def _estimated(field: str, estimate: Estimate | None) -> dict[str, Any]:
    """Return the field of a value and that of its interval."""
    if estimate is None:
        return {field: None, f"{field}_interval": None}
    return {field: estimate.value, f"{field}_interval": _ends(estimate)}
