"""Samples while they are drawn: token by token, or one by one as they finish.

Nothing is computed between two steps, so closing an iterator stops the computation.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from itertools import count

import torch
from torch import Tensor

from grace.engines import Sampling
from grace.engines.base import SampleStream
from grace.engines.local.batching import group, memory_for
from grace.engines.local.decoding import Batch, Chosen, Ends, Prefilled, SampleRequest, results
from grace.engines.local.forward import Prefix
from grace.engines.local.graphs import Places, rounded
from grace.engines.local.scoring import LocalScorer
from grace.engines.reading import StepResult
from grace.engines.structured import Allowed
from grace.records import Response

PATIENCE = 3  # where rows have places: what an exchange costs, in steps of all rows


class ContinuousBatch:
    """Samples while they are drawn; iterate once, by step or by response.

    Prompts may be added at any time, also while it runs: a new row begins after the next step, if
    there is room beside the others. Rows that have ended make place for rows that wait once they
    have cost as much as an exchange, about a step of all rows. `room` says how many rows of so many
    tokens fit, `at_once` how many tokens of prompts are read together, `read` returns the only
    prompt if it was read before. `placed`: each row has a place of its own in the KV cache (see
    `Places`), and all prompts are added before the first step.
    """

    def __init__(
        self,
        engine: LocalScorer,
        room: Callable[[int], int] | None = None,
        at_once: int | None = None,
        read: Callable[[], Prefilled] | None = None,
        remedy: str = "so many samples at a time; ask for fewer, or use",
        placed: bool = False,
    ) -> None:
        self._engine, self._remedy = engine, remedy
        self._placed = placed
        self._places: Places | None = None
        self._patience = PATIENCE if placed else 1
        self._ends = Ends.of(engine.reader, engine.device)
        self.exchanges = engine.forward.empty_cache() is not None  # else all begin and end together
        self._room, self._at_once, self._read = room, at_once, read
        self._prefix = Prefix(engine.forward, engine.device)
        self._count, self._added = 0, False
        self._requests: dict[
            int, SampleRequest
        ] = {}  # with its prompt alone, of each row that is not over
        self._waiting = deque[tuple[int, SampleRequest]]()  # by the number of the first row
        self._allowed: dict[int, Allowed] = {}
        self._settings: set[Sampling] = set()
        self._batch: Batch | None = None
        self._done: dict[int, Response] = {}
        self.in_flight = 0

    def add(self, request: SampleRequest) -> int:
        """Add prompts; row `first + i * num_samples + s` is sample s of prompt i. Return `first`.

        A row is the same whatever other rows there are.
        """
        if self._places is not None:
            raise ValueError("the places are as wide as the prompts that were there at the start")
        first = self._count
        self._allowed |= zip(count(first), request.allowed, strict=False)
        for prompt, key in zip(request.prompts, request.keys, strict=True):
            one = SampleRequest([prompt], request.sampling, [key])
            self._waiting.append((self._count, one))
            self._requests |= dict.fromkeys(range(self._count, self._count + one.rows), one)
            self._count += one.rows
        self._added = True
        return first

    def __iter__(self) -> Iterator[list[StepResult]]:
        """Yield the outcome of each step, for the rows that are still sampled."""
        with memory_for(self._remedy), contextlib.closing(self._steps()) as running:
            for step in running:
                assert self._batch is not None
                yield results(self._batch.rows, step)

    def finished(self) -> Generator[tuple[int, Response], None, None]:
        """Yield (row, response) as rows finish; running out of memory raises its own error."""
        with contextlib.closing(self._steps()) as running:
            for _ in running:
                while self._done:
                    yield self._done.popitem()
        while self._done:
            yield self._done.popitem()

    def most_probable(self, row: int, count: int) -> list[tuple[int, float]]:
        """Return the most probable tokens of the last step; all end tokens count as one."""
        assert self._batch is not None
        rows = self._batch.rows
        logprobs_V = rows.logits_RV[rows.number_R == row][0].log_softmax(-1)
        end = logprobs_V[self._ends.stops_E].logsumexp(-1)
        logprobs_V = logprobs_V.index_fill(0, self._ends.stops_E, -torch.inf)
        logprobs_V[self._ends.reader.eos[0]] = end
        best = logprobs_V.topk(min(count, len(logprobs_V)))
        return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))

    def responses(self, rows: Sequence[int]) -> list[Response]:
        """Stop rows and return their responses, each once; one that had not ended counts as cut."""
        self._finish([row for row in rows if row not in self._done])
        return [self._done.pop(row) for row in rows]

    def _finish(self, rows: Sequence[int]) -> None:
        """Stop rows in flight and keep their responses."""
        if not rows:
            return
        assert self._batch is not None
        state = self._batch.rows
        numbers = state.number_R.tolist()
        places = [numbers.index(row) for row in rows]
        prompts = [self._requests.pop(row).prompts[0] for row in rows]
        made = self._engine.generations(state, places, prompts)
        self._done |= zip(rows, made, strict=True)
        for row in rows:
            self._allowed.pop(row, None)
        live_R = state.live_R.index_fill(0, torch.tensor(places, device=state.live_R.device), False)
        self._batch.rows = state._replace(live_R=live_R)

    def _steps(self) -> Generator[Chosen, None, None]:
        """Yield each step once it is written down, until no row is left; then free the KV cache."""
        idle = 0
        try:
            self._exchange()
            while self._batch is not None:
                step = self._batch.step(self._ends, self._settings, self._allowed)
                yield step
                live = _later(self._batch.rows.live_R.sum())
                if self._places is not None or live():
                    self._batch.advance(self._engine.forward, step.token_R)
                idle += len(step.live_R) - live()  # the only synchronisation
                if not live() or idle >= self._patience * len(step.live_R) or self._added:
                    self._exchange()
                    idle = 0
        finally:
            self._batch = self._places = None

    def _exchange(self) -> None:
        """Keep the responses of rows that have ended, and begin others in their place."""
        batch, kept = self._batch, list[int]()
        if batch is not None:
            numbers, live = batch.rows.number_R.tolist(), batch.rows.live_R.tolist()
            kept = [row for row, lives in zip(numbers, live, strict=True) if lives]
            self._finish([row for row in {*numbers} - {*kept} if row in self._requests])
        if not kept:
            batch = self._batch = None  # before others take its memory
        self._settings = {request.sampling for request in self._requests.values()}
        if self._placed and self._places is None and self._waiting and self._room:
            widest = max(map(self._width, self._requests))
            count = min(self._room(rounded(widest)), len(self._requests))
            self._places = Places(self._engine.forward, count, widest, self._engine.device)
        taken = self._next(kept) if self.exchanges or not kept else []
        self._batch, self._added = self._joined(batch, taken), False

    def _next(self, kept: Sequence[int]) -> list[tuple[int, SampleRequest]]:
        """Take from those waiting what fits beside some rows; without any, one sample at least."""
        taken: list[tuple[int, SampleRequest]] = []
        widest, self.in_flight = max(map(self._width, kept), default=0), len(kept)
        while self._waiting:
            first, request = self._waiting[0]
            widest = max(widest, self._width(first))
            most = self._room(widest) if self._room else len(self._requests)
            free = (self._places.count if self._places else most) - self.in_flight
            if request.rows > free and self.in_flight:
                break
            request, rest = request.split(max(free, 1))
            self._waiting.popleft()
            if rest.rows:
                self._waiting.appendleft((first + request.rows, rest))
            taken.append((first, request))
            self.in_flight += request.rows
        return taken

    def _width(self, row: int) -> int:
        request = self._requests[row]
        return len(request.prompts[0]) + request.sampling.max_new_tokens

    def _joined(
        self, batch: Batch | None, taken: Sequence[tuple[int, SampleRequest]]
    ) -> Batch | None:
        """Return the live rows and those of requests, with the prompts that memory allows read."""
        prompts = [request.prompts[0] for _, request in taken]
        together = [[*range(len(taken))]] if taken else []
        if self._at_once and self.exchanges:
            together = group(prompts, max_rows=len(taken), max_tokens=self._at_once, even=False)
        if batch is not None and not together:
            batch.keep_live(None)
        for places in together:
            new = self._rows([taken[place] for place in places])
            if batch is not None:
                batch.keep_live(new)
                continue
            batch = new
            batch.settle(self._places)
        return batch

    def _rows(self, taken: Sequence[tuple[int, SampleRequest]]) -> Batch:
        """Read the prompts of some requests together, and return their rows."""
        engine, requests = self._engine, [request for _, request in taken]
        prompts = [request.prompts[0] for request in requests]
        if self._read is not None:
            read = self._read()
        else:
            prefix = self._prefix.of(prompts, [request.prompts[0] for _, request in self._waiting])
            read = Prefilled.read(engine.forward, prompts, engine.device, prefix)
        numbers = [first + k for first, request in taken for k in range(request.rows)]
        longest = max(request.sampling.max_new_tokens for request in requests)
        readings = engine.readout.num_readings if engine.readout else 1
        known = read.near_BX.shape[1]
        return Batch.of(read, requests, numbers, steps=longest, readings=readings + known)


def _later(number: Tensor) -> Callable[[], int]:
    """Return what waits for a number of a device, which may compute on in the meantime."""
    if number.device.type != "cuda":
        return lambda: int(number)
    copied = number.to("cpu", non_blocking=True)
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(number.device))

    def wait() -> int:
        event.synchronize()
        return int(copied)

    return wait


class Stream(SampleStream):
    """Samples of one prompt, prefilled once."""

    def start(self, numbers: range) -> Generator[tuple[int, Response], None, None]:
        """Yield (number, response) as each finishes, as `generate` returns it for the same key."""
        sampling = replace(self._sampling, num_samples=len(numbers), first_sample=numbers.start)
        request = SampleRequest([self._prompt], sampling, [self._key])
        remedy = (
            f"{len(numbers)} samples of a prompt of {len(self._prompt)} tokens in flight; use "
            "fewer (--parallel), or"
        )
        batch = ContinuousBatch(self._engine, read=self._prefill, remedy=remedy)
        batch.add(request)
        for row, generation in self._finished(batch, len(numbers)):
            yield numbers[row], generation

    def _finished(self, batch: ContinuousBatch, count: int) -> Iterator[tuple[int, Response]]:
        """Yield (row, response) as each ends; those that are cut come last."""
        waiting = set(range(count))
        with contextlib.closing(iter(batch)) as running:  # type: ignore[type-var]
            for results in running:
                ended = [one.row for one in results if one.ended]
                self.tokens += len(results) - len(ended)
                waiting -= {*ended}
                yield from zip(ended, batch.responses(ended), strict=True)
        yield from zip(sorted(waiting), batch.responses(sorted(waiting)), strict=True)

    @torch.inference_mode()
    def _prefill(self) -> Prefilled:
        """Return a copy of the prefilled prompt, since sampling writes into its KV cache."""
        return copy.deepcopy(self._prefilled)

    @functools.cached_property
    def _prefilled(self) -> Prefilled:
        return Prefilled.read(self._engine.forward, [self._prompt], self._engine.device)
