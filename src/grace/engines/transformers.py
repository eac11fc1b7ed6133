"""The reference engine: any causal language model that transformers can run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from grace.engines import Capability, Ids, Opening, Sampling
from grace.engines.base import check_contexts
from grace.engines.local.batching import attempt, out_of_memory
from grace.engines.local.drawing import Drawing, Stream
from grace.engines.local.draws import Part
from grace.engines.local.loading import Loaded, load
from grace.engines.local.scoring import LocalScorer
from grace.engines.stops import stop_ids
from grace.errors import ConfigError
from grace.records import Generation


class TransformersEngine(LocalScorer):
    """Samples from a model in this process, and scores responses (see `LocalScorer`)."""

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
        return cls.of(load(path, **options), batch_size=batch_size, stop=stop)

    @classmethod
    def of(
        cls, loaded: Loaded, *, batch_size: int | None = None, stop: Sequence[str] = ()
    ) -> TransformersEngine:
        """Return the engine of a loaded model; several may share it."""
        return cls(
            loaded.model,
            loaded.tokenizer,
            loaded.read_at,
            evidence=loaded.evidence,
            batch_size=batch_size,
            stops=(*loaded.stops, *stop_ids(loaded.tokenizer, stop)),
            layer_rows=loaded.layer_rows,
            prompt_ends=loaded.prompt_ends,
        )

    @classmethod
    def open(cls, opening: Opening) -> TransformersEngine:
        """Load a model directory or Hub id, with an adapter on top if there is one."""
        if opening.options:
            raise ConfigError(
                f"the transformers engine has no {', '.join(opening.options)}; use them as "
                "options for another engine: vllm or openai"
            )
        return cls.load(
            opening.path,
            adapter=opening.adapter,
            device=opening.device,
            dtype=opening.dtype,
            trust_remote_code=opening.trust_remote_code,
            thinking=opening.thinking,
            date=opening.date,
            batch_size=opening.batch_size,
            stop=opening.stop,
        )

    def close(self) -> None:
        """Do nothing: the model is freed with the last reference to it."""

    def plan(
        self, prompts: Sequence[Ids], num_samples: int = 1, max_new_tokens: int = 64
    ) -> list[list[int]]:
        """Return batches of prompt indices, longest first, within the memory budget.

        The plan depends on the arguments alone. The results of a batch do not depend on the batches
        before it.
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

        `keys` name the prompts for the random numbers; by default these are their positions.
        """
        keys = keys if keys is not None else [str(i) for i in range(len(prompts))]
        check_contexts(prompts, self.limit, sampling.max_new_tokens, keys)
        for batch in self.plan(prompts, sampling.num_samples, sampling.max_new_tokens):
            batch_keys = [keys[i] for i in batch]
            results = self.generate_batch([prompts[i] for i in batch], sampling, keys=batch_keys)
            yield from zip(batch, results, strict=True)

    def generate_batch(
        self, prompts: Sequence[Ids], sampling: Sampling, *, keys: Sequence[str]
    ) -> list[list[Generation]]:
        """Return the samples of each prompt of a batch of `plan`, in parts if memory runs out."""
        count, rows = sampling.num_samples, len(prompts) * sampling.num_samples
        if rows <= self.batch_size:
            result = attempt(lambda: self._decode(Part(prompts, sampling, keys)))
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
        """Return the samples of one prompt, which can be started one by one (see `Stream`)."""
        check_contexts([prompt], self.limit, sampling.max_new_tokens)
        return Stream(self, prompt, sampling, key)

    def draw(self, parts: Sequence[Part]) -> Drawing:
        """Return the samples of a batch to iterate over token by token (see `Drawing`)."""
        for part in parts:
            check_contexts(part.prompts, self.limit, part.sampling.max_new_tokens)
        return Drawing(self, parts)

    def _decode(self, part: Part) -> list[list[Generation]]:
        drawing = Drawing(self, [part])
        drawing.run()
        flat, n = drawing.generations(), part.sampling.num_samples
        return [flat[i : i + n] for i in range(0, len(flat), n)]


ENGINE = TransformersEngine
