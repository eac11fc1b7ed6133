"""Samples while they are drawn: token by token, or one by one as they finish.

Nothing is computed between two steps, so closing an iterator stops the computation.

Shapes: R rows (prompts x samples, a prompt's samples side by side), V vocabulary.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace

import torch

from grace.engines import Ids, Sampling
from grace.engines.local.batching import memory_for
from grace.engines.local.decoding import Batch, Ends, Rows, at_step, cut, empty, steps
from grace.engines.local.draws import Draws, Part
from grace.engines.local.scoring import LocalScorer
from grace.engines.reading import Drawn
from grace.engines.responses import Watch
from grace.records import Generation


class Drawing:
    """The samples of a batch while they are drawn; iterate once, or `run` to the end.

    The rows of one part follow those of the other. Row `i * num_samples + s` of a part is sample s
    of its prompt i, the same that `generate` returns for this prompt, key and number.

    Args:
        engine: the engine that samples.
        parts: the prompts, and how each is sampled.
        prefill: returns the batch of all prompts, if they have been read before.
        remedy: what does not fit and what to do, for the error if memory runs out.

    Raises:
        ModelError: while iterating, the batch does not fit into memory.
    """

    def __init__(
        self,
        engine: LocalScorer,
        parts: Sequence[Part],
        prefill: Callable[[], Batch] | None = None,
        remedy: str = "samples at a time; ask for fewer, or use",
    ) -> None:
        self._engine, self._parts, self._remedy = engine, parts, remedy
        self._prefill = prefill
        self._ends = Ends.of(engine.reader, engine.device)
        self._prompts = [
            prompt
            for part in parts
            for prompt in part.prompts
            for _ in range(part.sampling.num_samples)
        ]
        longest = max(part.sampling.max_new_tokens for part in parts)
        readout, known = engine.readout, engine.forward.ends is not None
        read = (readout.num_readings if readout else 1) + known
        self._record = empty(len(self._prompts), longest, read, engine.device)
        self._batch: Batch | None = None

    def __iter__(self) -> Iterator[list[Drawn]]:
        """Yield the outcome of each step, for the rows that are still sampled."""
        with memory_for(f"{len(self._prompts)} {self._remedy}"):
            batch = self._start()
            with contextlib.closing(self._steps(batch)) as running:
                for step in running:
                    yield at_step(self._record, batch.rows_R[batch.live_R].tolist(), step)

    def run(self) -> None:
        """Draw all samples; an error of running out of memory is raised as it is."""
        for _ in self._steps(self._start()):
            pass
        self._batch = None  # frees the KV cache

    def most_probable(self, row: int, count: int) -> list[tuple[int, float]]:
        """Return the most probable tokens of the step just yielded with their log-probabilities.

        All end tokens count as one, the first EOS id.
        """
        assert self._batch is not None
        (place,) = (self._batch.rows_R == row).nonzero()[0].tolist()
        logprobs_V = self._batch.logits_RV[place].log_softmax(-1)
        end = logprobs_V[self._ends.stops_E].logsumexp(-1)
        logprobs_V = logprobs_V.index_fill(0, self._ends.stops_E, -torch.inf)
        logprobs_V[self._ends.reader.eos[0]] = end
        best = logprobs_V.topk(min(count, len(logprobs_V)))
        return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))

    def stop(self, row: int) -> None:
        """Stop sampling a row."""
        assert self._batch is not None
        self._batch.stop(row)

    def generations(self) -> list[Generation]:
        """Return the responses so far, one per row; a row that was stopped counts as cut."""
        responses: list[Generation] = []
        for part in self._parts:
            rows = range(len(responses), len(responses) + part.rows)
            responses += self.responses(rows, part.sampling.max_new_tokens)
        return responses

    def responses(self, rows: Sequence[int], longest: int) -> list[Generation]:
        """Return the responses of some rows, cut at `longest` tokens."""
        record = Rows(*(tensor[list(rows)].cpu() for tensor in self._record))
        prompts = [self._prompts[row] for row in rows]
        return self._engine.generations(cut(record, longest), prompts)

    def _start(self) -> Batch:
        counts = [part.sampling.num_samples for part in self._parts for _ in part.prompts]
        read = self._prefilled() if self._prefill is None else self._prefill()
        self._batch = read.repeated(counts)
        return self._batch

    def _steps(self, batch: Batch) -> Generator[int, None, None]:
        draws = Draws.of(self._parts, self._engine.device)
        return steps(self._engine.forward, batch, self._record, draws, self._ends)

    def _prefilled(self) -> Batch:
        prompts = [prompt for part in self._parts for prompt in part.prompts]
        longest = self._record.tokens_RT.shape[1]
        return Batch.prefill(self._engine.forward, prompts, longest, self._engine.device)


class Stream:
    """Samples of one prompt, which is prefilled once however many are started.

    `tokens` counts the response tokens generated so far, those of stopped samples too.
    """

    def __init__(self, engine: LocalScorer, prompt: Ids, sampling: Sampling, key: str) -> None:
        self.tokens = 0
        self._engine, self._prompt, self._sampling, self._key = engine, prompt, sampling, key
        self._prefilled: Batch | None = None

    def start(self, numbers: range) -> Generator[tuple[int, Generation], None, None]:
        """Sample these numbers side by side; yield (number, response) as each finishes.

        A sample is the one that `generate` returns for the same prompt, key and number. Closing the
        iterator stops the computation at once.
        """
        sampling = replace(self._sampling, num_samples=len(numbers), first_sample=numbers.start)
        part = Part([self._prompt], sampling, [self._key])
        remedy = (
            f"samples of a prompt of {len(self._prompt)} tokens in flight; use fewer (--parallel), "
            "or"
        )
        drawing = Drawing(self._engine, [part], self._prefill, remedy)
        for row, generation in self._finished(drawing, len(numbers)):
            yield numbers[row], generation

    def _finished(self, drawing: Drawing, count: int) -> Iterator[tuple[int, Generation]]:
        """Yield (row, response) as each ends or is dropped; those that are cut come last."""
        longest = self._sampling.max_new_tokens
        watches = [Watch(self._engine.evidence, self._sampling.drop) for _ in range(count)]
        waiting = set(range(count))
        with contextlib.closing(iter(drawing)) as running:  # type: ignore[type-var]
            for step, drawn in enumerate(running):
                ended = [one.row for one in drawn if one.ended]
                self.tokens += len(drawn) - len(ended)
                hopeless = [one.row for one in drawn if watches[one.row].hopeless(one)]
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
    def _prefill(self) -> Batch:
        """Return a copy of the prefilled prompt, since sampling writes into its KV cache."""
        if self._prefilled is None:
            longest, device = self._sampling.max_new_tokens, self._engine.device
            self._prefilled = Batch.prefill(self._engine.forward, [self._prompt], longest, device)
        return copy.deepcopy(self._prefilled)
