"""The interface of the engines: sample responses, return probabilities, return hidden states.

Prompts and responses are token ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from grace.records import FieldValue, Response

if TYPE_CHECKING:
    import numpy as np


GREEDY_BELOW = 1e-5  # the temperature below which vLLM is greedy, too
UNIFORM_FROM = 1e30  # a temperature at which all tokens are equally probable
AT_ONCE = 256  # prompts in a unit of work of engines that make their own batches

Ids = Sequence[int]
"""Token ids."""

Capability = Literal["states", "training", "relay"]
"""What an engine offers beyond samples and probabilities: hidden states; a model that can be
trained; `relay`: the model runs on a server, not in this process."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How responses are sampled.

    A `temperature` below `GREEDY_BELOW` counts as 0, which is greedy. Sample number s of a prompt
    depends on (seed, the prompt's key, s) alone, so a later call can continue at `first_sample`.
    `max_new_tokens` includes the end token; with `open_tokens` it is that of questions with
    options, and an engine is given what `by_length` makes of it.
    """

    num_samples: int = 1
    temperature: float = 0.0
    top_p: float = 1.0
    max_new_tokens: int = 64
    seed: int = 0
    first_sample: int = 0
    open_tokens: int = 0  # of questions without options, if theirs is another length

    def by_length(self, choices: Iterable[Sequence[str]]) -> dict[Sampling, list[int]]:
        """Return the settings of questions with these options, each with the questions' places."""
        found: dict[Sampling, list[int]] = {}
        for at, options in enumerate(choices):
            longest = self.max_new_tokens if options else self.open_tokens or self.max_new_tokens
            one = replace(self, max_new_tokens=longest, open_tokens=0)
            found.setdefault(one, []).append(at)
        return found

    @property
    def numbers(self) -> range:
        """The numbers of the samples of a prompt."""
        return range(self.first_sample, self.first_sample + self.num_samples)

    def __post_init__(self) -> None:
        if self.temperature < GREEDY_BELOW:  # dividing logits by it would overflow
            object.__setattr__(self, "temperature", 0.0)
        if self.temperature > UNIFORM_FROM:  # more than a float32 can hold, at the end
            object.__setattr__(self, "temperature", UNIFORM_FROM)


LAST = 0  # the last hidden state, as `grace.layer` names it; a block has its number, from 1 on


class Features(NamedTuple):
    """Hidden states of N responses, float32: the last layer's (after the final norm), or a block's.

    For an empty response, all three are the state of the last prompt token.
    """

    mean_ND: np.ndarray  # mean over the response tokens
    last_ND: np.ndarray  # at the last response token
    first_ND: np.ndarray  # at the last prompt token


class StepStates(NamedTuple):
    """Hidden states at B steps of each of N responses, float32.

    Step k chooses token k of a response, so its state is that of the token before.
    """

    at_NBD: np.ndarray  # at the step
    mean_NBD: np.ndarray  # mean over the tokens before the step; at step 0 that of the prompt


class LayerStates(NamedTuple):
    """The pooled states of N responses, and those at some steps of each."""

    features: Features
    at_steps: StepStates


class Known(NamedTuple):
    """The log-probabilities of a response and its end, as this very model has drawn it."""

    logprobs: Sequence[float]
    end: float


class Rating(NamedTuple):
    """c of a given response, how familiar its prompt is (None: not known), and its fields.

    `likelihoods` are the geometric mean and the least of the token probabilities of each field.
    """

    confidence: float | None
    familiar: float | None
    fields: Mapping[str, FieldValue]
    likelihoods: Mapping[str, tuple[float, float]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The settings with which an engine loads a model (see `grace.engines.base.load_engine`)."""

    path: str | Path  # a directory or Hub id; for openai, the export that the server serves
    adapter: Path | None = None  # a directory; for vllm, an export with format vllm-lora
    device: str = "auto"  # auto, cpu, cuda or cuda:N; vLLM chooses by itself
    dtype: str = "auto"  # auto, float32, bfloat16 or float16
    trust_remote_code: bool = False  # run Python code that comes with the model
    thinking: bool = False  # let a model without a grace.json reason first (`grace.chat`)
    date: str = ""  # in such a model's chat template; empty: today
    batch_size: int | None = None  # rows in flight; None: the engine's own choice
    needs_cnf: bool = True  # refuse a model without `<CNF>`
    stop: tuple[str, ...] = ()  # texts that end a response, besides the model's own
    options: Mapping[str, Any] = field(default_factory=dict)  # of one engine alone


def seed_from(*names: object, size: int = 7) -> int:
    """Return a seed of `size` bytes that depends on the names alone."""
    words = "\0".join(map(str, names)).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(words, digest_size=size).digest(), "little")


class Engine(Protocol):
    """A language model that samples responses and returns probabilities."""

    @property
    def tokenizer(self) -> Any:
        """The tokenizer that made the prompts."""

    def generate(
        self, prompts: Sequence[Ids], sampling: Sampling, *, keys: Sequence[str] | None = None
    ) -> Iterator[tuple[int, list[Response]]]:
        """Yield (prompt index, its samples) as batches complete, in a fixed order."""

    def next_token_probs(self, contexts: Sequence[Ids], tokens: Ids) -> np.ndarray:
        """Return p(token | context), shape (N contexts, tokens), temperature 1, float32."""

    def confidences(self, prompts: Sequence[Ids], responses: Sequence[Ids]) -> list[float]:
        """Return c of given responses (token ids without the end token)."""

    def logprobs(
        self, prompts: Sequence[Ids], responses: Sequence[Ids]
    ) -> list[tuple[list[float], float]]:
        """Return each response's token log-probabilities and the log-probability of its end."""

    def features(
        self, prompts: Sequence[Ids], responses: Sequence[Ids], layer: int = LAST
    ) -> Features:
        """Return the pooled hidden states of given responses, or activations of a block's MLP."""
