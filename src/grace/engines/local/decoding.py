"""The token loop: sample responses from a causal language model, and read c at every step.

Nothing is computed between two steps, so closing an iterator stops the computation.

Tokens are drawn as in any engine: for temperature, top-p and argmax, the EOS ids and `<CNF>` are
tokens like all others, and whichever of them is drawn ends the response. The log-probability of the
end is that of all of them together, at temperature 1. Tokens that are read and never drawn (those
of a linear read-out, or `<CNF>` where c is read at the prompt) are removed from the distribution
that is sampled.

Rows that have ended make place for others (continuous batching). The last columns of the KV cache
are the last tokens of all rows, whenever each began, with padding before the first ones; so masks,
positions and the distances of sliding windows are those of any left-padded batch. In a run on a GPU
each row has a place of its own instead (`grace.engines.local.graphs`).

Shapes: B prompts, R rows (prompts x samples, a prompt's samples side by side), L columns of the
cache, T most steps of a row, V vocabulary, E end tokens, Q readings of a step, X numbers on where a
prompt is among those of training.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from grace.cnf import log1mexp
from grace.engines import Ids, Sampling
from grace.engines.local.batching import group, memory_for
from grace.engines.local.cache import regroup
from grace.engines.local.forward import Forward, Prefix, Unread, begin, numbers
from grace.engines.local.graphs import Places, rounded
from grace.engines.local.sampling import Bound, SampleRequest, SamplerState, keep_to
from grace.engines.reading import Reader, StepResult, to_response
from grace.engines.structured import Allowed
from grace.records import Response

PATIENCE = 3  # where rows have places: what an exchange costs, in steps of all rows


class SampledModel(Protocol):
    """The model whose responses are sampled."""

    forward: Forward
    reader: Reader
    device: torch.device

    def generations(
        self, rows: Rows, places: Sequence[int], prompts: Sequence[Ids]
    ) -> list[Response]:
        """Return the responses of some rows, to these prompts."""


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
        engine: SampledModel,
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
        # of each row that is not over, with its prompt alone
        self._requests: dict[int, SampleRequest] = {}
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
        self._allowed |= enumerate(request.allowed, first)
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
        readout = engine.reader.readout
        readings = readout.num_readings if readout else 1
        return Batch.of(read, requests, numbers, readings + read.near_BX.shape[1])


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


# --- the rows in flight, and their step


class Ends(NamedTuple):
    """The end tokens of a model on its device, and how c is read."""

    stops_E: Tensor  # all ids that end a response
    eos_E: Tensor  # those that are not read
    read_E: Tensor  # those that are read
    reader: Reader

    @classmethod
    def of(cls, reader: Reader, device: torch.device) -> Ends:
        """Return the end tokens of a reader's model."""
        stops_E, eos_E, read_E = (
            torch.tensor(ids, dtype=torch.long, device=device)
            for ids in (reader.stops, reader.eos, reader.read)
        )
        return cls(stops_E, eos_E, read_E, reader)


class Prefilled(NamedTuple):
    """B prompts that the model has read, up to the logits of their first token."""

    cache: Any
    logits_BV: Tensor
    position_B: Tensor  # of the next token: their lengths
    near_BX: Tensor  # where they are among the prompts of training, if known

    @classmethod
    @torch.inference_mode()
    def read(
        cls, forward: Forward, prompts: Sequence[Ids], device: torch.device, prefix: Any = None
    ) -> Prefilled:
        """Read each prompt once; `prefix` holds the tokens that all of them begin with, if any."""
        unread = begin(forward, prompts, device, keep=1, prefix=prefix)
        cache = forward.empty_cache() if unread.cache is None else unread.cache
        logits, cache = forward(unread._replace(cache=cache), use_cache=True)
        logits_BV = numbers(logits[:, -1])
        near_BX = forward.near([1] * len(prompts))[:, -1].to(logits_BV.device)
        return cls(cache, logits_BV, unread.positions_BC[:, -1] + 1, near_BX)


class Rows(NamedTuple):
    """R rows, with what each has drawn: columns of a record from its step on are void."""

    number_R: Tensor  # of each in its continuous batch
    step_R: Tensor  # steps that it has taken
    live_R: Tensor  # still sampled
    ended_R: Tensor  # by an end token, at its last step
    position_R: Tensor  # of the next token: the columns of the cache that count
    logits_RV: Tensor
    near_RX: Tensor
    tokens_RT: Tensor
    logprobs_RT: Tensor  # of the token, or of the end
    readings_RTQ: Tensor  # readings of c in log-odds, zero if nothing is read
    ends_RT: Tensor  # log-probability of ending at each step, in a model without the tokens read

    def at(self, places: Any) -> Rows:
        """Return some of the rows."""
        return Rows(*(column[places] for column in self))


