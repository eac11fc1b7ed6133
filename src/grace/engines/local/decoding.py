"""The token loop: sample responses from a causal language model, and read c at every step.

Tokens are drawn as in any engine: for temperature, top-p and argmax, the EOS ids and `<CNF>` are
tokens like all others, and whichever of them is drawn ends the response. The log-probability of the
end is that of all of them together, at temperature 1. Tokens that are read and never drawn (those
of a linear read-out, or `<CNF>` where c is read at the prompt) are removed from the distribution
that is sampled.

Shapes: B prompts, R rows (prompts x samples, a prompt's samples side by side), L padded prompt
length, T steps, V vocabulary, E end tokens, Q readings of a step.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from grace.cnf import log1mexp
from grace.engines import Ids
from grace.engines.local.draws import Draws
from grace.engines.local.forward import Forward, begin, numbers
from grace.engines.reading import Drawn, Reader
from grace.engines.responses import response
from grace.records import Generation

COMPACT_BELOW = 0.8  # drop finished rows once fewer than this share are left


class Ends(NamedTuple):
    """The end tokens of a model on its device, and how c is read."""

    stops_E: Tensor  # all ids that end a response
    eos_E: Tensor  # those that are not read
    reader: Reader

    @classmethod
    def of(cls, reader: Reader, device: torch.device) -> Ends:
        """Return the end tokens of a reader's model."""
        stops_E, eos_E = (torch.tensor(ids, device=device) for ids in (reader.stops, reader.eos))
        return cls(stops_E, eos_E, reader)


@torch.inference_mode()
def steps(
    forward: Forward, batch: Batch, record: Rows, draws: Draws, ends: Ends
) -> Generator[int, None, None]:
    """Sample the rows of a batch into the record; yield the number of each step once it is written.

    Nothing is computed between two steps, so closing the generator stops the computation.
    """
    for step in range(record.tokens_RT.shape[1]):
        choice = _choose(batch.logits_RV, ends, draws, batch.rows_R, step)
        if batch.distance_R is not None:
            read_RQ = torch.cat([choice.reading_RQ, batch.distance_R[:, None]], dim=1)
            choice = choice._replace(reading_RQ=read_RQ)
        _write(record, batch, choice, step)
        yield step
        last_R = draws.longest_R[batch.rows_R] <= step + 1
        if not batch.advance(forward, choice, last_R):
            break


class _Choice(NamedTuple):
    token_R: Tensor
    logprob_R: Tensor
    reading_RQ: Tensor
    end_R: Tensor
    ended_R: Tensor


def _choose(logits_RV: Tensor, ends: Ends, draws: Draws, rows_R: Tensor, step: int) -> _Choice:
    """Pick the next token of each row, the first EOS id for any end token.

    The logits of tokens that are never drawn are overwritten.
    """
    reader = ends.reader
    total_R = logits_RV.logsumexp(-1)
    reading_RQ, rest_R = torch.zeros_like(total_R)[:, None], total_R
    if reader.readout is not None:
        read = list(reader.readout.ids)
        read_RE = logits_RV[:, read]
        reading_RQ = reader.readout.readings(read_RE, total_R)
        if reader.banned:
            logits_RV[:, read] = -torch.inf
            rest_R = total_R = logits_RV.logsumexp(-1)
        else:
            rest_R = total_R + log1mexp((read_RE.logsumexp(-1) - total_R).clamp(max=-1e-7))
    end_R = (logits_RV.index_select(1, ends.eos_E).logsumexp(-1) - rest_R).clamp(max=0)
    stops_RE = logits_RV.index_select(1, ends.stops_E)
    token_R = draws.choose(logits_RV, rows_R, step)
    ended_R = torch.isin(token_R, ends.stops_E)
    chosen_R = logits_RV.gather(1, token_R[:, None])[:, 0]
    logprob_R = torch.where(ended_R, stops_RE.logsumexp(-1), chosen_R) - total_R
    return _Choice(token_R.where(~ended_R, reader.eos[0]), logprob_R, reading_RQ, end_R, ended_R)


