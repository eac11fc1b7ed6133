"""Sampling on a causal language model, with c read while the response is written.

A token is drawn as any engine draws it: temperature, top-p and argmax see the EOS ids and `<CNF>`
as tokens of their own, and whichever is drawn ends the response. The log-probability of the end is
that of all of them together, at temperature 1. Where c is read at the prompt, `<CNF>` says nothing
about ending: it is left out of the distribution that is sampled.

Shapes: B prompts, R rows (prompts x samples, a prompt's samples side by side), L padded prompt
length, T steps, V vocabulary, E end tokens.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from grace.cnf import Readout, log1mexp
from grace.engines import Sampling
from grace.engines.local.draws import Draws, Part
from grace.engines.local.forward import Forward, begin
from grace.engines.reading import Drawn, response
from grace.evidence import Evidence
from grace.records import Generation

COMPACT_BELOW = 0.8  # drop finished rows once fewer than this share are left


@dataclass(frozen=True, slots=True)
class Ends:
    """What ends a response, and how c is read."""

    ids_E: Tensor  # all stop ids on the model's device
    unread_E: Tensor  # those that are not read
    first: int  # the one that stands for all of them
    readout: Readout | None
    silent: bool  # the readout's ids are never drawn: the model says what it would without them


def decode(
    forward: Forward,
    prompts: Sequence[Sequence[int]],
    keys: Sequence[str],
    sampling: Sampling,
    ends: Ends,
    device: torch.device,
) -> Rows:
    """Sample all rows of a batch; each prompt is prefilled once."""
    batch = Batch.prefill(forward, prompts, sampling.max_new_tokens, device)
    record = empty(len(prompts) * sampling.num_samples, sampling.max_new_tokens, device)
    draws = Draws.of([Part(prompts, sampling, keys)], device)
    for _ in steps(forward, batch.repeated(sampling.num_samples), record, draws, ends):
        pass
    return Rows(*(tensor.cpu() for tensor in record))


@torch.inference_mode()
def steps(
    forward: Forward, batch: Batch, record: Rows, draws: Draws, ends: Ends
) -> Generator[int, None, None]:
    """Sample the rows of a batch into the record; yield each step once it is written.

    Nothing runs between two steps, so whoever stops asking for more stops the computation.
    """
    for step in range(record.tokens_RT.shape[1]):
        choice = _choose(batch.logits_RV, ends, draws, batch.rows_R, step)
        _write(record, batch, choice, step)
        yield step
        last_R = draws.longest_R[batch.rows_R] <= step + 1
        if not batch.advance(forward, choice, last_R):
            break


class _Choice(NamedTuple):
    token_R: Tensor
    logprob_R: Tensor
    reading_R: Tensor
    end_R: Tensor
    ended_R: Tensor


def _choose(logits_RV: Tensor, ends: Ends, draws: Draws, rows_R: Tensor, step: int) -> _Choice:
    """Pick the next token of each row; one that ends it is written as the first of its kind."""
    total_R = logits_RV.logsumexp(-1)
    reading_R, rest_R = torch.zeros_like(total_R), total_R
    if ends.readout is not None:
        read = list(ends.readout.ids)
        read_RE = logits_RV[:, read]
        reading_R = ends.readout.reading(read_RE, total_R)
        if ends.silent:
            logits_RV[:, read] = -torch.inf
            rest_R = total_R = logits_RV.logsumexp(-1)
        else:
            rest_R = total_R + log1mexp((read_RE.logsumexp(-1) - total_R).clamp(max=-1e-7))
    end_R = (logits_RV.index_select(1, ends.unread_E).logsumexp(-1) - rest_R).clamp(max=0)
    ends_RE = logits_RV.index_select(1, ends.ids_E)
    token_R = draws.choose(logits_RV, rows_R, step)
    ended_R = torch.isin(token_R, ends.ids_E)
    chosen_R = logits_RV.gather(1, token_R[:, None])[:, 0]
    logprob_R = torch.where(ended_R, ends_RE.logsumexp(-1), chosen_R) - total_R
    return _Choice(token_R.where(~ended_R, ends.first), logprob_R, reading_R, end_R, ended_R)


@dataclass(slots=True)
class Batch:
    """The rows still in flight; those of a prefill have drawn nothing yet."""

    rows_R: Tensor  # their row numbers in the record
    logits_RV: Tensor
    cache: Any
    mask_RL: Tensor | None  # None where nothing is padded
    position_R: Tensor  # of the next token
    width: int  # columns of the mask in use
    live_R: Tensor  # still sampling

    @classmethod
    @torch.inference_mode()
    def prefill(
        cls,
        forward: Forward,
        prompts: Sequence[Sequence[int]],
        longest: int,
        device: torch.device,
    ) -> Batch:
        """Read each prompt once, for responses of at most `longest` tokens; one row per prompt."""
        given = begin(forward, prompts, device, keep=1)
        mask_BL, count = given.mask_BL, len(prompts)
        cache = forward.empty_cache() if given.cache is None else given.cache
        logits, cache = forward(
            given.ids_BC, mask_BL, given.positions_BC, cache=cache, use_cache=True
        )
        if mask_BL is not None:
            mask_BL = torch.cat([mask_BL, mask_BL.new_ones(count, longest)], 1)
        return cls(
            rows_R=torch.arange(count, device=device),
            logits_RV=logits[:, -1],
            cache=cache,
            mask_RL=mask_BL,
            position_R=given.positions_BC[:, -1] + 1,
            width=max(map(len, prompts)),
            live_R=torch.ones(count, dtype=torch.bool, device=device),
        )

    @torch.inference_mode()
    def repeated(self, num_samples: int | Sequence[int]) -> Batch:
        """Return `num_samples` rows for each row, side by side; this batch is used up."""
        counts = [num_samples] * len(self.rows_R) if isinstance(num_samples, int) else num_samples
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
        )

    def stop(self, rows: Sequence[int]) -> None:
        """Sample rows of the record no further."""
        for row in rows:
            self.live_R = self.live_R & (self.rows_R != row)

    def advance(self, forward: Forward, choice: _Choice, last_R: Tensor) -> bool:
        """Feed the chosen tokens; return False once no row has anything left to do.

        Rows of `last_R` are as long as they may be.
        """
        ended_R = self.live_R & choice.ended_R
        self.live_R = self.live_R & ~ended_R & ~last_R
        token_R = choice.token_R
        num_live = int(self.live_R.sum())  # the one wait for the device per step
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
        if self.mask_RL is not None:
            self.mask_RL = self.mask_RL[kept]


def _write(record: Rows, batch: Batch, choice: _Choice, step: int) -> None:
    rows_R = batch.rows_R
    record.tokens_RT[rows_R, step] = choice.token_R
    record.logprobs_RT[rows_R, step] = choice.logprob_R
    record.readings_RT[rows_R, step] = choice.reading_R
    record.ends_RT[rows_R, step] = choice.end_R
    ended_R = batch.live_R & choice.ended_R
    record.end_step_R[rows_R] = torch.where(ended_R, step, record.end_step_R[rows_R])


class Rows(NamedTuple):
    """What R rows produced; columns from a row's own end on are meaningless."""

    tokens_RT: Tensor
    logprobs_RT: Tensor  # of the token, or of ending
    readings_RT: Tensor  # log-odds as read at every step, all zero where nothing is read
    ends_RT: Tensor  # log-probability of ending at each step, without the tokens that are read
    end_step_R: Tensor  # step at which the row ended; the number of steps when it was cut


