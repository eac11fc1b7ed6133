"""Rows from replays of stored samples, per seed and over seeds."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from grace.report.inputs import Replay
from grace.report.names import BASE, BASELINE, shown_budget
from grace.report.scaling.rows import (
    Discrimination,
    EqualAccuracy,
    JointStrategy,
    PooledConfidence,
    SeedStrategy,
)
from grace.scaling import Estimate, PairWins, Scaling, discrimination, joined

REFERENCES = ("sc", "asc", "esc")
"""The strategies whose accuracy others are asked to reach."""

POOLED = ("accuracy", "ece", "brier", "auroc")
Joint = TypeVar("Joint", JointStrategy, EqualAccuracy)
Rated = tuple[PooledConfidence, Sequence[Hashable], PairWins]


def replay_rows(replays: Sequence[Replay]) -> dict[str, Any]:
    """Return the fields of a report on replays."""
    groups = _groups(replays)
    return {
        "scaling": _distinct(row for replay in replays for row in seed_rows(replay)),
        "scaling_joint": _widest(row for group in groups for row in _joint_rows(group)),
        "equal_accuracy": _widest(row for group in groups for row in equal_rows(group)),
        "pools": _distinct(row for replay in replays for row in replay.pools),
        "discrimination": tuple(_discrimination(replays)),
    }


def seed_rows(replay: Replay) -> list[SeedStrategy]:
    """Return every strategy at every budget, of one seed."""
    found = _measured(_scaling([replay]), replay)
    return [SeedStrategy(**row, seed=replay.seed) for row in found]


def equal_rows(group: Sequence[Replay]) -> Iterator[EqualAccuracy]:
    """Yield what sure-enough strategies need for the accuracy that others have at the budget."""
    scaling, first = _scaling(group), group[0]
    budget = shown_budget(scaling.budgets)
    for curve in scaling.curves.values():
        if curve.estimator is None or curve.threshold is None:
            continue
        references = [*REFERENCES, *(f"{name}@{first.answers[curve.name]}" for name in REFERENCES)]
        for reference in (name for name in references if name in scaling.curves):
            found = scaling.reach(curve.name, reference, budget)
            yield EqualAccuracy(
                task=first.task,
                backbone=first.backbone,
                strategy=curve.name,
                estimator=curve.estimator,
                threshold=curve.threshold,
                reference=reference,
                budget=budget,
                seeds=_seeds(group),
                accuracy=found.accuracy.value,
                interval=_ends(found.accuracy),
                reference_samples=found.reference_samples.value,
                samples=found.samples.value,
                samples_interval=_ends(found.samples),
                saved=found.saved.value,
                saved_interval=_ends(found.saved),
                reached=found.reached,
            )


def _joint_rows(group: Sequence[Replay]) -> Iterator[JointStrategy]:
    """Yield every strategy at every budget, over the seeds."""
    for row in _measured(_scaling(group), group[0]):
        yield JointStrategy(**row, seeds=_seeds(group))


def _measured(scaling: Scaling, about: Replay) -> Iterator[dict[str, Any]]:
    """Yield the fields of every strategy at every budget.

    `gain` is the paired difference in accuracy to `sc`, `gain_own` that to SC over the tuned
    model's samples, for strategies that vote over these. `used` are the shares of questions that
    took 1, 2, ... samples.
    """
    own = f"{BASELINE}@{about.name}"
    for name, budget in itertools.product(scaling.curves, scaling.budgets):
        curve, answers = scaling.curves[name], about.answers[name]
        accuracy = scaling.estimate(name, budget)
        samples = scaling.estimate(name, budget, "samples")
        gain = _gain(scaling, name, BASELINE, budget)
        gain_own = None if answers == BASE else _gain(scaling, name, own, budget)
        yield {
            "task": about.task,
            "backbone": about.backbone,
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
            "gain": gain.value if gain else None,
            "gain_interval": _ends(gain) if gain else None,
            "gain_own": gain_own.value if gain_own else None,
            "gain_own_interval": _ends(gain_own) if gain_own else None,
            "used": tuple(scaling.used(name, budget)[1 : budget + 1].tolist()),
        }


def _gain(scaling: Scaling, name: str, baseline: str, budget: int) -> Estimate | None:
    """Return the paired difference in accuracy to a baseline, if that was replayed."""
    return scaling.difference(name, baseline, budget) if baseline in scaling.curves else None


def _discrimination(replays: Sequence[Replay]) -> Iterator[Discrimination]:
    """Yield how good every estimator's confidences in single samples are, over the seeds."""
    found: dict[tuple[str, str, str, str], dict[int, Rated]] = {}
    for replay in replays:
        for pool in replay.pools:
            for row in pool.confidences:
                which = (pool.answers, row.estimator)
                own = found.setdefault((replay.task, replay.backbone, *which), {})
                if which in replay.wins:
                    own.setdefault(replay.seed, (row, replay.questions, replay.wins[which]))
    for (task, backbone, answers, estimator), by_seed in found.items():
        if not by_seed:
            continue
        rows, questions, wins = zip(*by_seed.values(), strict=True)
        wqd = discrimination(questions, wins)
        yield Discrimination(
            task=task,
            backbone=backbone,
            answers=answers,
            estimator=estimator,
            seeds=tuple(by_seed),
            n=sum(row.n for row in rows),
            **{name: _mean([getattr(row, name) for row in rows]) for name in POOLED},
            wqd=wqd.value if wqd else None,
            wqd_interval=_ends(wqd) if wqd else None,
        )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _distinct(rows: Iterable[Any]) -> tuple[Any, ...]:
    """Return the rows without repeats: variants share what is about the backbone's samples."""
    return tuple({repr(row): row for row in rows}.values())


def _widest(rows: Iterable[Joint]) -> tuple[Joint, ...]:
    """Return the rows, of those about the same thing the one over the most seeds.

    Variants share what is about the backbone's samples, and may have fewer seeds.
    """
    found: dict[tuple[Any, ...], Joint] = {}
    for row in rows:
        about = (row.place, row.strategy, getattr(row, "reference", None), row.budget)
        if len(row.seeds) > len(found.setdefault(about, row).seeds):
            found[about] = row
    return tuple(found.values())


def _groups(replays: Sequence[Replay]) -> list[list[Replay]]:
    """Return the replays that differ in their seed alone together."""
    groups: dict[tuple[str, str, str], list[Replay]] = {}
    for replay in replays:
        groups.setdefault((replay.task, replay.backbone, replay.name), []).append(replay)
    return list(groups.values())


def _scaling(group: Sequence[Replay]) -> Scaling:
    return joined([(replay.questions, Scaling(replay.curves)) for replay in group])


def _seeds(group: Sequence[Replay]) -> tuple[int, ...]:
    return tuple(replay.seed for replay in group)


def _ends(found: Estimate) -> tuple[float, float]:
    return found.low, found.high
