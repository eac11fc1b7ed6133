"""What one forward over prompt and response says about the response.

Shapes: B sequences, C columns to read, K kept positions, V vocabulary, D hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from grace.cnf import end_log_prob, log_confidence
from grace.engines.forward import Forward
from grace.engines.prefix import Columns


class Reading(NamedTuple):
    """One given response: log p of its tokens and of its end, and log c before any evidence."""

    logprobs: list[float]
    end_logprob: float
    log_c: float


@torch.inference_mode()
def score(
    logits_KV: Tensor, response: Sequence[int], end_ids: Sequence[int], cnf: int | None
) -> Reading:
    """Read one response from the logits of its steps, its end, and `<CNF>` if that was fed."""
    num_tokens = len(response)
    end = end_log_prob(logits_KV[num_tokens : num_tokens + 1], end_ids)
    tokens_K = torch.tensor(response, dtype=torch.long, device=logits_KV.device)
    steps_KV = logits_KV[:num_tokens]
    chosen_K = steps_KV.gather(1, tokens_K[:, None])[:, 0] - steps_KV.logsumexp(-1)
    log_c = -torch.inf if cnf is None else float(log_confidence(logits_KV[-1:], cnf))
    return Reading(chosen_K.tolist(), float(end), log_c)


@torch.inference_mode()
def pool(forward: Forward, given: Columns, counts: Sequence[int]) -> list[np.ndarray]:
    """Return (mean over the last `count` states, last state) of each sequence, (2, D)."""
    states_BCD = forward.states(given.ids_BC, given.mask_BL, given.positions_BC, given.cache)
    return [
        torch.stack([states_CD[-n:].float().mean(0), states_CD[-1].float()]).cpu().numpy()
        for states_CD, n in zip(states_BCD, counts, strict=True)
    ]
