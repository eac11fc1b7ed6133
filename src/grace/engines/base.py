"""The base classes of the engines, and the check that prompts fit the model's context."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import numpy as np

from grace import plugins
from grace.cnf import Readout
from grace.config import key_values
from grace.engines import (
    AT_ONCE,
    LAST,
    Capability,
    Engine,
    Features,
    Ids,
    Known,
    Opening,
    Rating,
    Sampling,
)
from grace.engines.gguf import resolve_model
from grace.engines.reading import NO_CNF, Reader, Scored, rated
from grace.errors import ConfigError, DataError, ModelError
from grace.evidence import Evidence
from grace.records import Response
from grace.store import read_card

Value = TypeVar("Value")


class SampleStream(ABC):
    """Samples of one prompt; `tokens` counts all tokens generated, those of stopped samples too."""

    def __init__(self, engine: Any, prompt: Ids, sampling: Sampling, key: str) -> None:
        check_contexts([prompt], engine.limit, sampling.max_new_tokens)
        self._engine, self._prompt, self._sampling, self._key = engine, prompt, sampling, key
        self.tokens = 0

    @abstractmethod
    def start(self, numbers: range) -> Generator[tuple[int, Response], None, None]:
        """Yield (number, response) as each finishes; closing the generator stops the rest."""


class ModelEngine(Engine, ABC):
    """An engine that loads models itself: the class that a file of this folder names `ENGINE`.

    One of your own is named `module:NAME`. `gives` is what it offers beyond samples and
    probabilities, `reader` tells how c is read, and `limit` is the most tokens of a prompt with its
    response, None if there is no limit.
    """

    gives: ClassVar[frozenset[Capability]]
    streams: ClassVar[type[SampleStream]]
    reader: Reader
    limit: int | None
    tokenizer: Any = None

    @classmethod
    @abstractmethod
    def open(cls, opening: Opening) -> ModelEngine:
        """Load a model, or connect to the server that runs it.

        Raises:
            ConfigError: the engine does not have one of the settings.
            ModelError: the model cannot be loaded; the message says what to do.
        """

    @abstractmethod
    def close(self) -> None:
        """Free the model, or close the connections to the server."""

    def stream(self, prompt: Ids, sampling: Sampling, key: str = "0") -> SampleStream:
        """Return the samples of one prompt, which can be started one by one."""
        return self.streams(self, prompt, sampling, key)

    @abstractmethod
    def plan(
        self, prompts: Sequence[Ids], num_samples: int = 1, max_new_tokens: int = 64
    ) -> list[list[int]]:
        """Return units of work as lists of prompt indices; they depend on the arguments alone."""

    @property
    def readout(self) -> Readout | None:
        """The tokens that c is read from, None if there are none."""
        return self.reader.readout

    @property
    def read_at(self) -> str:
        """Where c is read: predict, feed or prompt."""
        return self.reader.read_at

    @property
    def evidence(self) -> Evidence | None:
        """How the response's own probabilities shift c, if at all."""
        return self.reader.evidence

    def confidences(self, prompts: Sequence[Ids], responses: Sequence[Ids]) -> list[float]:
        """Return c of given responses (token ids without the end token)."""
        return [cast(float, one.confidence) for one in self.rated(prompts, responses)]

    def rated(
        self, prompts: Sequence[Ids], responses: Sequence[Ids], known: Sequence[Known] = ()
    ) -> list[Rating]:
        """Return c of given responses, how familiar their prompts are, and their fields.

        `known` are the log-probabilities of all responses, if this very model has drawn them.
        """
        if self.readout is None:
            raise ModelError(NO_CNF)
        if self.evidence is None:
            known = [Known((), 0.0)] * len(prompts)  # c is one reading
        pairs = [self.reader.read_for_c(*pair) for pair in zip(prompts, responses, strict=True)]

        ids = iter(responses)

        def rate(one: Scored) -> Rating:
            return rated(one, next(ids), self.reader, self.tokenizer)

        return self._each([p for p, _ in pairs], [r for _, r in pairs], rate, known)

    def traces(
        self, prompts: Sequence[Ids], responses: Sequence[Ids], known: Sequence[Known] = ()
    ) -> list[list[float]]:
        """Return c at every step of given responses, the end step last; `known` as in `rated`."""
        return self._each(prompts, responses, self.reader.trace, known)

    def logprobs(
        self, prompts: Sequence[Ids], responses: Sequence[Ids]
    ) -> list[tuple[list[float], float]]:
        """Return each response's token log-probabilities and the log-probability of its end."""
        return self._each(prompts, responses, lambda one: ([*one.logprobs], one.end_logprob))

    def _each(
        self,
        prompts: Sequence[Ids],
        responses: Sequence[Ids],
        rate: Callable[[Scored], Value],
        known: Sequence[Known] = (),
    ) -> list[Value]:
        """Return a value of each response; an error stops the scoring of the others."""
        with closing(self._scored(prompts, responses, known)) as scored:
            return [rate(one) for one in scored]

    @abstractmethod
    def _scored(
        self, prompts: Sequence[Ids], responses: Sequence[Ids], known: Sequence[Known] = ()
    ) -> Generator[Scored, None, None]:
        """Yield given responses with their log-probabilities and readings."""


