"""Samples of one prompt that arrive as they finish, and stop when nobody wants more of them."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace

import torch

from grace.engines import Sampling
from grace.engines.local.batching import is_out_of_memory
from grace.engines.local.decoding import Batch, Ends, steps
from grace.engines.local.draws import Draws, Part
from grace.engines.local.forward import Forward
from grace.engines.local.rows import Rows, at_step, cut, empty
from grace.engines.watching import Watch
from grace.errors import ModelError
from grace.evidence import Evidence
from grace.records import Generation


class Stream:
    """Samples of one prompt, which is read once however many are started.

    `tokens` counts the response tokens that were generated, those of stopped samples too.
    """

    def __init__(
        self,
        forward: Forward,
        prompt: Sequence[int],
        sampling: Sampling,
        key: str,
        ends: Ends,
        finish: Callable[[Rows, Sequence[Sequence[int]]], list[Generation]],
        evidence: Evidence | None,
    ) -> None:
        self._watch = Watch(evidence, sampling.drop)
        self.tokens = 0
        self._forward = forward
        self._prompt = prompt
        self._sampling = sampling
        self._key = key
        self._ends = ends
        self._finish = finish
        self._read: Batch | None = None

    def start(self, numbers: range) -> Generator[tuple[int, Generation], None, None]:
        """Sample these numbers side by side; yield (number, response) as each finishes.

        A sample is the one that `generate` gives the same prompt, key and number. Closing the
        iterator stops the computation at once: nothing runs while nobody asks.

        Raises:
            ModelError: so many samples do not fit into memory.
        """
        try:
            yield from self._run(numbers)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise ModelError(
                f"out of memory with {len(numbers)} samples of a prompt of {len(self._prompt)} "
                "tokens in flight; use fewer (--parallel), or a smaller dtype or model"
            ) from error

    def _run(self, numbers: range) -> Iterator[tuple[int, Generation]]:
        sampling = replace(self._sampling, num_samples=len(numbers), first_sample=numbers.start)
        batch = self._prefilled().repeated(len(numbers))
        record = empty(len(numbers), sampling.max_new_tokens, batch.position_R.device)
        draws = Draws.of([Part([self._prompt], sampling, [self._key])], batch.position_R.device)
        running = steps(self._forward, batch, record, draws, self._ends)
        waiting = list(range(len(numbers)))
        watches = [copy.deepcopy(self._watch) for _ in waiting]
        with contextlib.closing(running):
            for step in running:
                ended_at = record.end_step_R.tolist()
                finished = [row for row in waiting if ended_at[row] <= step]
                waiting = [row for row in waiting if ended_at[row] > step]
                self.tokens += len(waiting)
                yield from self._responses(record, finished, numbers)
                if sampling.drop:
                    drawn = at_step(record, waiting, step)
                    hopeless = [one.row for one in drawn if watches[one.row].hopeless(one)]
                    batch.stop(hopeless)
                    waiting = [row for row in waiting if row not in hopeless]
                    yield from self._dropped(record, hopeless, numbers, step + 1)
        yield from self._responses(record, waiting, numbers)

    def _dropped(
        self, record: Rows, rows: list[int], numbers: range, tokens: int
    ) -> Iterator[tuple[int, Generation]]:
        for number, one in self._responses(cut(record, tokens), rows, numbers):
            yield number, one._replace(finish_reason="dropped")

    @torch.inference_mode()
    def _prefilled(self) -> Batch:
        """Return a copy of the prompt as the model has read it: sampling writes into it."""
        if self._read is None:
            longest, device = self._sampling.max_new_tokens, self._ends.ids_E.device
            self._read = Batch.prefill(self._forward, [self._prompt], longest, device)
        return copy.deepcopy(self._read)

    def _responses(
        self, record: Rows, rows: list[int], numbers: range
    ) -> Iterator[tuple[int, Generation]]:
        if rows:
            done = Rows(*(tensor[rows].cpu() for tensor in record))
            made = self._finish(done, [self._prompt] * len(rows))
            yield from zip((numbers[row] for row in rows), made, strict=True)
