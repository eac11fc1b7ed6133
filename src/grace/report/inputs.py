"""What a report is made from: plain values, no model and no file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from grace.errors import UserInputError
from grace.report.names import ACCESS
from grace.report.rows import TargetRow
from grace.scaling import Curve, PairWins

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
        """What the result is about; no two results of a report share it."""
        return self.task, self.train_task, self.backbone, self.estimator, self.seed

    def answered(self) -> list[int]:
        """Return the positions of the responses that have a confidence."""
        return [i for i, c in enumerate(self.confidence) if c is not None and not math.isnan(c)]


class Example(NamedTuple):
    """One answered question to show on the page; without a `task`, of the first result's."""

    question: str
    answer: str
    correct: bool
    confidence: float | None
    task: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What strategies made of the stored samples of one run, question by question.

    `name` is what the run calls its trained model, `answers` says of each curve whose samples it
    votes over (`name`, or "base"). `wins` are within-question wins by (whose samples, estimator);
    `pools`, `promises` and `cases` are rows as in schema.json.
    """

    task: str
    backbone: str
    name: str
    seed: int
    questions: Sequence[str]
    curves: Sequence[Curve]
    answers: Mapping[str, str]
    wins: Mapping[tuple[str, str], PairWins] = field(default_factory=dict)
    pools: Sequence[Mapping[str, Any]] = ()
    promises: Sequence[Mapping[str, Any]] = ()
    cases: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportInput:
    """Everything in one report; `created` is a text that the caller chooses.

    Targets without a `task` are about the training task of the first result.
    `target_values` are the targets of the training responses (for their density), by task if
    there are several. `settings` (may be nested) are shown as text, `examples` may be all
    responses: a few are picked. `validation` are rows as in schema.json.
    """

    name: str
    created: str
    version: str
    hardware: str
    results: Sequence[EstimatorResult]
    targets: Sequence[TargetRow] = ()
    target_values: Sequence[float] | Mapping[str, Sequence[float]] = ()
    replays: Sequence[Replay] = ()
    notes: Sequence[str] = ()
    settings: Mapping[str, object] = field(default_factory=dict)
    examples: Sequence[Example] = ()
    validation: Sequence[Mapping[str, Any]] = ()
