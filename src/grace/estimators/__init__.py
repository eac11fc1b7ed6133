"""Confidence estimators: one file each, all answering "how likely is this response right?".

Adding one is one new file here whose `ESTIMATOR` is a frozen dataclass: its fields are its
settings, `[estimators.NAME]` in a recipe. A suffix recalibrates any of them on validation answers:
`likelihood+isotonic`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from grace import plugins
from grace.config import from_dict
from grace.engines import Engine
from grace.errors import ConfigError
from grace.records import Message, Question, Response

Answers = Literal["base", "tuned"]


class Draw(NamedTuple):
    """A further sampled response and the answer in it, None if there is none."""

    response: Response
    answer: str | None


Draws = Sequence[Sequence[Draw]]


def _no_draws(count: int) -> Draws:
    raise ConfigError(f"these responses come without further samples, {count} were asked for")


@dataclass(frozen=True, slots=True)
class Samples:
    """Graded responses, row by row.

    `responses[i]` answers `questions[i]`, asked in the conversation `messages[i]` whose token ids
    are `prompts[i]`; `answers[i]` is the answer in it as it counts in a vote. `draw(n)` returns n
    further samples of each row's question. Of test responses `correct` must not be used.
    """

    questions: Sequence[Question]
    messages: Sequence[Sequence[Message]]
    prompts: Sequence[Sequence[int]]
    responses: Sequence[Response]
    answers: Sequence[str | None]
    correct: Sequence[bool]
    draw: Callable[[int], Draws] = _no_draws

    def part(self, rows: range) -> Samples:
        """Return consecutive rows, without further samples."""
        names = [field.name for field in dataclasses.fields(self) if field.name != "draw"]
        return Samples(**{name: getattr(self, name)[rows.start : rows.stop] for name in names})


class Known(Protocol):
    """What an estimator may fit on: the responses, as `Estimator.answers` says, of two splits."""

    @property
    def train(self) -> Samples:
        """The backbone's training responses."""
        ...

    @property
    def validation(self) -> Samples:
        """Validation responses of the model whose answers are rated."""
        ...


Values = list[float | None]
Rows = list[int]


class Fitted(NamedTuple):
    """Rates responses, with the number of parameters that were fitted for it."""

    rate: Callable[[Samples], Values]
    trained_parameters: int = 0


class Estimator(Protocol):
    """Rates responses. `answers` says whose: the backbone's own, or the tuned model's."""

    @property
    def answers(self) -> Answers:
        """Whose responses it rates."""
        ...

    def fit(self, known: Known, engine: Engine, seed: int) -> Fitted:
        """Return what gives every response one value in [0, 1], or None.

        `engine` runs the model whose answers are rated (see `asked_by`); it loads when first asked.
        """
        ...


def asked_by(estimator: Estimator) -> Answers:
    """Return which model an estimator asks: that whose answers it rates, unless it has `asks`."""
    found: Answers = getattr(estimator, "asks", estimator.answers)
    return found


def check_estimator(estimator: Estimator) -> None:
    """Refuse an estimator that says (`check`) before any work that it cannot be fitted here.

    Raises:
        ConfigError: what the estimator raises; the message says what to do.
    """
    getattr(estimator, "check", lambda: None)()


def load_estimator(name: str, options: Mapping[str, Any] | None = None) -> Estimator:
    """Return the estimator of a name, with a recalibration if the name ends in one.

    Args:
        name: a file of this folder or `module:NAME`, then perhaps `+platt`, `+isotonic` or
            `+temperature`.
        options: the settings of this estimator.

    Raises:
        ConfigError: no such estimator or recalibration, or an unknown setting.
    """
    from grace.estimators.recalibrated import recalibrate

    plain, plus, how = name.partition("+")
    kind = plugins.load("grace.estimators", plain)
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind) and hasattr(kind, "fit")):
        raise ConfigError(
            f"{plain!r} cannot serve as an estimator: it must be a dataclass with fit()"
        )
    made: Any = from_dict(kind, options or {}, where=f"estimators.{plain}")
    estimator: Estimator = recalibrate(made, how) if plus else made
    return estimator


def of_ended(
    rate: Callable[[Samples, Rows], Iterable[float | None]], trained_parameters: int = 0
) -> Fitted:
    """Return what gives the rows that ended the values of `rate`, and None to cut responses."""
    return Fitted(
        lambda samples: rate_ended(samples, lambda rows: rate(samples, rows)), trained_parameters
    )


def rate_ended(samples: Samples, rate: Callable[[Rows], Iterable[float | None]]) -> Values:
    """Return the values that `rate` gives the rows it is called with, None for cut responses.

    `rate` is called once, with the rows of the responses that ended, if there are any.
    """
    rows = ended_rows(samples)
    values: Values = [None] * len(samples.responses)
    for row, value in zip(rows, rate(rows) if rows else [], strict=True):
        values[row] = value
    return values


def ended_rows(samples: Samples) -> Rows:
    """Return the rows of the responses that ended."""
    return [i for i, r in enumerate(samples.responses) if r.finish_reason == "stop"]
