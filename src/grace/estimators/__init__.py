"""Confidence estimators: one file each, all answering "how likely is this response right?".

Adding one is one new file here that defines `ESTIMATOR`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from grace.records import Question, Response

if TYPE_CHECKING:
    from grace.engines import Engine

Answers = Literal["base", "tuned"]


@dataclass(frozen=True, slots=True)
class Samples:
    """Graded responses, row by row: `responses[i]` answers `questions[i]` asked as `prompts[i]`."""

    questions: Sequence[Question]
    prompts: Sequence[Sequence[int]]
    responses: Sequence[Response]
    correct: Sequence[bool]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What an estimator may look at.

    `test` holds the responses to rate; their `correct` belongs to the report and must not be
    used. `train` and `validation` are there to fit on. `engine` loads the backbone on demand.
    """

    train: Samples
    validation: Samples
    test: Samples
    engine: Callable[[], Engine]


class Estimate(NamedTuple):
    """One value in [0, 1] or None per test response, and what they cost beyond generating."""

    confidences: list[float | None]
    extra_forward_tokens: int = 0


class Estimator(Protocol):
    """Rates responses. `answers` says whose: the backbone's own, or the tuned model's."""

    name: str
    answers: Answers

    def estimate(self, evidence: Evidence) -> Estimate:
        """Return P(correct) for every response of `evidence.test`, in order."""
        ...
