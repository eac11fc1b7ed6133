"""The records that the stages of a run pass on, one frozen type per kind.

A question has an `id`; its responses have the ids `"<question id>#<sample>"`, which join all later
tables (grades, targets, features, confidences).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict, TypeVar, cast, get_type_hints

from grace import notebook

FinishReason = Literal["stop", "length"]


class Message(TypedDict):
    """One turn of a conversation; `role` is system, user or assistant."""

    role: str
    content: str


class FieldValue(TypedDict):
    """A field of a structured answer: its value, and P(it is right) in [0, 1]."""

    value: Any
    confidence: float


@dataclass(frozen=True, slots=True)
class Question:
    """One question with everything that is needed to ask it and to grade its answers.

    `answers` holds the accepted answers. For multiple choice it holds the one right letter, and
    `choices` the option texts in the order of the letters A, B, C, ... Questions of one `group`,
    such as those about one passage, stay together in splits, folds and resamples. `source` is the
    kind of questions that it is of, where a file mixes several. `messages` is the conversation that
    is asked as it stands, whose last turn is the text; empty: a prompt asks the text.
    """

    id: str
    task: str
    text: str
    answers: tuple[str, ...]
    choices: tuple[str, ...] = ()
    group: str = ""
    source: str = ""
    messages: tuple[Message, ...] = field(default=(), hash=False)

    @property
    def quoted(self) -> str:
        """The text or, of a conversation, all of its turns, as another prompt has them."""
        turns = [f"{turn['role']}: {turn['content']}" for turn in self.messages]
        return "\n".join(turns if len(turns) > 1 else [self.text])

    @property
    def cluster(self) -> str:
        """The group, or the id of a question without one."""
        return f"group {self.group}" if self.group else self.id


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """One sample of an engine; it has ids once it is stored.

    `token_ids` are the response tokens without the end-of-sequence token, `logprobs` their natural
    log-probabilities under the softmax at temperature 1, one per token. `end_logprob` is
    log(p(EOS) + p(<CNF>)) at the end step, and `trace` is c at every step (the end step last;
    empty without <CNF>; see `grace.evidence`). `end_logprob` and `confidence` are None if the
    response was cut (`finish_reason == "length"`); an empty or
    blank response has no confidence either. `familiar` is 1 for a prompt like those of training and
    near 0 for one of another kind, None where that is not known. `fields` are those of a structured
    answer, if the model was fitted to such answers. Stored are neither of these nor, unless the
    model was trained with `grace.trace`, the `trace`.
    """

    id: str = ""
    question_id: str = ""
    sample: int = 0
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    logprobs: tuple[float, ...]
    end_logprob: float | None
    confidence: float | None
    trace: tuple[float, ...] | Sequence[float] = ()
    familiar: float | None = field(default=None, metadata={"stored": False})
    fields: Mapping[str, FieldValue] = field(
        default_factory=dict, hash=False, metadata={"stored": False}
    )


@dataclass(frozen=True, slots=True)
class Grade:
    """The grade of a response. `answer` is the extracted answer, which votes; None if none."""

    id: str
    question_id: str
    correct: bool
    answer: str | None


@dataclass(frozen=True, slots=True)
class Target:
    """The training target of a response: its probe score, its bin, and the bin's accuracy."""

    id: str
    score: float
    bin: int
    target: float


@dataclass(frozen=True, slots=True)
class Confidence:
    """An estimator's P(the response is correct) in [0, 1], or None if it has no value."""

    id: str
    confidence: float | None


@dataclass(frozen=True, slots=True)
class Vote:
    """One sample of a vote; `answer` is None if none could be extracted."""

    answer: str | None
    confidence: float | None
    tokens: int = 0
    text: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class Decision:
    """The outcome of a vote: the answer, its confidence, and the samples and tokens used.

    `confidence` is P(correct) of `grace-vote`; of other strategies it is the mean confidence of the
    votes for the answer. `samples` and `tokens` count all samples used, also those without an
    answer; `issued` and `issued_tokens` count all that were started, also cancelled ones.
    `threshold` is the confidence at which the vote stops early, if any, and `promise` the guarantee
    of that threshold if it is the run's own. `abstains` is true if the guarantee covers sure
    answers only and no sample was sure enough; `answer` is still the outcome of the vote, but
    without a guarantee. `familiar` is near 0 for a prompt unlike those of training, which has no
    guarantee either (see `grace.model.Reply`).
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
    familiar: float | None = None

    @property
    def text(self) -> str:
        """The text of the most confident vote for the answer, empty if there is no answer."""
        agreeing = [v for v in self.votes if v.answer is not None and v.answer == self.answer]
        surest = max(agreeing, key=lambda vote: vote.confidence or 0.0, default=None)
        return surest.text if surest else ""

    def __repr__(self) -> str:
        """Return the answer, its confidence and the number of samples."""
        return notebook.line("Decision", self.answer, self.confidence, self._notes())

    def _repr_html_(self) -> str:
        return notebook.card(self.answer, self.confidence, self._notes())

    def _notes(self) -> list[str]:
        spent = f"{self.samples} sample{'s' * (self.samples != 1)}"
        return [spent, *(["abstains"] if self.abstains else [])]


@dataclass(frozen=True, slots=True)
class Threshold:
    """A threshold that was chosen on a run's validation questions, and its guarantee.

    The guarantee: of the answers with a confidence of at least `tau`, a share of `target` is right,
    except with probability `delta`; other questions get no answer. `tau` is None if no threshold
    can guarantee this. `mode` is `answer` (one answer at `temperature`) or `early-stop` (up to
    `budget` samples; with `weights`, of `grace-vote`). `n` questions were used, `bound` is the
    lower bound of their accuracy at tau, and `promise` is the guarantee in words. `tries` counts
    the guarantees that were tried on the same questions. `test` holds the result on the test
    questions, which were not used. With `sources` the guarantee holds in each of those that are
    `covered`, not only in their mixture: what `SourceAccuracy` has of each at tau, by its names.
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
    weights: tuple[float, ...] = ()
    sources: tuple[Mapping[str, Any], ...] = ()

    @property
    def strategy(self) -> str:
        """The name of the vote that the guarantee is for."""
        return "grace-vote" if self.weights else "grace-es"


Row = TypeVar("Row")
EMPTY, CUT = "the answer is empty", "the answer was cut"  # why an answer has no confidence


def is_whole(response: Response) -> bool:
    """Return whether a response ended and says something: no other has a confidence."""
    return response.finish_reason == "stop" and bool(response.text.strip())


def response_id(question_id: str, sample: int) -> str:
    """Return the id of a question's sample, counted from 0."""
    return f"{question_id}#{sample}"


def to_json(row: Any) -> dict[str, Any]:
    """Return a record as a JSON-ready dict, the stored fields in order."""
    stored = {f.name for f in dataclasses.fields(row) if f.metadata.get("stored", True)}
    return {name: value for name, value in dataclasses.asdict(row).items() if name in stored}


def from_json(row_type: type[Row], data: dict[str, Any]) -> Row:
    """Build a record from a dict, with tuples for its lists; a wrong field is a `TypeError`."""
    tuples = _tuple_fields(cast(Hashable, row_type))
    values = {
        name: tuple(value) if isinstance(value, list) and name in tuples else value
        for name, value in data.items()
    }
    return row_type(**values)


@functools.cache
def _tuple_fields(row_type: Any) -> frozenset[str]:
    """Return the fields that hold tuples (cached, because `get_type_hints` is slow)."""
    return frozenset(name for name, t in get_type_hints(row_type).items() if "tuple" in str(t))
