"""Several runs (seeds, tasks, training tasks, backbones) become the input of one report."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from grace.errors import UserInputError
from grace.report.inputs import EstimatorResult, Example, Key, Replay, ReportInput
from grace.report.rows import TargetRow

SAME_CONFIDENCE = 1e-6
"""What two batches of the same model may differ by; reports round to as much."""


def merge(inputs: Sequence[ReportInput], name: str) -> ReportInput:
    """Return one input with the raw confidences of several, so that statistics are joint.

    The same confidences in two inputs (an estimator that two runs share) count once, at the
    first one's cost. Targets are kept per training task, notes say which run they are about,
    settings that differ are listed side by side, and examples come from the first run of each
    task.

    Raises:
        UserInputError: no input, or different results for the same estimator, task and seed.
    """
    if not inputs:
        raise UserInputError("there are no runs to report; name at least one")
    return ReportInput(
        name=name,
        created=max(data.created for data in inputs),
        version=joined(data.version for data in inputs),
        hardware=joined(data.hardware for data in inputs),
        results=_results(inputs),
        targets=_targets(inputs),
        target_values=_target_values(inputs),
        replays=_replays(inputs),
        notes=_notes(inputs),
        settings=_settings(inputs),
        examples=_examples(inputs),
        validation=_validation(inputs),
    )


def joined(values: Iterable[str]) -> str:
    """Return the different values in order of appearance as one text."""
    return "; ".join(dict.fromkeys(values))


def flat(settings: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (dotted name, text) of nested settings."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        elif isinstance(value, list | tuple):
            yield prefix + key, ", ".join(map(str, value))
        else:
            yield prefix + key, str(value)


def targets_by_task(data: ReportInput) -> dict[str, Sequence[float]]:
    """Return the target values of each training task."""
    if isinstance(data.target_values, Mapping):
        return dict(data.target_values)
    return {_train_task(data): data.target_values} if len(data.target_values) else {}


def with_tasks(data: ReportInput) -> tuple[list[TargetRow], list[Example]]:
    """Return targets and examples, each saying which task it is about."""
    targets = [replace(row, task=row.task or _train_task(data)) for row in data.targets]
    task = data.results[0].task if data.results else ""
    return targets, [example._replace(task=example.task or task) for example in data.examples]


def _train_task(data: ReportInput) -> str:
    return data.results[0].train_task if data.results else ""


def _results(inputs: Sequence[ReportInput]) -> list[EstimatorResult]:
    found: dict[Key, EstimatorResult] = {}
    for result in itertools.chain.from_iterable(data.results for data in inputs):
        if not _same(found.setdefault(result.key, result), result):
            raise UserInputError(different(result.key))
    return list(found.values())


def _same(a: EstimatorResult, b: EstimatorResult) -> bool:
    """Whether two results hold the same answers and confidences; measured costs may differ."""
    if list(a.ids) != list(b.ids) or list(a.correct) != list(b.correct):
        return False
    mine, theirs = (np.array(side.confidence, dtype=np.float64) for side in (a, b))
    return np.allclose(mine, theirs, rtol=0, atol=SAME_CONFIDENCE, equal_nan=True)


def different(key: Key) -> str:
    """Return the message that two results about the same thing differ."""
    task, train_task, backbone, estimator, seed = key
    return (
        f"two different results for {estimator} on {task} (trained on {train_task}, "
        f"{backbone}, seed {seed}); give the runs different seeds or leave one out"
    )


def _replays(inputs: Sequence[ReportInput]) -> list[Replay]:
    """Return the replays, one for each run: a run may be in two inputs."""
    found: dict[tuple[str, str, str, int], Replay] = {}
    for replay in itertools.chain.from_iterable(data.replays for data in inputs):
        found.setdefault((replay.task, replay.backbone, replay.name, replay.seed), replay)
    return list(found.values())


def _validation(inputs: Sequence[ReportInput]) -> list[Mapping[str, Any]]:
    """Return what validation answers say, once for each run: a run may be in two inputs."""
    about = ("task", "backbone", "seed", "a", "b", "metric")
    rows = itertools.chain.from_iterable(data.validation for data in inputs)
    return list({tuple(row[key] for key in about): row for row in rows}.values())


def _targets(inputs: Sequence[ReportInput]) -> list[TargetRow]:
    pooled: dict[tuple[str, float, float], TargetRow] = {}
    for row in itertools.chain.from_iterable(with_tasks(data)[0] for data in inputs):
        key = (row.task, row.low, row.high)
        old = pooled.get(key)
        if old is None:
            pooled[key] = row
            continue
        n = old.n + row.n
        right = sum(part.n * (part.accuracy or 0.0) for part in (old, row))
        pooled[key] = replace(old, n=n, accuracy=right / n if n else None)
    return [pooled[key] for key in sorted(pooled)]


def _target_values(inputs: Sequence[ReportInput]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for data in inputs:
        for task, values in targets_by_task(data).items():
            found.setdefault(task, []).extend(values)
    return found


def _notes(inputs: Sequence[ReportInput]) -> list[str]:
    if len(inputs) == 1:
        return list(inputs[0].notes)
    return [f"{data.name}: {note}" for data in inputs for note in data.notes]


def _settings(inputs: Sequence[ReportInput]) -> dict[str, str]:
    each = [dict(flat(data.settings)) for data in inputs]
    keys = dict.fromkeys(key for settings in each for key in settings)
    return {key: joined(s[key] for s in each if key in s) for key in keys}


def _examples(inputs: Sequence[ReportInput]) -> list[Example]:
    by_task: dict[str, list[Example]] = {}
    for data in inputs:
        mine: dict[str, list[Example]] = {}
        for example in with_tasks(data)[1]:
            mine.setdefault(example.task, []).append(example)
        by_task = mine | by_task
    return [example for task in sorted(by_task) for example in by_task[task]]
