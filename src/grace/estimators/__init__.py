"""Confidence estimators: one file each, all answering "how likely is this response right?".

Adding one is one new file here whose `ESTIMATOR` is a frozen dataclass: its fields are its
settings, `[estimators.NAME]` in a recipe. A suffix recalibrates any of them on validation answers:
`likelihood+isotonic`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

from grace import plugins
from grace.config import from_dict
from grace.errors import ConfigError
from grace.records import Message, Question, Response

if TYPE_CHECKING:
    from grace.engines import Engine

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

        `engine` runs the model whose answers are rated (see `Asks`); it loads when first asked.
        """
        ...


@runtime_checkable
class Asks(Protocol):
    """An estimator that asks another model than the one whose answers it rates."""

    @property
    def asks(self) -> Answers:
        """Which model the engine given to `fit` runs."""
        ...


def asked_by(estimator: Estimator) -> Answers:
    """Return which model an estimator asks: that whose answers it rates, unless it says so."""
    return estimator.asks if isinstance(estimator, Asks) else estimator.answers


@runtime_checkable
class Checks(Protocol):
    """An estimator that knows before any work whether it can be fitted on this machine."""

    def check(self) -> None:
        """Raise ConfigError if it cannot."""
        ...


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
