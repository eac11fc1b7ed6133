"""The rows that travel through the pipeline, one frozen type per step.

A question has an `id`; its responses are `"<question id>#<sample>"`. That response id joins
every later table (grades, targets, features, confidences).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypedDict, TypeVar, cast, get_type_hints

from grace import notebook

FinishReason = Literal["stop", "length", "dropped"]


class Message(TypedDict):
    """One turn of a conversation; `role` is system, user or assistant."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Question:
    """One question with everything needed to ask and to grade it.

    `answers` holds the accepted answers; for multiple choice it is the one right letter and
    `choices` holds the option texts in the order of the letters A, B, C, ...
    """

    id: str
    task: str
    text: str
    answers: tuple[str, ...]
    choices: tuple[str, ...] = ()


class Generation(NamedTuple):
    """What an engine returns for one sample.

    `token_ids` are the response tokens without the end token, `logprobs` their natural-log
    probabilities under the raw temperature-1 softmax, one per token, `end_logprob` is
    log(p(EOS) + p(<CNF>)) at the end step, and `trace` is c at every step (the end step last;
    empty without <CNF>; see `grace.evidence`). `end_logprob` and `confidence` are None when the
    response was cut (`finish_reason == "length"`), or dropped as hopeless on the way.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    logprobs: tuple[float, ...]
    end_logprob: float | None
    confidence: float | None
    trace: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Response:
    """One sampled response as it is stored (see `Generation` for the fields).

    `trace` is empty unless the model was trained with `train.trace`.
    """

    id: str
    question_id: str
    sample: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    logprobs: tuple[float, ...]
    end_logprob: float | None
    confidence: float | None
    trace: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Grade:
    """Whether a response is right. `answer` is the extracted answer that votes, None if none."""

    id: str
    question_id: str
    correct: bool
    answer: str | None


@dataclass(frozen=True, slots=True)
class Target:
    """What <CNF> should say for a response: probe score, bin index, and that bin's accuracy."""

    id: str
    score: float
    bin: int
    target: float


@dataclass(frozen=True, slots=True)
class Confidence:
    """An estimator's P(the response is correct) in [0, 1], or None when it has no value."""

    id: str
    confidence: float | None


@dataclass(frozen=True, slots=True)
class Vote:
    """One sample as a strategy sees it; `answer` is None when none could be extracted."""

    answer: str | None
    confidence: float | None
    tokens: int = 0
    text: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class Decision:
    """The outcome of a vote: the answer, its confidence, and what it took.

    `confidence` is the mean confidence of the votes for the answer; `samples` and `tokens` count
    every sample used, also those without an answer. `issued` and `issued_tokens` count those that
    were started, cancelled ones too. `threshold` is the one that could stop the vote, if any;
    `promise` says what it guarantees when it is the run's own. `abstains`: that guarantee covers
    sure answers only, and no sample was sure enough; the answer is the vote's then, without one.
    """

    answer: str | None
    confidence: float | None
    samples: int
    tokens: int
    votes: tuple[Vote, ...]
    issued: int
    issued_tokens: int
    threshold: float | None = None
    promise: str = ""
    abstains: bool = False

    def __repr__(self) -> str:
        """Return the answer and what it took; the fields hold the rest."""
        return notebook.line("Decision", self.answer, self.confidence, self._notes())

    def _repr_html_(self) -> str:
        return notebook.card(self.answer, self.confidence, self._notes())

    def _notes(self) -> list[str]:
        spent = f"{self.samples} sample{'s' * (self.samples != 1)}"
        return [spent, *(["abstains"] if self.abstains else [])]


@dataclass(frozen=True, slots=True)
class Threshold:
    """The threshold that a run has chosen on its validation questions, and what it guarantees.

    `mode` is `answer` (one answer at `temperature`, or none) or `early-stop` (up to `budget`
    samples). `tau` is None when no threshold can guarantee the `target` accuracy of the answers
    given, except with probability `delta`; a question without a sure answer gets none. `n`
    questions were used, `bound` is what their answers show at tau, `promise` the whole in words.
    `tries` counts the different guarantees that were asked of the same questions. `test` is what
    the test questions show, which did not take part. With early stopping samples below `drop`
    are aborted, at most a share of `alpha` of the right ones, except with probability `delta / 2`;
    then the other half of delta is left for the rest.
    """

    mode: Literal["answer", "early-stop"]
    budget: int
    temperature: float
    target: float
    delta: float
    tau: float | None
    n: int
    bound: float
    promise: str
    tries: int = 1
    test: dict[str, Any] | None = None
    drop: float = 0.0
    alpha: float | None = None


Row = TypeVar("Row")


def response_id(question_id: str, sample: int) -> str:
    """Return the id of sample number `sample` (from 0) of a question."""
    return f"{question_id}#{sample}"


def to_json(row: Any) -> dict[str, Any]:
    """Return a record as a JSON-ready dict, fields in order."""
    return dataclasses.asdict(row)


def from_json(row_type: type[Row], data: dict[str, Any]) -> Row:
    """Build a record from a dict; lists become tuples where the field is a tuple.

    Raises:
        TypeError: a field is missing or unknown.
    """
    tuples = _tuple_fields(cast(Hashable, row_type))
    values = {
        name: tuple(value) if isinstance(value, list) and name in tuples else value
        for name, value in data.items()
    }
    return row_type(**values)


@functools.cache
def _tuple_fields(row_type: Any) -> frozenset[str]:
    """Return the fields that hold tuples; asking a type for its hints is slow."""
    return frozenset(name for name, t in get_type_hints(row_type).items() if "tuple" in str(t))
