"""The token loop: sample responses from a causal language model, and read c at every step.

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

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from grace.cnf import log1mexp
from grace.engines import Ids, Sampling, seed_from
from grace.engines.local.cache import regroup
from grace.engines.local.forward import Forward, begin, numbers
from grace.engines.local.graphs import Places
from grace.engines.reading import Reader, StepResult, to_response
from grace.engines.structured import Allowed
from grace.records import Response


class Ends(NamedTuple):
    """The end tokens of a model on its device, and how c is read."""

    stops_E: Tensor  # all ids that end a response
    eos_E: Tensor  # those that are not read
    read_E: Tensor  # those that are read
    reader: Reader

    @classmethod
    def of(cls, reader: Reader, device: torch.device) -> Ends:
        """Return the end tokens of a reader's model."""
        read = reader.readout.ids if reader.readout else ()
        stops_E, eos_E, read_E = (
            torch.tensor(ids, dtype=torch.long, device=device)
            for ids in (reader.stops, reader.eos, read)
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
        columns = (unread.ids_BC, unread.mask_BL, unread.positions_BC)
        logits, cache = forward(*columns, cache=cache, use_cache=True)
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
        steps: int,
        readings: int,
    ) -> Batch:
        """Return the rows of prompts that have been read, and are used up; `numbers` name them."""
        device, count = read.logits_BV.device, len(numbers)
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
            logits_R1V, self.cache = forward(
                token_R[:, None], mask, position_R[:, None], cache=self.cache, use_cache=True
            )
            logits_RV, near_RX = logits_R1V[:, -1], forward.still_near(near_RX)[:, -1]
        self.rows = self.rows._replace(
            logits_RV=logits_RV,
            position_R=position_R + self.rows.live_R,
            near_RX=near_RX,
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


# --- which token is next


class SampleRequest(NamedTuple):
    """Prompts with the same sampling settings."""

    prompts: Sequence[Ids]
    sampling: Sampling
    keys: Sequence[str]  # name the prompts for the random numbers
    allowed: Sequence[Allowed] = ()  # by the form of each row; empty: any token

    @property
    def rows(self) -> int:
        """The number of samples; those of a prompt are side by side."""
        return len(self.prompts) * self.sampling.num_samples

    def split(self, count: int) -> tuple[SampleRequest, SampleRequest]:
        """Return the first samples of each prompt, `count` at most, and the others."""
        sampling = self.sampling
        count = min(count, sampling.num_samples)
        left, first = sampling.num_samples - count, sampling.first_sample + count
        return (
            self._replace(sampling=replace(sampling, num_samples=count)),
            self._replace(sampling=replace(sampling, num_samples=left, first_sample=first)),
        )


Bound = Sequence[tuple[int, Allowed]]
"""Places of rows that must take a form, and what it allows next."""


def keep_to(bound: Bound, logits_RV: Tensor) -> Tensor:
    """Return the logits without what a form forbids; without such rows, the same ones."""
    if not bound:
        return logits_RV
    masked_RV = logits_RV.clone()
    for at, allowed in bound:
        mask_V = torch.from_numpy(allowed.next(logits_RV.shape[1])).to(logits_RV.device)
        masked_RV[at, ~mask_V] = -torch.inf
    return masked_RV


class SamplerState(NamedTuple):
    """The settings of R rows; `points_RT` are the random numbers in [0, 1), 0 for greedy rows."""

    temperature_R1: Tensor
    top_p_R1: Tensor
    longest_R: Tensor  # the most tokens of each row
    points_RT: Tensor

    @classmethod
    def of(
        cls, requests: Sequence[SampleRequest], steps: int, device: torch.device
    ) -> SamplerState:
        """Return the settings of the rows of some requests, in their order."""
        settings = [request.sampling for request in requests for _ in range(request.rows)]
        temperature_R = torch.tensor([one.temperature for one in settings], device=device)
        top_p = [one.top_p for one in settings]
        longest = [one.max_new_tokens for one in settings]
        return cls(
            temperature_R[:, None],
            torch.tensor(top_p, dtype=torch.float64, device=device)[:, None],
            torch.tensor(longest, device=device),
            torch.from_numpy(_points(requests, steps)).to(device),
        )

    def choose(self, logits_RV: Tensor, step_R: Tensor, settings: Collection[Sampling]) -> Tensor:
        """Return the next token of each row, (R,); `settings` are all that the rows may have."""
        greedy = [sampling.temperature == 0 for sampling in settings]
        if all(greedy):
            return logits_RV.argmax(-1)
        point_R = self.points_RT.gather(1, step_R.clamp(max=self.points_RT.shape[1] - 1)[:, None])
        top_p_R1 = self.top_p_R1 if any(sampling.top_p < 1 for sampling in settings) else None
        greedy_R1 = self.temperature_R1 == 0
        scaled_RV = logits_RV / self.temperature_R1.masked_fill(greedy_R1, 1)
        drawn_R = _draw(scaled_RV, top_p_R1, point_R[:, 0])
        if not any(greedy):
            return drawn_R
        return torch.where(greedy_R1[:, 0], logits_RV.argmax(-1), drawn_R)


def uniforms(seed: int, keys: Sequence[str], samples: range, num_steps: int) -> np.ndarray:
    """Return float64 draws of shape (R, T); each row depends on (seed, key, sample) alone."""
    return np.stack(
        [
            np.random.Generator(np.random.Philox(key=seed_from(seed, sample, key, size=16))).random(
                num_steps
            )
            for key in keys
            for sample in samples
        ]
    )


def _points(requests: Sequence[SampleRequest], num_steps: int) -> np.ndarray:
    """Return the random numbers of all rows, shape (R, T); those of greedy rows are 0."""
    points_RT = np.zeros((sum(request.rows for request in requests), num_steps))
    start = 0
    for request in requests:
        sampling = request.sampling
        samples = range(sampling.first_sample, sampling.first_sample + sampling.num_samples)
        if sampling.temperature > 0:
            points_RT[start : start + request.rows, : sampling.max_new_tokens] = uniforms(
                sampling.seed, request.keys, samples, sampling.max_new_tokens
            )
        start += request.rows
    return points_RT


def _draw(logits_RV: Tensor, top_p_R1: Tensor | None, point_R: Tensor) -> Tensor:
    """Return one token per row by inverting the cumulative distribution at a point in [0, 1)."""
    probs_RV = logits_RV.softmax(-1)
    if top_p_R1 is not None:
        sorted_RV, order_RV = probs_RV.sort(dim=-1, descending=True, stable=True)
        above_RV = sorted_RV.double().cumsum(-1) - sorted_RV
        cut_RV = (above_RV >= top_p_R1) & (top_p_R1 < 1)
        probs_RV = probs_RV.scatter(1, order_RV, sorted_RV.masked_fill(cut_RV, 0))
    cumulative_RV = probs_RV.cumsum(-1, dtype=torch.float64)
    total_R = cumulative_RV[:, -1]
    point_R = torch.minimum(point_R * total_R, total_R.nextafter(torch.zeros_like(total_R)))
    return torch.searchsorted(cumulative_RV, point_R[:, None], right=True)[:, 0]