def empty(num_rows: int, steps: int, device: torch.device) -> Rows:
    """Return the record of rows that have not begun."""
    zeros = torch.zeros(num_rows, steps, device=device)
    return Rows(
        tokens_RT=zeros.long(),
        logprobs_RT=zeros,
        readings_RT=zeros.clone(),
        ends_RT=zeros.clone(),
        end_step_R=torch.full((num_rows,), steps, device=device),
    )


def cut(rows: Rows, steps: int) -> Rows:
    """Return the rows as if they had been drawn in one of `steps` steps."""
    return Rows(
        tokens_RT=rows.tokens_RT[:, :steps],
        logprobs_RT=rows.logprobs_RT[:, :steps],
        readings_RT=rows.readings_RT[:, :steps],
        ends_RT=rows.ends_RT[:, :steps],
        end_step_R=rows.end_step_R.clamp(max=steps),
    )


def at_step(rows: Rows, which: Sequence[int], step: int) -> list[Drawn]:
    """Return what a step has chosen for some of the rows."""
    place_R = torch.tensor(which, dtype=torch.long, device=rows.end_step_R.device)
    columns = (tensor[place_R, step].tolist() for tensor in rows[:4])
    ended = (rows.end_step_R[place_R] == step).tolist()
    return [Drawn(*values) for values in zip(which, *columns, ended, strict=True)]


def generations(
    rows: Rows, tokenizer: Any, read_at: str, evidence: Evidence | None, *, reads: bool
) -> list[Generation]:
    """Return the response of each row; without `reads` the model has nothing to read c from."""
    columns, made = [tensor.tolist() for tensor in rows[:4]], []
    for row, end in enumerate(rows.end_step_R.tolist()):
        steps = zip(*(column[row][: end + 1] for column in columns), strict=True)
        drawn = [Drawn(row, t, p, r, e, at == end) for at, (t, p, r, e) in enumerate(steps)]
        made.append(response(drawn, tokenizer, read_at, evidence, reads=reads))
    return made
