"""The reference engine: any causal language model that transformers can run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

from grace.engines import Capability, Ids, Opening, Sampling
from grace.engines.base import check_contexts
from grace.engines.local.batching import attempt, free_memory, group, out_of_memory
from grace.engines.local.continuous import ContinuousBatch, Stream
from grace.engines.local.decoding import SampleRequest
from grace.engines.local.graphs import FEWEST, works
from grace.engines.local.loading import Loaded, load
from grace.engines.local.scoring import LocalScorer
from grace.engines.reading import stop_ids
from grace.errors import ConfigError
from grace.records import Response

PLACED = ("cuda",)  # devices whose steps take longer to start than to compute
ROWS_TO_COME = {"cpu": 4, "cuda": 16}  # rows of a unit for each one that is in flight


class TransformersEngine(LocalScorer):
    """Samples from a model in this process, and scores responses (see `LocalScorer`)."""

    gives: ClassVar[frozenset[Capability]] = frozenset({"states", "training"})
    streams = Stream

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        batch_size: int | None = None,
        stop: Sequence[str] = (),
        **options: Any,
    ) -> TransformersEngine:
        """Load a model directory or Hub id; `stop` are further texts that end a response."""
        return cls.of(load(path, **options), batch_size=batch_size, stop=stop)

    @classmethod
    def of(
        cls, loaded: Loaded, *, batch_size: int | None = None, stop: Sequence[str] = ()
    ) -> TransformersEngine:
        """Return the engine of a loaded model; several may share it."""
        stops = (*loaded.stops, *stop_ids(loaded.tokenizer, stop))
        return cls(**loaded._replace(stops=stops)._asdict(), batch_size=batch_size)

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
        """Return units of prompt indices, longest first, that depend on the arguments alone."""
        times = ROWS_TO_COME.get(self.device.type, 4)
        return group(
            prompts,
            max_rows=times * self.batch_size,
            max_tokens=times * self._most_tokens(),
            num_samples=num_samples,
            new_tokens=max_new_tokens,
            even=False,
        )

    def generate(
        self,
        prompts: Sequence[Ids],
        sampling: Sampling,
        *,
        keys: Sequence[str] | None = None,
    ) -> Iterator[tuple[int, list[Response]]]:
        """Yield (prompt index, its samples) as they finish, in the order of `plan`."""
        keys = keys if keys is not None else [str(i) for i in range(len(prompts))]
        check_contexts(prompts, self.limit, sampling.max_new_tokens, keys)
        for unit in self.plan(prompts, sampling.num_samples, sampling.max_new_tokens):
            unit_keys = [keys[i] for i in unit]
            for place, samples in self.generate_unit(
                [prompts[i] for i in unit], sampling, keys=unit_keys
            ):
                yield unit[place], samples

    def generate_unit(
        self, prompts: Sequence[Ids], sampling: Sampling, *, keys: Sequence[str]
    ) -> Iterator[tuple[int, list[Response]]]:
        """Yield (prompt index, its samples) of a unit in order, in halves if memory runs out."""
        most, left, done = self.batch_size, list(range(len(prompts))), 0
        made: dict[int, dict[int, Response]] = {}
        while left:
            asked = list(left)
            placed = len(asked) * sampling.num_samples >= FEWEST and self._placed
            batch = self._batch(most, placed=placed)
            batch.add(
                SampleRequest([prompts[i] for i in asked], sampling, [keys[i] for i in asked])
            )
            running = batch.finished()
            while found := attempt(partial(next, running, ())):
                (row, generation) = found
                at, sample = divmod(row, sampling.num_samples)
                samples = made.setdefault(asked[at], {})
                samples[sample] = generation
                if len(samples) == sampling.num_samples:
                    left.remove(asked[at])
                while done not in left and done in made:
                    yield done, [one for _, one in sorted(made.pop(done).items())]
                    done += 1
            if found is None and batch.in_flight == 1:
                raise out_of_memory(max(len(prompts[i]) for i in left) + sampling.max_new_tokens)
            most = batch.in_flight // 2

    def batch(self, requests: Sequence[SampleRequest] = ()) -> ContinuousBatch:
        """Return samples to iterate over token by token; more may join (see `ContinuousBatch`)."""
        batch = self._batch(self.batch_size)
        for request in requests:
            check_contexts(request.prompts, self.limit, request.sampling.max_new_tokens)
            batch.add(request)
        return batch

    def _batch(self, most: int, *, placed: bool = False) -> ContinuousBatch:
        """Return samples to draw, `most` rows and what memory allows at a time."""
        free = free_memory(self.device)
        room = partial(self.room, most=most, free=free)
        return ContinuousBatch(self, room, self.at_once(free), placed=placed)

    @cached_property
    def _placed(self) -> bool:
        return self.device.type in PLACED and works(self.forward, self.device)


ENGINE = TransformersEngine