class StepEngine(ModelEngine):
    """Base class of the engines that return log-probabilities, but no logits or hidden states."""

    def plan(
        self, prompts: Sequence[Ids], num_samples: int = 1, max_new_tokens: int = 64
    ) -> list[list[int]]:
        """Return units of work, prompts in their order; the model's server or library batches."""
        starts = range(0, len(prompts), AT_ONCE)
        return [list(range(start, min(start + AT_ONCE, len(prompts)))) for start in starts]

    def generate(
        self, prompts: Sequence[Ids], sampling: Sampling, *, keys: Sequence[str] | None = None
    ) -> Iterator[tuple[int, list[Response]]]:
        """Yield (prompt index, its samples) in the order of the prompts; greedy ones once."""
        keys = keys if keys is not None else [str(i) for i in range(len(prompts))]
        check_contexts(prompts, self.limit, sampling.max_new_tokens, keys)
        copies = sampling.num_samples if sampling.temperature == 0 else 1
        drawn = replace(sampling, num_samples=sampling.num_samples // copies)
        with closing(self._samples(prompts, keys, drawn)) as arriving:
            for index, samples in enumerate(arriving):
                yield index, samples * copies

    def next_token_probs(self, contexts: Sequence[Ids], tokens: Ids) -> np.ndarray:
        """Return p(token | context), shape (N contexts, tokens), temperature 1, float32."""
        check_contexts(contexts, self.limit, 1)
        logprobs_NT = np.array(list(self._next_logprobs(contexts, tokens)), dtype=np.float64)
        probs_NT: np.ndarray = np.exp(logprobs_NT.reshape(len(contexts), len(tokens)))
        return probs_NT.astype(np.float32)

    def features(
        self, prompts: Sequence[Ids], responses: Sequence[Ids], layer: int = LAST
    ) -> Features:
        """Raise a ModelError: there are no hidden states."""
        raise ModelError(
            "this engine gives no hidden states; use the transformers engine for features"
        )

    def _scored(
        self, prompts: Sequence[Ids], responses: Sequence[Ids], known: Sequence[Known] = ()
    ) -> Generator[Scored, None, None]:
        contexts = [[*p, *r] for p, r in zip(prompts, responses, strict=True)]
        check_contexts(contexts, self.limit, 1, given=True)
        return self._score(prompts, responses)

    @abstractmethod
    def _samples(
        self, prompts: Sequence[Ids], keys: Sequence[str], sampling: Sampling
    ) -> Generator[list[Response], None, None]:
        """Yield the samples of each prompt, in their order."""

    @abstractmethod
    def _next_logprobs(self, contexts: Sequence[Ids], tokens: Ids) -> Iterator[Sequence[float]]:
        """Yield the log-probabilities of some tokens after each context."""

    @abstractmethod
    def _score(
        self, prompts: Sequence[Ids], responses: Sequence[Ids]
    ) -> Generator[Scored, None, None]:
        """Yield given responses, each of which fits the context."""


def check_contexts(
    contexts: Sequence[Ids],
    limit: int | None,
    new_tokens: int = 0,
    keys: Sequence[str] = (),
    *,
    given: bool = False,
) -> None:
    """Refuse an empty context, and one that exceeds the model's context length."""
    lengths = list(map(len, contexts))
    names = keys or range(len(lengths))
    if 0 in lengths:
        raise DataError(f"prompt {names[lengths.index(0)]} has no tokens; give it at least one")
    longest = max(lengths, default=0)
    if limit is not None and longest + new_tokens > limit:
        room, place = limit - longest, names[lengths.index(longest)]
        which = f"prompt {place}" if keys or len(lengths) > 1 else "the prompt"
        which += " with its response" if given else ""
        answer = f" and its {'end' if given else 'answer up to'} {new_tokens}" if new_tokens else ""
        fits = f" or lower max_new_tokens to {room}" if answer and room > 0 and not given else ""
        raise ModelError(
            f"{which} has {longest} tokens{answer}, but the model's context is {limit}; shorten it"
            f"{fits}"
        )


# --- an engine by its name

COMMON = frozenset(field.name for field in dataclasses.fields(Opening))
"""The settings of all engines."""


def load_engine(kind: str, path: str | Path, **settings: Any) -> ModelEngine:
    """Load a model into an engine, or connect to the server that runs it."""
    named = {name: settings.pop(name) for name in COMMON & settings.keys()}
    engine = engine_class(kind)
    if "relay" not in engine.gives and read_card(Path(path)).get("format") == "gguf":
        raise ModelError(
            f"{path} holds a GGUF file for llama.cpp; serve it: llama-server -m {path}/model.gguf "
            f"-ctk f32 -ctv f32, with `grace proxy {path} --upstream URL` in front; or export with "
            "--format merged"
        )
    path = resolve_model(str(path), named.get("dtype", "auto"), named.get("device", "auto"))
    return engine.open(Opening(path=path, **named, options=settings))


def engine_class(kind: str) -> type[ModelEngine]:
    """Return the class of an engine, without opening a model."""
    engine: type[ModelEngine] = plugins.load("grace.engines", kind)
    return engine


def own_options(pairs: Iterable[str], where: str) -> dict[str, Any]:
    """Return the `KEY=VALUE` pairs that are options of one engine."""
    options = key_values(pairs, where)
    if common := sorted((COMMON | {"kind"}) & options.keys()):
        raise ConfigError(
            f"{where} {common[0]!r} is a setting of every engine; use --model, --device, --dtype "
            "or --set, e.g. model.dtype or sample.batch_size"
        )
    return options
