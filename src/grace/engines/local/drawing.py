"""Samples while they are drawn: token by token, or one by one as they finish.

Nothing runs between two steps, so whoever stops asking for more stops the computation.

Shapes: R rows (prompts x samples, a prompt's samples side by side), V vocabulary.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace

import torch

from grace.engines import Sampling
from grace.engines.local.batching import memory_for
from grace.engines.local.decoding import Batch, Ends, Rows, at_step, cut, empty, steps
from grace.engines.local.draws import Draws, Part
from grace.engines.local.forward import Forward
from grace.engines.reading import Drawn
from grace.engines.watching import Watch
from grace.evidence import Evidence
from grace.records import Generation

Finish = Callable[[Rows, Sequence[Sequence[int]]], list[Generation]]
"""Makes the responses of rows of the record, given the prompt of each."""


class Drawing:
    """The samples of a batch while they are drawn; iterate once.

    The rows are those of one part after the other; row `i * num_samples + s` of a part is sample s
    of its prompt i: the one that `generate` gives the same prompt, key and number. `read` returns
    the batch of all prompts, where they may have been read before; `why` says what to do where
    memory runs out.

    Raises:
        ModelError: while iterating, the batch does not fit into memory.
    """

    def __init__(
        self,
        forward: Forward,
        parts: Sequence[Part],
        ends: Ends,
        finish: Finish,
        read: Callable[[], Batch] | None = None,
        why: str = "samples at a time; ask for fewer, or use",
    ) -> None:
        self._forward, self._ends, self._finish = forward, ends, finish
        self._parts, self._read, self._why = parts, read, why
        self._device = ends.ids_E.device
        self._prompts = [
            prompt
            for part in parts
            for prompt in part.prompts
            for _ in range(part.sampling.num_samples)
        ]
        longest = max(part.sampling.max_new_tokens for part in parts)
        self._record = empty(len(self._prompts), longest, self._device)
        self._batch: Batch | None = None

    def __iter__(self) -> Iterator[list[Drawn]]:
        """Yield what each step chose, for the rows that are still sampled."""
        with memory_for(f"{len(self._prompts)} {self._why}"):
            counts = [part.sampling.num_samples for part in self._parts for _ in part.prompts]
            batch = self._batch = (self._read or self._prefilled)().repeated(counts)
            draws = Draws.of(self._parts, self._device)
            running = steps(self._forward, batch, self._record, draws, self._ends)
            with contextlib.closing(running):
                for step in running:
                    yield at_step(self._record, batch.rows_R[batch.live_R].tolist(), step)

    def most_probable(self, row: int, count: int) -> list[tuple[int, float]]:
        """Return the most probable tokens of the step just yielded with their log-probabilities.

        All ways to end count as one, the engine's first end token.
        """
        assert self._batch is not None
        (place,) = (self._batch.rows_R == row).nonzero()[0].tolist()
        logprobs_V = self._batch.logits_RV[place].log_softmax(-1)
        end = logprobs_V[self._ends.ids_E].logsumexp(-1)
        logprobs_V = logprobs_V.index_fill(0, self._ends.ids_E, -torch.inf)
        logprobs_V[self._ends.first] = end
        best = logprobs_V.topk(min(count, len(logprobs_V)))
        return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))

    def stop(self, row: int) -> None:
        """Sample a row no further."""
        assert self._batch is not None
        self._batch.stop([row])

    def generations(self) -> list[Generation]:
        """Return the responses so far, one per row; one that was stopped counts as cut."""
        made: list[Generation] = []
        for part in self._parts:
            rows = range(len(made), len(made) + part.rows)
            made += self.responses(rows, part.sampling.max_new_tokens)
        return made

    def responses(self, rows: Sequence[int], longest: int) -> list[Generation]:
        """Return the responses of some rows, cut at `longest` tokens."""
        record = Rows(*(tensor[list(rows)].cpu() for tensor in self._record))
        return self._finish(cut(record, longest), [self._prompts[row] for row in rows])

    def _prefilled(self) -> Batch:
        prompts = [prompt for part in self._parts for prompt in part.prompts]
        return Batch.prefill(self._forward, prompts, self._record.tokens_RT.shape[1], self._device)


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
        finish: Finish,
        evidence: Evidence | None,
    ) -> None:
        self._watch = Watch(evidence, sampling.drop)
        self.tokens = 0
        self._forward, self._ends, self._finish = forward, ends, finish
        self._prompt, self._sampling, self._key = prompt, sampling, key
        self._read: Batch | None = None

    def start(self, numbers: range) -> Generator[tuple[int, Generation], None, None]:
        """Sample these numbers side by side; yield (number, response) as each finishes.

        A sample is the one that `generate` gives the same prompt, key and number. Closing the
        iterator stops the computation at once.

        Raises:
            ModelError: so many samples do not fit into memory.
        """
        sampling = replace(self._sampling, num_samples=len(numbers), first_sample=numbers.start)
        part = Part([self._prompt], sampling, [self._key])
        why = (
            f"samples of a prompt of {len(self._prompt)} tokens in flight; use fewer (--parallel), "
            "or"
        )
        drawing = Drawing(self._forward, [part], self._ends, self._finish, self._copied, why)
        for row, generation in self._finished(drawing, len(numbers)):
            yield numbers[row], generation

    def _finished(self, drawing: Drawing, count: int) -> Iterator[tuple[int, Generation]]:
        """Yield (row, response) as each ends, is dropped, or after the last step is cut."""
        longest, drop = self._sampling.max_new_tokens, self._sampling.drop
        watches = [copy.deepcopy(self._watch) for _ in range(count)]
        waiting = set(range(count))
        with contextlib.closing(iter(drawing)) as running:  # type: ignore[type-var]
            for step, drawn in enumerate(running):
                ended = [one.row for one in drawn if one.ended]
                self.tokens += len(drawn) - len(ended)
                hopeless = [one.row for one in drawn if drop and watches[one.row].hopeless(one)]
                waiting -= {*ended, *hopeless}
                yield from self._responses(drawing, ended, longest)
                for row in hopeless:
                    drawing.stop(row)
                for row, one in self._responses(drawing, hopeless, step + 1):
                    yield row, one._replace(finish_reason="dropped")
        yield from self._responses(drawing, sorted(waiting), longest)

    def _responses(
        self, drawing: Drawing, rows: list[int], longest: int
    ) -> Iterator[tuple[int, Generation]]:
        if rows:
            yield from zip(rows, drawing.responses(rows, longest), strict=True)

    @torch.inference_mode()
    def _copied(self) -> Batch:
        """Return a copy of the prompt as the model has read it: sampling writes into it."""
        if self._read is None:
            longest, device = self._sampling.max_new_tokens, self._ends.ids_E.device
            self._read = Batch.prefill(self._forward, [self._prompt], longest, device)
        return copy.deepcopy(self._read)
