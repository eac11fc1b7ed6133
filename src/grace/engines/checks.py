"""What engines outside PyTorch have in common, and what every engine refuses."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from grace.cnf import Readout
from grace.engines import Features, Sampling, units
from grace.engines.reading import Reader, Step
from grace.errors import DataError, ModelError
from grace.evidence import Evidence
from grace.records import Generation

Ids = Sequence[int]
Found = TypeVar("Found")
Rated = TypeVar("Rated")
Given = tuple[list[Step], list[float]]
"""The steps of a response that are read, that of its end last, and log p of its tokens."""


class StepEngine:
    """An engine that is told log-probabilities step by step, and no hidden states.

    Attributes: `tokenizer`, `reader` (what ends a response and how c is read) and `limit` (the most
    tokens of a prompt with its response, None where there is no limit).
    """

    tokenizer: Any
    reader: Reader
    limit: int | None

    @property
    def readout(self) -> Readout | None:
        """Return the tokens that are read for c, None without any."""
        return self.reader.readout

    @property
    def read_at(self) -> str:
        """Return where c is read."""
        return self.reader.read_at

    @property
    def evidence(self) -> Evidence | None:
        """Return how the response's own probabilities shift c, if at all."""
        return self.reader.evidence

    def plan(
        self, prompts: Sequence[Ids], num_samples: int = 1, max_new_tokens: int = 64
    ) -> list[list[int]]:
        """Return units of work, prompts in their order; what runs the model makes its batches."""
        return units(len(prompts))

    def generate(
        self, prompts: Sequence[Ids], sampling: Sampling, *, keys: Sequence[str] | None = None
    ) -> Iterator[tuple[int, list[Generation]]]:
        """Yield (prompt index, its samples) in the order of the prompts.

        Greedy samples of a prompt are equal, so one is drawn. A closed iterator stops what is still
        being sampled.

        Raises:
            DataError: an empty prompt.
            ModelError: a prompt and its response could exceed the model's context.
        """
        keys = keys if keys is not None else [str(i) for i in range(len(prompts))]
        check_contexts(prompts, self.limit, sampling.max_new_tokens, keys)
        copies = sampling.num_samples if sampling.temperature == 0 else 1
        distinct = replace(sampling, num_samples=sampling.num_samples // copies)
        with closing(self._samples(prompts, keys, distinct)) as arriving:
            for index, made in enumerate(arriving):
                yield index, made * copies

    def next_token_probs(self, contexts: Sequence[Ids], tokens: Ids) -> np.ndarray:
        """Return p(token | context), shape (N contexts, tokens), temperature 1, float32."""
        check_contexts(contexts, self.limit, 1)
        found_NT = np.array(list(self._next_logprobs(contexts, tokens)), dtype=np.float64)
        probs_NT: np.ndarray = np.exp(found_NT.reshape(len(contexts), len(tokens)))
        return probs_NT.astype(np.float32)

    def confidences(self, prompts: Sequence[Ids], responses: Sequence[Ids]) -> list[float]:
        """Return c of given responses (token ids without the end token).

        Raises:
            ModelError: there is no `<CNF>`, or the engine cannot rate given responses.
        """
        reader, pairs = self.reader, zip(prompts, responses, strict=True)
        if reader.evidence is not None:
            return _each(self._given(prompts, responses), lambda one: reader.confidence(*one))
        contexts = [reader.place(*pair) for pair in pairs]
        check_contexts(contexts, self.limit, 1)
        return _each(self._after(contexts), lambda step: reader.confidence([step], []))

    def traces(self, prompts: Sequence[Ids], responses: Sequence[Ids]) -> list[list[float]]:
        """Return c at every step of given responses, that of the end last.

        Raises:
            ModelError: the model knows c at the end only.
        """
        return _each(self._given(prompts, responses), lambda one: self.reader.trace(*one))

    def logprobs(
        self, prompts: Sequence[Ids], responses: Sequence[Ids]
    ) -> list[tuple[list[float], float]]:
        """Return each response's token log-probabilities and the log-probability of its end.

        Raises:
            ModelError: the engine cannot rate given responses.
        """
        ends = self.reader.end_logprob
        return _each(self._given(prompts, responses), lambda one: (one[1], ends(one[0][-1])))

    def features(self, prompts: Sequence[Ids], responses: Sequence[Ids]) -> Features:
        """Refuse.

        Raises:
            ModelError: always; names the engine that can.
        """
        raise ModelError(
            "this engine gives no hidden states; use the transformers engine for features"
        )

    def _samples(
        self, prompts: Sequence[Ids], keys: Sequence[str], sampling: Sampling
    ) -> Generator[list[Generation], None, None]:
        """Yield the samples of each prompt, in their order."""
        raise NotImplementedError

    def _next_logprobs(self, contexts: Sequence[Ids], tokens: Ids) -> Iterator[Sequence[float]]:
        """Yield the log-probabilities of tokens after each context."""
        raise NotImplementedError

    def _after(self, contexts: Sequence[Ids]) -> Generator[Step, None, None]:
        """Yield the step after each context, as if it ended the response."""
        raise NotImplementedError

    def _given(
        self, prompts: Sequence[Ids], responses: Sequence[Ids]
    ) -> Generator[Given, None, None]:
        """Yield what a response is rated by."""
        raise NotImplementedError


def _each(source: Generator[Found, None, None], rate: Callable[[Found], Rated]) -> list[Rated]:
    """Return what becomes of everything found; an error ends what is still being found."""
    with closing(source):
        return [rate(found) for found in source]


def check_contexts(
    contexts: Sequence[Sequence[int]],
    limit: int | None,
    new_tokens: int = 0,
    keys: Sequence[str] = (),
) -> None:
    """Refuse what a model cannot hold.

    Args:
        contexts: token ids.
        limit: the model's context in tokens, None where there is no limit.
        new_tokens: how many more each may get.
        keys: names of the contexts, for the message; without any their numbers count.

    Raises:
        DataError: an empty context.
        ModelError: a context and what may follow it exceed the limit; the longest is named.
    """
    lengths = list(map(len, contexts))
    names = keys or range(len(lengths))
    if 0 in lengths:
        raise DataError(f"prompt {names[lengths.index(0)]} has no tokens; give it at least one")
    longest = max(lengths, default=0)
    if limit is not None and longest + new_tokens > limit:
        room, place = limit - longest, names[lengths.index(longest)]
        which = f"prompt {place}" if keys or len(lengths) > 1 else "the prompt"
        answer = f" and its answer up to {new_tokens}" if new_tokens else ""
        fits = f" or lower max_new_tokens to {room}" if new_tokens and room > 0 else ""
        raise ModelError(
            f"{which} has {longest} tokens{answer}, but the model's context is {limit}; shorten it"
            f"{fits}"
        )