class Chosen(NamedTuple):
    """What a step has chosen for each row; rows that ended before it are not `live`."""

    live_R: Tensor
    token_R: Tensor
    logprob_R: Tensor
    reading_RQ: Tensor
    end_R: Tensor
    ended_R: Tensor


@dataclass(slots=True)
class Batch:
    """The rows in flight, with their KV cache and their settings."""

    rows: Rows
    sampler: SamplerState
    cache: Any
    prompt_R: Tensor  # of the rows of a new batch in its cache, which has one of each prompt
    mask_RL: Tensor | None  # None where nothing is padded, and in places
    width: int  # columns in use; in places, those of the longest row

    @classmethod
    @torch.inference_mode()
    def of(
        cls,
        read: Prefilled,
        requests: Sequence[SampleRequest],
        numbers: Sequence[int],
        readings: int,
    ) -> Batch:
        """Return the rows of prompts that have been read, and are used up; `numbers` name them."""
        device, count = read.logits_BV.device, len(numbers)
        steps = max(request.sampling.max_new_tokens for request in requests)
        counts = torch.tensor([request.rows for request in requests], device=device)
        from_R = torch.arange(len(requests), device=device).repeat_interleave(counts)
        zeros = torch.zeros(count, steps + 1, device=device)
        false = torch.zeros(count, dtype=torch.bool, device=device)
        rows = Rows(
            number_R=torch.tensor(numbers, device=device),
            step_R=torch.zeros(count, dtype=torch.long, device=device),
            live_R=~false,
            ended_R=false,
            position_R=read.position_B[from_R],
            logits_RV=read.logits_BV[from_R],
            near_RX=read.near_BX[from_R],
            tokens_RT=zeros.long(),
            logprobs_RT=zeros,
            readings_RTQ=torch.zeros(*zeros.shape, readings, device=device),
            ends_RT=zeros.clone(),
        )
        batch = cls(rows, SamplerState.of(requests, steps, device), read.cache, from_R, None, 0)
        batch._pad(int(read.position_B.max()))
        return batch

    @torch.inference_mode()
    def settle(self, places: Places | None) -> None:
        """Give each row of a new batch its own part of the cache, or of `places`."""
        if places is not None:
            position_R = self.rows.position_R
            places.exchange(position_R[:0], self.cache, self.prompt_R, position_R)
            self.cache, self.mask_RL = places, None
        elif len(self.prompt_R) > 1 + int(self.prompt_R[-1]):
            self.cache.reorder_cache(self.prompt_R)

    def _pad(self, width: int) -> None:
        """Set the width, and mask what comes before the first token of each row."""
        self.width, self.mask_RL = width, None
        first_R = width - self.rows.position_R
        if bool((first_R > 0).any()):
            most = width + self.rows.tokens_RT.shape[1]
            at_L = torch.arange(most, device=first_R.device)
            self.mask_RL = (at_L >= first_R[:, None]).long()

    @torch.inference_mode()
    def keep_live(self, new: Batch | None) -> None:
        """Keep the rows that are sampled, and add those of another batch, which is used up."""
        kept = self.rows.live_R.nonzero()[:, 0]
        rows, sampler = self.rows.at(kept), SamplerState(*(column[kept] for column in self.sampler))
        if new is not None:
            rows = Rows(*map(_together, rows, new.rows))
            sampler = SamplerState(*map(_together, sampler, new.sampler))
        self.rows, self.sampler = rows, sampler
        width = int(rows.position_R.max())
        none = kept[:0]
        cache, prompt_N = (new.cache, new.prompt_R) if new else (None, none)
        if isinstance(self.cache, Places):
            self.cache.exchange(kept, cache, prompt_N, new.rows.position_R if new else none)
            self.width = width
            return
        exchanged = regroup(self.cache, kept, cache, prompt_N, width)
        self._pad(width if exchanged else self.width)

    @torch.inference_mode()
    def step(
        self, ends: Ends, settings: Collection[Sampling], allowed: Mapping[int, Allowed]
    ) -> Chosen:
        """Choose the next token of each row; `allowed` are forms by row number."""
        rows, bound = self.rows, list[tuple[int, Allowed]]()
        if allowed:
            places = enumerate(rows.number_R.tolist())
            bound = [(at, allowed[row]) for at, row in places if row in allowed]
        step = _choose(rows, ends, self.sampler, settings, bound)
        for place, form in bound:
            form.take(int(step.token_R[place]))
        at = torch.arange(len(rows.live_R), device=rows.live_R.device)
        to_R = torch.where(rows.live_R, rows.step_R, -1)
        rows.tokens_RT[at, to_R] = step.token_R
        rows.logprobs_RT[at, to_R] = step.logprob_R
        rows.readings_RTQ[at, to_R] = step.reading_RQ
        rows.ends_RT[at, to_R] = step.end_R
        step_R = rows.step_R + rows.live_R
        self.rows = rows._replace(
            step_R=step_R,
            ended_R=rows.ended_R | (rows.live_R & step.ended_R),
            live_R=rows.live_R & ~step.ended_R & (step_R < self.sampler.longest_R),
        )
        return step

    @torch.inference_mode()
    def advance(self, forward: Forward, token_R: Tensor) -> None:
        """Feed the chosen tokens."""
        self.width += 1
        position_R, near_RX = self.rows.position_R, self.rows.near_RX
        if isinstance(self.cache, Places):
            logits_RV, near_RX = self.cache.step(token_R, position_R, near_RX, self.width)
        else:
            mask = None if self.mask_RL is None else self.mask_RL[:, : self.width]
            last = Unread(token_R[:, None], mask, position_R[:, None], self.cache)
            logits_R1V, self.cache = forward(last)
            logits_RV, near_RX = logits_R1V[:, -1], forward.still_near(near_RX)[:, -1]
        self.rows = self.rows._replace(
            logits_RV=logits_RV, position_R=position_R + self.rows.live_R, near_RX=near_RX
        )


