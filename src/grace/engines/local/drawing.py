"""Samples token by token, for whoever shows them while they are written or stops them early.

Shapes: R rows (prompts x samples, a prompt's samples side by side), V vocabulary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch

from grace.engines.local.batching import is_out_of_memory
from grace.engines.local.decoding import Batch, Ends, steps
from grace.engines.local.draws import Draws, Part
from grace.engines.local.forward import Forward
from grace.engines.local.rows import Rows, at_step, cut, empty
from grace.engines.reading import Drawn
from grace.errors import ModelError
from grace.records import Generation


class Drawing:
    """The samples of a batch while they are drawn; iterate once.

    The rows are those of one part after the other; row `i * num_samples + s` of a part is sample s
    of its prompt i: the one that `generate` gives the same prompt, key and number. Nothing runs
    between two steps.

    Raises:
        ModelError: while iterating, the batch does not fit into memory.
    """

    def __init__(
        self,
        forward: Forward,
        parts: Sequence[Part],
        ends: Ends,
        finish: Callable[[Rows, Sequence[Sequence[int]]], list[Generation]],
    ) -> None:
        self._forward, self._ends, self._finish = forward, ends, finish
        self._parts = parts
        self._device = ends.ids_E.device
        longest = max(part.sampling.max_new_tokens for part in parts)
        self._record = empty(sum(part.rows for part in parts), longest, self._device)
        self._batch: Batch | None = None

    def __iter__(self) -> Iterator[list[Drawn]]:
        """Yield what each step chose, for the rows that are still sampled."""
        try:
            yield from self._run()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise ModelError(
                f"out of memory with {len(self._record.end_step_R)} samples at a time; ask for "
                "fewer, or use a smaller dtype or model"
            ) from error

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
        record = Rows(*(tensor.cpu() for tensor in self._record))
        made: list[Generation] = []
        for part in self._parts:
            mine = range(len(made), len(made) + part.rows)
            prompts = [prompt for prompt in part.prompts for _ in range(part.sampling.num_samples)]
            rows = Rows(*(tensor[mine.start : mine.stop] for tensor in record))
            made += self._finish(cut(rows, part.sampling.max_new_tokens), prompts)
        return made

    def _run(self) -> Iterator[list[Drawn]]:
        parts, record = self._parts, self._record
        longest = record.tokens_RT.shape[1]
        prompts = [prompt for part in parts for prompt in part.prompts]
        counts = [part.sampling.num_samples for part in parts for _ in part.prompts]
        prefilled = Batch.prefill(self._forward, prompts, longest, self._device)
        batch = self._batch = prefilled.repeated(counts)
        draws = Draws.of(parts, self._device)
        with contextlib.closing(steps(self._forward, batch, record, draws, self._ends)) as running:
            for step in running:
                yield self._drawn(batch, step)

    def _drawn(self, batch: Batch, step: int) -> list[Drawn]:
        return at_step(self._record, batch.rows_R[batch.live_R].tolist(), step)
