"""Sampling on a causal language model, with c read while the response is written.

Ending is one option: p(end) is the sum over the EOS ids and `<CNF>`, taken before temperature and
top-p, so that training c up or down cannot lengthen or shorten an answer. Greedy decoding ends
where p(end) is larger than the probability of every other token. Where c is read at the prompt,
`<CNF>` says nothing about ending: it is left out of the distribution that is sampled.

Shapes: B prompts, R rows (prompts x samples, a prompt's samples side by side), L padded prompt
length, T steps, V vocabulary, E end tokens.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from grace.cnf import Readout
from grace.engines import Sampling
from grace.evidence import Evidence, shift

COMPACT_BELOW = 0.8  # drop finished rows once fewer than this share are left


@dataclass(frozen=True, slots=True)
class Ends:
    """What ends a response, and how c is read."""

    ids_E: Tensor  # all stop ids on the model's device, those of the readout last
    first: int  # the one that stands for all of them
    readout: Readout | None
    fed: int | None  # the token at whose own position c is read, where it is fed
    at_prompt: bool  # the readout's ids end nothing


class Rows(NamedTuple):
    """What R rows produced; columns from a row's own end on are meaningless."""

    tokens_RT: Tensor
    logprobs_RT: Tensor  # of the token, or of ending
    confidences_RT: Tensor  # c as read at every step, all zero without <CNF>
    end_step_R: Tensor  # step at which the row ended; the number of steps when it was cut
    fed_R: Tensor  # c at <CNF>'s own position, where it was fed


class Forward:
    """Calls the model with the arguments that it knows; returns (float32 logits, cache)."""

    def __init__(self, model: Any) -> None:
        self.model = model
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        known = inspect.signature(base.forward).parameters
        self._keeps = "logits_to_keep" in known
        self._positions = "position_ids" in known

    def __call__(
        self,
        ids_BL: Tensor,
        mask_BL: Tensor | None,
        positions_BL: Tensor,
        *,
        keep: int = 1,
        cache: Any = None,
        use_cache: bool = False,
    ) -> tuple[Tensor, Any]:
        """Return the logits of the last `keep` positions, and the cache."""
        extra: dict[str, Any] = {"position_ids": positions_BL} if self._positions else {}
        if self._keeps:
            extra["logits_to_keep"] = keep
        out = self.model(
            input_ids=ids_BL,
            attention_mask=mask_BL,
            past_key_values=cache,
            use_cache=use_cache,
            **extra,
        )
        return out.logits[:, -keep:].float(), out.past_key_values if use_cache else None

    def states(self, ids_BL: Tensor, mask_BL: Tensor, positions_BL: Tensor) -> Tensor:
        """Return the last layer's hidden states after the final norm, shape (B, L, D)."""
        base = self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model
        extra = {"position_ids": positions_BL} if self._positions else {}
        out = base.base_model(input_ids=ids_BL, attention_mask=mask_BL, use_cache=False, **extra)
        states_BLD: Tensor = out.last_hidden_state
        return states_BLD


