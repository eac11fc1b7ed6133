"""Confidence estimators: each estimates the probability that a response is right.

To add one, write one file here, or in a folder below, that assigns `ESTIMATOR`, a frozen dataclass
with `fit`, or `ESTIMATORS`, several by name. Its fields are its settings, `[estimators.NAME]` in a
recipe. A suffix recalibrates any estimator on validation answers: `likelihood+isotonic`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from grace.engines import Engine
from grace.errors import ConfigError
from grace.records import Message, Question, Response, is_whole

Answers = Literal["base", "tuned"]


class Draw(NamedTuple):
    """One more sampled response and the answer extracted from it, None if there is none."""

    response: Response
    answer: str | None


Draws = Sequence[Sequence[Draw]]
Rows = Sequence[int]
Values = list[float | None]


def _no_draws(count: int) -> Draws:
    raise ConfigError(
        f"an estimator compares a response with {count} further samples of its question, which "
        "there are only for the test answers of a run; leave it out here"
    )


@dataclass(frozen=True, slots=True)
class Samples:
    """Graded responses, row by row.

    `responses[i]` answers `questions[i]`, asked in the conversation `messages[i]` whose token ids
    are `prompts[i]`; `answers[i]` is the answer extracted from it. `draw(n)` samples n more
    responses to each row's question. An estimator must not read `correct` of test responses.
    """

    questions: Sequence[Question]
    messages: Sequence[Sequence[Message]]
    prompts: Sequence[Sequence[int]]
    responses: Sequence[Response]
    answers: Sequence[str | None]
    correct: Sequence[bool]
    draw: Callable[[int], Draws] = _no_draws

    def token_ids(self, rows: Rows) -> tuple[list[Sequence[int]], list[Sequence[int]]]:
        """Return the token ids of the prompts and of the responses of some rows."""
        prompts = [self.prompts[row] for row in rows]
        return prompts, [self.responses[row].token_ids for row in rows]

    def part(self, rows: Rows) -> Samples:
        """Return some rows, without further samples."""
        names = [field.name for field in dataclasses.fields(self) if field.name != "draw"]
        columns: dict[str, Any] = {
            name: [getattr(self, name)[row] for row in rows] for name in names
        }
        return Samples(**columns)


class Splits(Protocol):
    """The graded responses that an estimator may be fitted on; see `rated_model`."""

    @property
    def train(self) -> Samples:
        """The backbone's training responses."""
        ...

    @property
    def validation(self) -> Samples:
        """Validation responses of the model whose answers are rated."""
        ...


class Fitted(NamedTuple):
    """A fitted estimator: the function that rates responses, and its number of parameters."""

    rate: Callable[[Samples], Values]
    trained_parameters: int = 0


class Estimator(Protocol):
    """Estimates the confidence in responses of the backbone or, with `answers`, the tuned model."""

    def fit(self, splits: Splits, engine: Engine, seed: int) -> Fitted:
        """Fit a function that gives every response a value in [0, 1], or None.

        `engine` runs the model that `asked_by` names; the model is loaded at the first call.
        """
        ...


def rated_model(estimator: Estimator) -> Answers:
    """Return the model whose responses an estimator rates: its `answers`, if it has that."""
    return getattr(estimator, "answers", "base")


def asked_by(estimator: Estimator) -> Answers:
    """Return the model that an estimator calls: `asks` if it has that, else the one it rates."""
    return getattr(estimator, "asks", rated_model(estimator))


def draws_further(estimator: Estimator) -> bool:
    """Return whether an estimator calls `Samples.draw`: its `draws`, if it has that."""
    return getattr(estimator, "draws", False)


def check_estimator(estimator: Estimator) -> None:
    """Call the estimator's `check`, if it has one, which raises when it cannot be fitted here."""
    getattr(estimator, "check", lambda: None)()


def of_ended(
    rate: Callable[[Samples, Rows], Iterable[float | None]], trained_parameters: int = 0
) -> Fitted:
    """Make a fitted estimator of a function that rates the rows whose responses ended.

    Responses that were cut off or are empty get None. `rate` is not called where none ended.
    """

    def rate_all(samples: Samples) -> Values:
        values: Values = [None] * len(samples.responses)
        rows = ended_rows(samples)
        for row, value in zip(rows, rate(samples, rows) if rows else (), strict=True):
            values[row] = value
        return values

    return Fitted(rate_all, trained_parameters)


def ended_rows(samples: Samples) -> Rows:
    """Return the rows of the responses that ended and say something."""
    return [i for i, r in enumerate(samples.responses) if is_whole(r)]
