"""The reference engine: any causal language model that transformers can run.

Shapes: B sequences in a batch, K kept positions, V vocabulary, D hidden size, N responses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from grace.engines import Capability, Opening, Sampling
from grace.engines.local.batching import attempt, out_of_memory
from grace.engines.local.decoding import Ends, Rows, decode, generations
from grace.engines.local.drawing import Drawing, Stream
from grace.engines.local.draws import Part
from grace.engines.local.loading import load
from grace.engines.local.reader import LocalReader
from grace.engines.stops import stop_ids
from grace.errors import ConfigError
from grace.records import Generation

Ids = Sequence[int]


class TransformersEngine(LocalReader):
    """Samples from, and reads, a model that sits in this process (see `LocalReader`)."""

    gives: ClassVar[frozenset[Capability]] = frozenset({"states", "training"})

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        batch_size: int | None = None,
        stop: Sequence[str] = (),
        **options: Any,
    ) -> TransformersEngine:
        """Load a model directory or Hub id; `options` are those of `local.loading.load`.

        `stop` are texts that end a response, besides those that the model was trained with.
        """
        loaded = load(path, **options)
        return cls(
            loaded.model,
            loaded.tokenizer,
            loaded.read_at,
            evidence=loaded.evidence,
            batch_size=batch_size,
            stops=(*loaded.stops, *stop_ids(loaded.tokenizer, stop)),
        )

    @classmethod
    def open(cls, opening: Opening) -> TransformersEngine:
        """Load a model directory or Hub id, with an adapter on top if any.

        Raises:
            ConfigError: options, which this engine has none of.
        """
        if opening.options:
            raise ConfigError(
                f"{', '.join(opening.options)}: options for another engine: vllm, llama or openai"
            )
        return cls.load(
            opening.path,
            adapter=opening.adapter,
            device=opening.device,
            dtype=opening.dtype,
            trust_remote_code=opening.trust_remote_code,
            thinking=opening.thinking,
            batch_size=opening.batch_size,
            stop=opening.stop,
        )

    def close(self) -> None:
        """Do nothing: the model goes with the last reference to it."""

    def plan(
        self, prompts: Sequence[Ids], num_samples: int = 1, max_new_tokens: int = 64
    ) -> list[list[int]]:
        """Return batches of prompt indices: longest first, within the row and token budgets.

        The plan depends on the arguments alone; a batch is a unit of work whose result does not
        depend on the batches before it.
        """
        return self._group(prompts, num_samples, new_tokens=max_new_tokens)

    def generate(
        self,
        prompts: Sequence[Ids],
        sampling: Sampling,
        *,
        keys: Sequence[str] | None = None,
    ) -> Iterator[tuple[int, list[Generation]]]:
        """Yield (prompt index, its samples) batch by batch, in the order of `plan`.

        `keys` name the prompts for the random numbers; by default a prompt's position does.

        Raises:
            DataError: an empty prompt.
            ModelError: a prompt and its response could exceed the model's context.
        """
        keys = keys if keys is not None else [str(i) for i in range(len(prompts))]
        self._check(prompts, sampling.max_new_tokens, keys)
        for batch in self.plan(prompts, sampling.num_samples, sampling.max_new_tokens):
            batch_keys = [keys[i] for i in batch]
            results = self.generate_batch([prompts[i] for i in batch], sampling, keys=batch_keys)
            yield from zip(batch, results, strict=True)

    def generate_batch(
        self, prompts: Sequence[Ids], sampling: Sampling, *, keys: Sequence[str]
    ) -> list[list[Generation]]:
        """Return the samples of each prompt of one unit of `plan`, in parts if need be."""
        self._check(prompts, sampling.max_new_tokens, keys)
        count, rows = sampling.num_samples, len(prompts) * sampling.num_samples
        if rows <= self.batch_size:
            result = attempt(lambda: self._decode(prompts, sampling, keys))
            if result is not None:
                return result
        if len(prompts) > 1:
            half = len(prompts) // 2
            first = self.generate_batch(prompts[:half], sampling, keys=keys[:half])
            return first + self.generate_batch(prompts[half:], sampling, keys=keys[half:])
        if count == 1:
            raise out_of_memory(len(prompts[0]) + sampling.max_new_tokens)
        some = count // 2 if rows <= self.batch_size else self.batch_size
        rest = replace(
            sampling, num_samples=count - some, first_sample=sampling.first_sample + some
        )
        parts = [
            self.generate_batch(prompts, part, keys=keys)
            for part in (replace(sampling, num_samples=some), rest)
        ]
        return [before + after for before, after in zip(*parts, strict=True)]

    def stream(self, prompt: Ids, sampling: Sampling, key: str = "0") -> Stream:
        """Return what starts samples of one prompt and yields each as it finishes (see `Stream`).

        Raises:
            DataError: an empty prompt.
            ModelError: the prompt and a response could exceed the model's context.
        """
        self._check([prompt], sampling.max_new_tokens, [key])
        ends, evidence = self._ends(), self.evidence
        return Stream(self._forward, prompt, sampling, key, ends, self._generations, evidence)

    def draw(self, parts: Sequence[Part]) -> Drawing:
        """Return the samples of a batch to iterate over token by token (see `Drawing`).

        Raises:
            DataError: an empty prompt.
            ModelError: a prompt and its response could exceed the model's context.
        """
        for part in parts:
            self._check(part.prompts, part.sampling.max_new_tokens)
        return Drawing(self._forward, parts, self._ends(), self._generations)

    def _decode(
        self, prompts: Sequence[Ids], sampling: Sampling, keys: Sequence[str]
    ) -> list[list[Generation]]:
        rows = decode(self._forward, prompts, keys, sampling, self._ends(), self.device)
        n = sampling.num_samples
        made = self._generations(rows, [prompt for prompt in prompts for _ in range(n)])
        return [made[i : i + n] for i in range(0, len(made), n)]

    def _ends(self) -> Ends:
        """Return what ends a response now, and how c is read."""
        read = self.readout.ids if self.readout else ()
        unread = [token for token in self.end_ids if token not in read]
        ids_E, unread_E = (torch.tensor(ids, device=self.device) for ids in (self.end_ids, unread))
        return Ends(ids_E, unread_E, self.end_ids[0], self.readout, self.silent)

    def _generations(self, rows: Rows, prompts: Sequence[Ids]) -> list[Generation]:
        reads = self.readout is not None
        made = generations(rows, self.tokenizer, self.read_at, self.evidence, reads=reads)
        if self.read_at != "feed":
            return made
        ended = [row for row, one in enumerate(made) if one.finish_reason == "stop"]
        given = [prompts[row] for row in ended], [made[row].token_ids for row in ended]
        for row, c in zip(ended, self.confidences(*given), strict=True):
            made[row] = made[row]._replace(confidence=c)
        return made


ENGINE = TransformersEngine
