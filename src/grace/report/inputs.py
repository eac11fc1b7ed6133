"""The inputs of a report: plain values, no model and no file. `merge` joins several runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grace.errors import UserInputError
from grace.report.names import ACCESS
from grace.report.rows import TargetRow, Validation
from grace.report.scaling.rows import Pooled
from grace.scaling import Curve, PairWins

SAME_CONFIDENCE = 1e-6
"""The largest difference between two batches of the same model; reports round to it."""

Key = tuple[str, str, str, str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatorResult:
    """One estimator's confidences in the test responses of one task, with their grades.

    A confidence of None or nan means that there is none (cut at length, nothing parsed): such
    responses are counted as missing and never filled in. `ids` are response ids
    ("<question>#<sample>"); they let a report compare estimators and seeds question by question,
    also when the answers under an id differ (a tuned model's against its backbone's).
    `train_task` other than `task` means out of domain. Costs are None where not measured:
    seconds and requests are per answer, `fit_seconds` once, `access` is one of `ACCESS`.
    """

    task: str
    train_task: str
    backbone: str
    estimator: str
    seed: int
    confidence: Sequence[float | None]
    correct: Sequence[bool]
    ids: Sequence[str] = ()
    seconds_per_answer: float | None = None
    extra_forward_tokens_per_answer: float | None = None
    extra_requests_per_answer: float | None = None
    fit_seconds: float | None = None
    trained_parameters: int | None = None
    access: str | None = None

    def __post_init__(self) -> None:
        sizes = {len(self.confidence), len(self.correct), len(self.ids or self.correct)}
        if len(sizes) > 1:
            raise UserInputError(
                f"{self.estimator} on {self.task} has {len(self.confidence)} confidences, "
                f"{len(self.correct)} grades and {len(self.ids)} ids; give one each per response"
            )
        if len(set(self.ids)) < len(self.ids):
            raise UserInputError(
                f"{self.estimator} on {self.task} has {len(self.ids)} responses but only "
                f"{len(set(self.ids))} different ids; a response's id is <question>#<sample>"
            )
        if self.access is not None and self.access not in ACCESS:
            raise UserInputError(
                f"access of {self.estimator} is {self.access!r}; known: {', '.join(ACCESS)}"
            )

    @property
    def key(self) -> Key:
        """The task, training task, backbone, estimator and seed; unique in a report."""
        return self.task, self.train_task, self.backbone, self.estimator, self.seed

    def answered(self) -> list[int]:
        """Return the positions of the responses that have a confidence."""
        return [i for i, c in enumerate(self.confidence) if c is not None and not math.isnan(c)]


class RatedAnswer(NamedTuple):
    """One answered question to show on the page."""

    question: str
    answer: str
    correct: bool
    confidence: float | None
    task: str = ""
    accepted: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()


class Traced(NamedTuple):
    """The confidence along the test answers of one run: `c_NS` at S even shares of each answer."""

    task: str
    backbone: str
    name: str
    c_NS: NDArray[np.float64]
    correct_N: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The outcomes of strategies on the stored samples of one run, question by question.

    `name` is what the run calls its trained model, `answers` says of each curve whose samples it
    votes over (`name`, or "base"). `wins` are within-question wins by (whose samples, estimator).
    """

    task: str
    backbone: str
    name: str
    seed: int
    questions: Sequence[str]
    curves: Sequence[Curve]
    answers: Mapping[str, str]
    wins: Mapping[tuple[str, str], PairWins] = field(default_factory=dict)
    pools: Sequence[Pooled] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportInput:
    """Everything in one report; `created` is a text that the caller chooses.

    `target_values` are the targets of the training responses of each task (for their density).
    `settings` (may be nested) are shown as text, `examples` may be all responses: a few are
    picked.
    """

    name: str
    created: str
    version: str
    hardware: str
    results: Sequence[EstimatorResult]
    targets: Sequence[TargetRow] = ()
    target_values: Mapping[str, Sequence[float]] = field(default_factory=dict)
    replays: Sequence[Replay] = ()
    notes: Sequence[str] = ()
    settings: Mapping[str, object] = field(default_factory=dict)
    examples: Sequence[RatedAnswer] = ()
    validation: Sequence[Validation] = ()
    traces: Sequence[Traced] = ()


def merge(inputs: Sequence[ReportInput], name: str) -> ReportInput:
    """Return one input with the raw confidences of several, so that statistics are joint.

    The same confidences in two inputs (an estimator that two runs share) count once, at the
    first one's cost. Targets are kept per training task, notes that several share once,
    settings that differ are listed side by side, and examples come from the first run of each
    task.

    Raises:
        UserInputError: no input, or different results for the same estimator, task and seed.
    """
    if not inputs:
        raise UserInputError("there are no runs to report; name at least one")

    def every(part: str) -> list[Any]:
        return [entry for data in inputs for entry in getattr(data, part)]

    return ReportInput(
        name=name,
        created=max(data.created for data in inputs),
        version=joined(data.version for data in inputs),
        hardware=joined(data.hardware for data in inputs),
        results=_results(every("results")),
        targets=_targets(every("targets")),
        target_values=_target_values(inputs),
        replays=list({(r.task, r.backbone, r.name, r.seed): r for r in every("replays")}.values()),
        notes=list(dict.fromkeys(every("notes"))),
        settings=_settings(inputs),
        examples=_examples(inputs),
        validation=list(
            {(r.place, r.seed, r.a, r.b, r.metric): r for r in every("validation")}.values()
        ),
        traces=every("traces"),
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


def _results(results: Sequence[EstimatorResult]) -> list[EstimatorResult]:
    found: dict[Key, EstimatorResult] = {}
    for result in results:
        if not _same(found.setdefault(result.key, result), result):
            raise UserInputError(different(result.key))
    return list(found.values())


def _same(a: EstimatorResult, b: EstimatorResult) -> bool:
    """Return whether two results hold the same answers and confidences; costs may differ."""
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


def _targets(rows: Sequence[TargetRow]) -> list[TargetRow]:
    pooled: dict[tuple[str, float, float], TargetRow] = {}
    for row in rows:
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
        for task, values in data.target_values.items():
            found.setdefault(task, []).extend(values)
    return found


def _settings(inputs: Sequence[ReportInput]) -> dict[str, str]:
    each = [dict(flat(data.settings)) for data in inputs]
    keys = dict.fromkeys(key for settings in each for key in settings)
    return {key: joined(s[key] for s in each if key in s) for key in keys}


def _examples(inputs: Sequence[ReportInput]) -> list[RatedAnswer]:
    first: dict[str, ReportInput] = {}
    for data in inputs:
        first = {example.task: data for example in data.examples} | first
    return [e for task in sorted(first) for e in first[task].examples if e.task == task]