def _together(one: Tensor, other: Tensor) -> Tensor:
    """Return the rows of both; those of the shorter record get void columns."""
    if one.shape[1:] == other.shape[1:]:
        return torch.cat((one, other))
    columns = max(one.shape[1], other.shape[1])
    both = one.new_zeros(len(one) + len(other), columns, *one.shape[2:])
    both[: len(one), : one.shape[1]] = one
    both[len(one) :, : other.shape[1]] = other
    return both


def _choose(
    rows: Rows, ends: Ends, sampler: SamplerState, settings: Collection[Sampling], bound: Bound
) -> Chosen:
    """Pick the next token of each row, the first EOS id for any end token; overwrites logits."""
    reader, logits_RV = ends.reader, rows.logits_RV
    read_RE = logits_RV.index_select(1, ends.read_E)
    if reader.banned:
        logits_RV.index_fill_(1, ends.read_E, -torch.inf)
    total_R = rest_R = logits_RV.logsumexp(-1)  # of what may be drawn, and without what is read
    reading_RQ = torch.zeros_like(total_R)[:, None]
    if reader.readout is not None:
        read_R = read_RE.logsumexp(-1)
        whole_R = torch.logaddexp(rest_R, read_R) if reader.banned else total_R
        reading_RQ = reader.readout.readings(read_RE, whole_R)
        if not reader.banned:
            rest_R = total_R + log1mexp((read_R - total_R).clamp(max=-1e-7))
    end_R = (logits_RV.index_select(1, ends.eos_E).logsumexp(-1) - rest_R).clamp(max=0)
    stops_RE = logits_RV.index_select(1, ends.stops_E)
    token_R = sampler.choose(keep_to(bound, logits_RV), rows.step_R, settings)
    ended_R = torch.isin(token_R, ends.stops_E)
    chosen_R = logits_RV.gather(1, token_R[:, None])[:, 0]
    logprob_R = torch.where(ended_R, stops_RE.logsumexp(-1), chosen_R) - total_R
    token_R = token_R.where(~ended_R, reader.eos[0])
    reading_RQ = torch.cat([reading_RQ, rows.near_RX], dim=1)
    return Chosen(rows.live_R, token_R, logprob_R, reading_RQ, end_R, ended_R)


def results(rows: Rows, step: Chosen) -> list[StepResult]:
    """Return the outcome of a step for the rows that took part in it."""
    columns = (step.live_R, rows.number_R, step.token_R, step.logprob_R, step.end_R, step.ended_R)
    table_RC = torch.stack([column_R.double() for column_R in columns], dim=1)
    return [
        StepResult(int(number), int(token), logprob, readings, end, bool(ended))
        for live, number, token, logprob, end, ended, *readings in torch.cat(
            [table_RC, step.reading_RQ.double()], dim=1
        ).tolist()
        if live
    ]


def generations(
    rows: Rows, places: Sequence[int], reader: Reader, tokenizer: Any
) -> list[Response]:
    """Return the responses of some rows."""
    record = (rows.tokens_RT, rows.logprobs_RT, rows.readings_RTQ, rows.ends_RT)
    columns = [column_RT[places].cpu() for column_RT in record]
    counts, ended = rows.step_R[places].tolist(), rows.ended_R[places].tolist()
    responses = []
    for row, count in enumerate(counts):
        numbers(columns[1][row, :count])  # what follows counts for nothing
        steps = zip(*(column[row, :count].tolist() for column in columns), strict=True)
        results = [StepResult(row, token, p, read, end, False) for token, p, read, end in steps]
        if ended[row]:
            results[-1] = results[-1]._replace(ended=True)
        responses.append(to_response(results, reader, tokenizer))
    return responses
