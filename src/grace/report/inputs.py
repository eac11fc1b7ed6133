"""The inputs of a report: plain values, no model and no file. `merge` joins several runs."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grace.config import flatten
from grace.errors import UserInputError
from grace.report.names import of_run
from grace.report.rows import Pooled, RatedAnswer, TargetRow, Validation, group_by
from grace.scaling import Curve, PairWins

SAME_CONFIDENCE = 1e-6
"""Two batches of the same model differ by at most this; reports round to it."""

FEWEST_OF_A_PART = 20
"""Responses of a source, below which it has no rows of its own."""

Key = tuple[str, str, str, str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatorResult:
    """One estimator's confidences in the test responses of one task, with their grades.

    None or nan is missing (the response was cut off, or no number could be parsed): it is counted
    and never filled in. Costs are None where not measured.
    """

    task: str
    train_task: str  # another than `task`: out of domain
    backbone: str
    estimator: str
    seed: int
    confidence: Sequence[float | None]
    correct: Sequence[bool]
    ids: Sequence[str] = ()  # <question>#<sample>, by which estimators and seeds are compared
    groups: Sequence[Hashable] = ()  # clusters of resamples; by default the questions
    training: frozenset[str] = frozenset()  # ids of the run's training questions, if known
    seconds_per_answer: float | None = None
    extra_forward_tokens_per_answer: float | None = None
    extra_requests_per_answer: float | None = None
    fit_seconds: float | None = None  # total for what is used
    trained_parameters: int | None = None
    access: str | None = None  # one of `names.ACCESS`
    run: str = ""  # its name for the trained confidence

    @property
    def key(self) -> Key:
        """The task, training task, backbone, estimator and seed; unique in a report."""
        return self.task, self.train_task, self.backbone, self.estimator, self.seed

    def parts(self, names: Sequence[str]) -> Iterator[EstimatorResult]:
        """Yield the results by name of the responses, as tasks, from `FEWEST_OF_A_PART` on."""
        rows_of = group_by(range(len(names)), names.__getitem__)
        for name in sorted(rows_of) if len(rows_of) > 1 else ():
            rows = rows_of[name]
            if len(rows) >= FEWEST_OF_A_PART:
                yield self.part(name, rows)

    def part(self, name: str, rows: Sequence[int]) -> EstimatorResult:
        """Return the results of some responses, as a task of its own."""
        return replace(
            self,
            task=f"{self.task}: {name}",
            train_task=f"{self.train_task}: {name}",
            confidence=[self.confidence[row] for row in rows],
            correct=[self.correct[row] for row in rows],
            ids=[self.ids[row] for row in rows] if self.ids else (),
            groups=[self.groups[row] for row in rows] if self.groups else (),
        )

    def answered(self) -> list[int]:
        """Return the positions of the responses that have a confidence."""
        return [i for i, c in enumerate(self.confidence) if c is not None and not math.isnan(c)]


class Traced(NamedTuple):
    """The confidence along one run's test answers: `c_NS` at S even steps of each of N answers."""

    task: str
    backbone: str
    name: str
    c_NS: NDArray[np.float64]
    correct_N: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The outcomes of strategies on the stored samples of one run, question by question."""

    task: str
    backbone: str
    name: str  # of the trained model
    seed: int
    questions: Sequence[str]
    curves: Sequence[Curve]
    answers: Mapping[str, str]  # by curve: whose samples it votes over, `name` or "base"
    # by (whose samples, estimator)
    wins: Mapping[tuple[str, str], PairWins] = field(default_factory=dict)
    pools: Sequence[Pooled] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportInput:
    """Everything that one report is computed from."""

    name: str
    created: str  # any text
    hardware: str
    results: Sequence[EstimatorResult]
    targets: Sequence[TargetRow] = ()
    replays: Sequence[Replay] = ()
    notes: Sequence[str] = ()
    settings: Mapping[str, object] = field(default_factory=dict)  # may be nested
    examples: Sequence[RatedAnswer] = ()  # may be all: a few are picked
    validation: Sequence[Validation] = ()
    traces: Sequence[Traced] = ()


def merge(runs: Iterable[ReportInput], name: str) -> ReportInput:
    """Join inputs; an equal estimator counts once, another with its name is named after its run."""
    inputs = list(runs)

    def every(part: str) -> list[Any]:
        return [entry for data in inputs for entry in getattr(data, part)]

    return ReportInput(
        name=name,
        created=max(data.created for data in inputs),
        hardware=_distinct(data.hardware for data in inputs),
        results=_results(every("results")),
        targets=_targets(inputs),
        replays=list({(r.task, r.backbone, r.name, r.seed): r for r in every("replays")}.values()),
        notes=list(dict.fromkeys(every("notes"))),
        settings=_settings(inputs),
        examples=_examples(inputs),
        validation=list(
            {(r.place, r.seed, r.a, r.b, r.metric): r for r in every("validation")}.values()
        ),
        traces=every("traces"),
    )


def setting_texts(settings: Mapping[str, object]) -> dict[str, str]:
    """Return nested settings as texts by their dotted names."""
    return {
        key: ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        for key, value in flatten(settings).items()
    }


def _distinct(values: Iterable[str]) -> str:
    """Join the distinct values, in order of appearance."""
    return "; ".join(dict.fromkeys(values))


def _results(results: Sequence[EstimatorResult]) -> list[EstimatorResult]:
    first: dict[Key, EstimatorResult] = {}
    for result in results:
        known = first.setdefault(result.key, result)
        if not _same(known, result) and known.run != result.run:
            result = replace(result, estimator=of_run(result.estimator, result.run))
            known = first.setdefault(result.key, result)
        if not _same(known, result):
            task, train_task, backbone, estimator, seed = result.key
            raise UserInputError(
                f"two different results for {estimator} on {task} (trained on {train_task}, "
                f"{backbone}, seed {seed}); leave one run out, or give it a name: grace run RUN "
                "--redo report --set report.name=NAME"
            )
    return list(first.values())


def _same(a: EstimatorResult, b: EstimatorResult) -> bool:
    """Compare the answers and confidences of two results; costs may differ."""
    if list(a.ids) != list(b.ids) or list(a.correct) != list(b.correct):
        return False
    a_N, b_N = (np.array(side.confidence, dtype=np.float64) for side in (a, b))
    return np.allclose(a_N, b_N, rtol=0, atol=SAME_CONFIDENCE, equal_nan=True)


def _targets(inputs: Sequence[ReportInput]) -> list[TargetRow]:
    """Pool the bins of each task over the seeds of its first run: variants have other targets."""
    named = [(setting_texts(data.settings).get("report.name", ""), data) for data in inputs]
    rows = [(name, row) for name, data in named for row in data.targets]
    first = {row.task: name for name, row in reversed(rows)}
    same = (row for name, row in rows if first[row.task] == name)
    bins = group_by(same, lambda row: (row.task, row.low, row.high))
    pooled = []
    for same_bin in (bins[key] for key in sorted(bins)):
        n = sum(row.n for row in same_bin)
        right = sum(row.n * (row.accuracy or 0.0) for row in same_bin)
        pooled.append(replace(same_bin[0], n=n, accuracy=right / n if n else None))
    return pooled


def _settings(inputs: Sequence[ReportInput]) -> dict[str, str]:
    values: dict[str, list[str]] = {}
    for data in inputs:
        for key, text in setting_texts(data.settings).items():
            values.setdefault(key, []).append(text)
    return {key: _distinct(texts) for key, texts in values.items()}


def _examples(inputs: Sequence[ReportInput]) -> list[RatedAnswer]:
    """Keep of each task the examples of the first run that has any."""
    first: dict[str, list[RatedAnswer]] = {}
    for data in inputs:
        first = group_by(data.examples, lambda example: example.task) | first
    return [example for task in sorted(first) for example in first[task]]