@dataclass(slots=True)
class Batch:
    """The rows still in flight, with their KV cache and the logits of their next token."""

    rows_R: Tensor  # their row numbers in the record
    logits_RV: Tensor
    cache: Any
    mask_RL: Tensor | None  # None where nothing is padded
    position_R: Tensor  # of the next token
    width: int  # columns of the mask in use
    live_R: Tensor  # still sampling
    distance_R: Tensor | None = None  # of the prompt's end from those of training, if known

    @classmethod
    @torch.inference_mode()
    def prefill(
        cls,
        forward: Forward,
        prompts: Sequence[Ids],
        longest: int,
        device: torch.device,
    ) -> Batch:
        """Prefill each prompt once, for responses of at most `longest` tokens; a row per prompt."""
        unread = begin(forward, prompts, device, keep=1)
        mask_BL, count = unread.mask_BL, len(prompts)
        cache = forward.empty_cache() if unread.cache is None else unread.cache
        logits, cache = forward(
            unread.ids_BC, mask_BL, unread.positions_BC, cache=cache, use_cache=True
        )
        if mask_BL is not None:
            mask_BL = torch.cat([mask_BL, mask_BL.new_ones(count, longest)], 1)
        return cls(
            rows_R=torch.arange(count, device=device),
            logits_RV=numbers(logits[:, -1]),
            cache=cache,
            mask_RL=mask_BL,
            position_R=unread.positions_BC[:, -1] + 1,
            width=max(map(len, prompts)),
            live_R=torch.ones(count, dtype=torch.bool, device=device),
            distance_R=forward.distances([1] * count),
        )

    @torch.inference_mode()
    def repeated(self, counts: Sequence[int]) -> Batch:
        """Return a batch with each row so many times, side by side; this one is used up."""
        if set(counts) == {1}:
            return self
        device = self.rows_R.device
        from_R = self.rows_R.repeat_interleave(torch.tensor(counts, device=device))
        self.cache.reorder_cache(from_R)
        return Batch(
            rows_R=torch.arange(len(from_R), device=device),
            logits_RV=self.logits_RV[from_R],
            cache=self.cache,
            mask_RL=None if self.mask_RL is None else self.mask_RL[from_R],
            position_R=self.position_R[from_R],
            width=self.width,
            live_R=self.live_R[from_R],
            distance_R=None if self.distance_R is None else self.distance_R[from_R],
        )

    def stop(self, row: int) -> None:
        """Stop sampling a row of the record."""
        self.live_R = self.live_R & (self.rows_R != row)

    def advance(self, forward: Forward, choice: _Choice, last_R: Tensor) -> bool:
        """Feed the chosen tokens; return False once no row is left.

        `last_R` marks the rows that have reached their longest.
        """
        ended_R = self.live_R & choice.ended_R
        self.live_R = self.live_R & ~ended_R & ~last_R
        token_R = choice.token_R
        num_live = int(self.live_R.sum())  # the only synchronisation with the device
        if num_live == 0:
            return False
        if num_live < COMPACT_BELOW * len(self.live_R):
            kept = self.live_R.nonzero()[:, 0]
            self._keep(kept)
            token_R = token_R[kept]
        self.width += 1
        mask = None if self.mask_RL is None else self.mask_RL[:, : self.width]
        logits, self.cache = forward(
            token_R[:, None], mask, self.position_R[:, None], cache=self.cache, use_cache=True
        )
        self.logits_RV = logits[:, -1]
        self.position_R = self.position_R + 1
        return True

    def _keep(self, kept: Tensor) -> None:
        self.cache.reorder_cache(kept)
        self.rows_R, self.position_R = self.rows_R[kept], self.position_R[kept]
        self.live_R = self.live_R[kept]
        if self.distance_R is not None:
            self.distance_R = self.distance_R[kept]
        if self.mask_RL is not None:
            self.mask_RL = self.mask_RL[kept]


def _write(record: Rows, batch: Batch, choice: _Choice, step: int) -> None:
    rows_R = batch.rows_R
    record.tokens_RT[rows_R, step] = choice.token_R
    record.logprobs_RT[rows_R, step] = choice.logprob_R
    record.readings_RTQ[rows_R, step] = choice.reading_RQ
    record.ends_RT[rows_R, step] = choice.end_R
    ended_R = batch.live_R & choice.ended_R
    record.end_step_R[rows_R] = torch.where(ended_R, step, record.end_step_R[rows_R])


class Rows(NamedTuple):
    """The record of R rows; columns after a row's own end are meaningless."""

    tokens_RT: Tensor
    logprobs_RT: Tensor  # of the token, or of the end
    readings_RTQ: Tensor  # readings of c in log-odds, zero if nothing is read
    ends_RT: Tensor  # log-probability of ending at each step, in a model without the tokens read
    end_step_R: Tensor  # step at which the row ended; the number of steps if it was cut


def empty(num_rows: int, steps: int, read: int, device: torch.device) -> Rows:
    """Return the record of rows, with so many readings of a step, before their first step."""
    zeros = torch.zeros(num_rows, steps, device=device)
    return Rows(
        tokens_RT=zeros.long(),
        logprobs_RT=zeros,
        readings_RTQ=torch.zeros(num_rows, steps, read, device=device),
        ends_RT=zeros.clone(),
        end_step_R=torch.full((num_rows,), steps, device=device),
    )


def cut(rows: Rows, steps: int) -> Rows:
    """Return the record of the first `steps` steps."""
    columns = [column_RT[:, :steps] for column_RT in rows[:4]]
    return Rows._make([*columns, rows.end_step_R.clamp(max=steps)])


def at_step(rows: Rows, which: Sequence[int], step: int) -> list[Drawn]:
    """Return the outcome of a step for some of the rows."""
    place_R = torch.tensor(which, dtype=torch.long, device=rows.end_step_R.device)
    columns = (column_RT[place_R, step].tolist() for column_RT in rows[:4])
    ended = (rows.end_step_R[place_R] == step).tolist()
    return [Drawn(*values) for values in zip(which, *columns, ended, strict=True)]


def generations(rows: Rows, reader: Reader, tokenizer: Any) -> list[Generation]:
    """Return the response of each row."""
    at_T = torch.arange(rows.logprobs_RT.shape[1], device=rows.end_step_R.device)
    numbers(rows.logprobs_RT[at_T <= rows.end_step_R[:, None]])  # none counts after a row's end
    columns, responses = [column_RT.tolist() for column_RT in rows[:4]], []
    for row, end in enumerate(rows.end_step_R.tolist()):
        steps = zip(*(column[row][: end + 1] for column in columns), strict=True)
        drawn = [Drawn(row, t, p, r, e, at == end) for at, (t, p, r, e) in enumerate(steps)]
        responses.append(response(drawn, reader, tokenizer))
    return responses
