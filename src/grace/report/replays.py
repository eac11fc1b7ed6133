"""From replays of stored samples to the rows of report.json, per seed and over seeds."""

from __future__ import annotations

import json
import statistics
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from grace.report.inputs import Replay
from grace.scaling import Estimate, PairWins, Point, Scaling, discrimination, joined

BASELINE = "sc"
BASE = "base"
"""Whose samples the backbone's are."""

BUDGET = 8
"""The budget of the paper's tables; where it is missing the largest one is shown."""

REFERENCES = ("sc", "asc", "esc")
"""The strategies whose accuracy others are asked to reach."""

POOLED = ("accuracy", "ece", "brier", "auroc")
Row = dict[str, Any]


def replay_rows(replays: Sequence[Replay]) -> Row:
    """Return everything that a report says of replays."""
    groups = _groups(replays)
    return {
        "scaling": _distinct(row for replay in replays for row in seed_rows(replay)),
        "scaling_joint": _widest(row for group in groups for row in _joint(group)),
        "equal_accuracy": _widest(row for group in groups for row in equal_rows(group)),
        "pools": _distinct(row for replay in replays for row in replay.pools),
        "discrimination": _discrimination(replays),
        "promises": _distinct(row for replay in replays for row in replay.promises),
        "cases": _distinct(row for replay in _first_of_tasks(replays) for row in replay.cases),
    }


def seed_rows(replay: Replay) -> list[Row]:
    """Return every strategy at every budget, of one seed."""
    rows = _measured(_scaling([replay]), replay)
    return [row | {"seed": replay.seed} for row in rows]


def equal_rows(group: Sequence[Replay]) -> Iterator[Row]:
    """Yield what sure-enough strategies need for the accuracy that others have at the budget."""
    scaling, first = _scaling(group), group[0]
    budget = shown_budget(scaling.budgets)
    stopping = [
        curve
        for curve in scaling.curves.values()
        if curve.estimator is not None and curve.threshold is not None
    ]
    for curve in stopping:
        references = [*REFERENCES, *(f"{name}@{first.answers[curve.name]}" for name in REFERENCES)]
        for reference in (name for name in references if name in scaling.curves):
            found = scaling.reach(curve.name, reference, budget)
            yield {
                **_about(first),
                "strategy": curve.name,
                "estimator": curve.estimator,
                "threshold": curve.threshold,
                "reference": reference,
                "budget": budget,
                "seeds": _seeds(group),
                "accuracy": found.accuracy.value,
                "interval": _ends(found.accuracy),
                "reference_samples": found.reference_samples.value,
                "samples": found.samples.value,
                "samples_interval": _ends(found.samples),
                "saved": found.saved.value,
                "saved_interval": _ends(found.saved),
                "reached": found.reached,
            }


def shown_budget(budgets: Iterable[int]) -> int:
    """Return the budget of the tables."""
    known = set(budgets)
    return BUDGET if BUDGET in known else max(known)


def _distinct(rows: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Return the rows without repeats: variants share what is about the backbone's samples."""
    return list({json.dumps(row): dict(row) for row in rows}.values())


def _widest(rows: Iterable[Row]) -> list[Row]:
    """Return the rows, of those about the same thing the one over the most seeds.

    Variants share what is about the backbone's samples, and may have fewer seeds.
    """
    found: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        names = ("task", "backbone", "strategy", "reference", "budget")
        about = tuple(row.get(name) for name in names)
        if len(row["seeds"]) > len(found.setdefault(about, row)["seeds"]):
            found[about] = row
    return list(found.values())


def _groups(replays: Sequence[Replay]) -> list[list[Replay]]:
    """Return the replays that differ in their seed alone together."""
    groups: dict[tuple[str, str, str], list[Replay]] = {}
    for replay in replays:
        groups.setdefault((replay.task, replay.backbone, replay.name), []).append(replay)
    return list(groups.values())


def _scaling(group: Sequence[Replay]) -> Scaling:
    return joined([(replay.questions, Scaling(replay.curves)) for replay in group])


def _joint(group: Sequence[Replay]) -> Iterator[Row]:
    """Yield every strategy at every budget, over the seeds."""
    for row in _measured(_scaling(group), group[0]):
        yield row | {"seeds": _seeds(group)}


def _measured(scaling: Scaling, about: Replay) -> Iterator[Row]:
    """Yield every strategy at every budget.

    `gain` is the paired difference in accuracy to `sc`, `gain_own` that to SC over the tuned
    model's samples, for strategies that vote over these. `used` are the shares of questions that
    took 1, 2, ... samples.
    """
    own = f"{BASELINE}@{about.name}"
    for point in scaling.points(BASELINE):
        compared = None
        if about.answers[point.policy] != BASE and own in scaling.curves:
            compared = scaling.difference(point.policy, own, point.budget)
        used_V = scaling.used(point.policy, point.budget)
        yield {
            **_about(about),
            "strategy": point.policy,
            "answers": about.answers[point.policy],
            **_figures(point),
            "gain_own": compared.value if compared else None,
            "gain_own_interval": _ends(compared) if compared else None,
            "used": used_V[1 : point.budget + 1].tolist(),
        }


def _figures(point: Point) -> Row:
    return {
        "estimator": point.estimator,
        "budget": point.budget,
        "threshold": point.threshold,
        "n": point.n,
        "accuracy": point.accuracy.value,
        "interval": _ends(point.accuracy),
        "spread": point.spread,
        "mean_samples": point.samples.value,
        "samples_interval": _ends(point.samples),
        "mean_tokens": point.tokens.value,
        "gain": point.gain.value if point.gain else None,
        "gain_interval": _ends(point.gain) if point.gain else None,
    }


def _discrimination(replays: Sequence[Replay]) -> list[Row]:
    """Return how good every estimator's confidences in single samples are, over the seeds."""
    found: dict[tuple[str, str, str, str], dict[int, tuple[Row, Sequence[Hashable], PairWins]]] = {}
    for replay in replays:
        for pool in replay.pools:
            for row in pool["confidences"]:
                which = (pool["answers"], row["estimator"])
                own = found.setdefault((replay.task, replay.backbone, *which), {})
                if which in replay.wins:
                    own.setdefault(replay.seed, (row, replay.questions, replay.wins[which]))
    return [_discriminates(*about, by_seed) for about, by_seed in found.items() if by_seed]


def _discriminates(
    task: str,
    backbone: str,
    answers: str,
    estimator: str,
    by_seed: Mapping[int, tuple[Row, Sequence[Hashable], PairWins]],
) -> Row:
    rows, questions, wins = zip(*by_seed.values(), strict=True)
    found = discrimination(questions, wins)
    return {
        "task": task,
        "backbone": backbone,
        "answers": answers,
        "estimator": estimator,
        "seeds": list(by_seed),
        "n": sum(row["n"] for row in rows),
        **{name: _mean([row[name] for row in rows]) for name in POOLED},
        "wqd": found.value if found else None,
        "wqd_interval": _ends(found) if found else None,
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _first_of_tasks(replays: Sequence[Replay]) -> list[Replay]:
    by_task: dict[str, Replay] = {}
    for replay in replays:
        by_task.setdefault(replay.task, replay)
    return list(by_task.values())


def _about(replay: Replay) -> Row:
    return {"task": replay.task, "backbone": replay.backbone}


def _seeds(group: Sequence[Replay]) -> list[int]:
    return [replay.seed for replay in group]


def _ends(found: Estimate) -> list[float]:
    return [found.low, found.high]