def left_pad(
    sequences: Sequence[Sequence[int]], device: torch.device, pad: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids, mask and positions, each (B, L), padded on the left."""
    length = max(map(len, sequences))
    ids = torch.tensor([[pad] * (length - len(s)) + list(s) for s in sequences], device=device)
    padding = torch.tensor([length - len(s) for s in sequences], device=device)
    positions = torch.arange(length, device=device) - padding[:, None]
    return ids, (positions >= 0).long(), positions.clamp_min(0)


def uniforms(seed: int, keys: Sequence[str], samples: range, num_steps: int) -> np.ndarray:
    """Return float64 draws of shape (R, T); each row depends on (seed, key, sample) alone."""
    return np.stack(
        [
            np.random.Generator(np.random.Philox(key=_philox_key(seed, key, sample))).random(
                num_steps
            )
            for key in keys
            for sample in samples
        ]
    )


def _philox_key(seed: int, key: str, sample: int) -> int:
    words = f"{seed}\0{sample}\0{key}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(words, digest_size=16).digest(), "little")


@torch.inference_mode()
def decode(
    forward: Forward,
    prompts: Sequence[Sequence[int]],
    keys: Sequence[str],
    sampling: Sampling,
    ends: Ends,
    device: torch.device,
) -> Rows:
    """Sample all rows of a batch; each prompt is prefilled once."""
    samples = range(sampling.first_sample, sampling.first_sample + sampling.num_samples)
    steps = sampling.max_new_tokens
    draws_RT = None
    if sampling.temperature > 0:
        draws_RT = torch.from_numpy(uniforms(sampling.seed, keys, samples, steps)).to(device)
    batch = _Batch.start(forward, prompts, sampling.num_samples, steps, device)
    record = _empty(len(prompts) * sampling.num_samples, steps, device)
    for step in range(steps + (ends.fed is not None)):
        draw_R = draws_RT[batch.rows_R, step] if draws_RT is not None and step < steps else None
        choice = _choose(batch.logits_RV, ends, sampling, draw_R)
        _write(record, batch, choice, step, ends)
        if not batch.advance(forward, choice, step, ends, last=step >= steps - 1):
            break
    return Rows(*(tensor.cpu() for tensor in record))


class _Choice(NamedTuple):
    token_R: Tensor
    logprob_R: Tensor
    confidence_R: Tensor
    ended_R: Tensor


def _choose(logits_RV: Tensor, ends: Ends, sampling: Sampling, draw_R: Tensor | None) -> _Choice:
    """Pick the next token of each row. The logits are overwritten."""
    total_R = logits_RV.logsumexp(-1)
    ends_RE = logits_RV.index_select(1, ends.ids_E)
    confidence_R = torch.zeros_like(total_R)
    if ends.readout is not None:
        read_RE = ends_RE[:, -len(ends.readout.ids) :]
        confidence_R = ends.readout.confidence((read_RE - total_R[:, None]).exp())
        if ends.at_prompt:
            read_RE.fill_(-torch.inf)
    if len(ends.ids_E) > 1:
        end_R = ends_RE.logsumexp(-1)
        ends_RE.fill_(-torch.inf)[:, 0] = end_R
        logits_RV.index_copy_(1, ends.ids_E, ends_RE)
    if ends.at_prompt:
        total_R = logits_RV.logsumexp(-1)
    if draw_R is None:
        token_R = logits_RV.argmax(-1)
    else:
        token_R = _draw(logits_RV / sampling.temperature, sampling.top_p, draw_R)
    logprob_R = logits_RV.gather(1, token_R[:, None])[:, 0] - total_R
    return _Choice(token_R, logprob_R, confidence_R, token_R == ends.first)


def _draw(logits_RV: Tensor, top_p: float, draw_R: Tensor) -> Tensor:
    """Return one token per row by the inverse of the cumulative distribution."""
    probs_RV = logits_RV.softmax(-1)
    if top_p < 1:
        sorted_RV, order_RV = probs_RV.sort(dim=-1, descending=True, stable=True)
        above_RV = sorted_RV.double().cumsum(-1) - sorted_RV
        probs_RV = probs_RV.scatter(1, order_RV, sorted_RV.masked_fill(above_RV >= top_p, 0))
    cumulative_RV = probs_RV.cumsum(-1, dtype=torch.float64)
    total_R = cumulative_RV[:, -1]
    point_R = torch.minimum(draw_R * total_R, total_R.nextafter(torch.zeros_like(total_R)))
    return torch.searchsorted(cumulative_RV, point_R[:, None], right=True)[:, 0]


@dataclass(slots=True)
class _Batch:
    """The rows still in flight."""

    rows_R: Tensor  # their row numbers in the record
    logits_RV: Tensor
    cache: Any
    mask_RL: Tensor | None  # None where nothing is padded
    position_R: Tensor  # of the next token
    width: int  # columns of the mask in use
    live_R: Tensor  # still sampling
    reading_R: Tensor  # <CNF> was fed; the next logits hold c

    @classmethod
    def start(
        cls,
        forward: Forward,
        prompts: Sequence[Sequence[int]],
        num_samples: int,
        steps: int,
        device: torch.device,
    ) -> _Batch:
        """Prefill each prompt once, and give each of its samples a copy of the cache."""
        ids_BL, mask_BL, positions_BL = left_pad(prompts, device, pad=0)
        ragged = len(set(map(len, prompts))) > 1
        logits, cache = forward(ids_BL, mask_BL if ragged else None, positions_BL, use_cache=True)
        logits_RV = logits[:, -1]
        if num_samples > 1:
            cache.batch_repeat_interleave(num_samples)
            logits_RV = logits_RV.repeat_interleave(num_samples, 0)
        mask_RL = None
        if ragged:
            ahead = mask_BL.new_ones(len(prompts), steps)
            mask_RL = torch.cat([mask_BL, ahead], 1).repeat_interleave(num_samples, 0)
        num_rows = len(logits_RV)
        return cls(
            rows_R=torch.arange(num_rows, device=device),
            logits_RV=logits_RV,
            cache=cache,
            mask_RL=mask_RL,
            position_R=(positions_BL[:, -1] + 1).repeat_interleave(num_samples, 0),
            width=ids_BL.shape[1],
            live_R=torch.ones(num_rows, dtype=torch.bool, device=device),
            reading_R=torch.zeros(num_rows, dtype=torch.bool, device=device),
        )

    def advance(
        self, forward: Forward, choice: _Choice, step: int, ends: Ends, *, last: bool
    ) -> bool:
        """Feed the chosen tokens; return False once no row has anything left to do."""
        ended_R = self.live_R & choice.ended_R
        self.live_R = self.live_R & ~ended_R & (not last)
        token_R, active_R = choice.token_R, self.live_R
        if ends.fed is not None:
            self.reading_R = ended_R
            token_R = torch.where(ended_R, ends.fed, token_R)
            active_R = active_R | ended_R
        num_active = int(active_R.sum())  # the one wait for the device per step
        if num_active == 0:
            return False
        if num_active < COMPACT_BELOW * len(active_R):
            kept = active_R.nonzero()[:, 0]
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
        self.cache.batch_select_indices(kept)
        self.rows_R, self.position_R = self.rows_R[kept], self.position_R[kept]
        self.live_R, self.reading_R = self.live_R[kept], self.reading_R[kept]
        if self.mask_RL is not None:
            self.mask_RL = self.mask_RL[kept]


def with_evidence(rows: Rows, evidence: Evidence) -> Rows:
    """Return the rows with every c shifted by the probabilities of the tokens before it."""
    offset_RT = evidence.running(rows.logprobs_RT)
    end_R = rows.end_step_R[:, None]
    return rows._replace(
        confidences_RT=shift(rows.confidences_RT.log(), offset_RT[:, :-1]).exp(),
        fed_R=shift(rows.fed_R.log(), offset_RT.gather(1, end_R)[:, 0]).exp(),
    )


def _empty(num_rows: int, steps: int, device: torch.device) -> Rows:
    zeros = torch.zeros(num_rows, steps, device=device)
    return Rows(
        tokens_RT=zeros.long(),
        logprobs_RT=zeros,
        confidences_RT=zeros.clone(),
        end_step_R=torch.full((num_rows,), steps, device=device),
        fed_R=torch.zeros(num_rows, device=device),
    )


def _write(record: Rows, batch: _Batch, choice: _Choice, step: int, ends: Ends) -> None:
    rows_R = batch.rows_R
    if ends.fed is not None:
        fed_R = torch.where(batch.reading_R, choice.confidence_R, record.fed_R[rows_R])
        record.fed_R[rows_R] = fed_R
    if step == record.tokens_RT.shape[1]:
        return
    record.tokens_RT[rows_R, step] = choice.token_R
    record.logprobs_RT[rows_R, step] = choice.logprob_R
    record.confidences_RT[rows_R, step] = choice.confidence_R
    ended_R = batch.live_R & choice.ended_R
    record.end_step_R[rows_R] = torch.where(ended_R, step, record.end_step_R[rows_R])
