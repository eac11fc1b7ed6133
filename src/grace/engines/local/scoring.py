"""What one forward over prompt and response says about the response.

Shapes: B sequences, C columns to read, K kept positions, V vocabulary, D hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from grace.cnf import Readout, end_log_prob, unread_end, without
from grace.engines.local.forward import Forward
from grace.engines.local.prefix import Unread


class Reading(NamedTuple):
    """One given response: log p of its tokens and of its end, and what each step reads of c.

    `end` is log p of its end in a model without the tokens that are read.
    """

    logprobs: list[float]
    end_logprob: float
    end: float
    readings: list[float]


@torch.inference_mode()
def score(
    logits_KV: Tensor,
    response: Sequence[int],
    end_ids: Sequence[int],
    readout: Readout | None,
    *,
    silent: bool,
) -> Reading:
    """Read one response from the logits of its steps, its end, and `<CNF>` if that was fed.

    With `silent` the probabilities are those of a model without the tokens that are read.
    """
    num_tokens, readings = len(response), list[float]()
    last_V = logits_KV[num_tokens]
    if readout is None:
        end = float(end_log_prob(last_V, end_ids))
    else:
        read_KE = logits_KV[:, list(readout.ids)]
        readings = readout.reading(read_KE, logits_KV.logsumexp(-1)).tolist()
        end = float(unread_end(last_V, end_ids, readout))
        if silent:
            logits_KV = without(logits_KV, readout)
    end_logprob = float(end_log_prob(logits_KV[num_tokens], end_ids))
    tokens_K = torch.tensor(response, dtype=torch.long, device=logits_KV.device)
    steps_KV = logits_KV[:num_tokens]
    chosen_K = steps_KV.gather(1, tokens_K[:, None])[:, 0] - steps_KV.logsumexp(-1)
    return Reading(chosen_K.tolist(), end_logprob, end, readings)


@torch.inference_mode()
def pool(
    forward: Forward, given: Unread, counts: Sequence[int], places: Sequence[Sequence[int]] = ()
) -> list[np.ndarray]:
    """Return states of each sequence, (3, D), or with B places of each (3 + 2 B, D).

    They are the mean over the last `count` positions, the last one, and the one before those; then
    those at the places, counted from that one, and the means from it to each of them.
    """
    states_BCD = forward.states(given.ids_BC, given.mask_BL, given.positions_BC, given.cache)
    pooled = []
    for row, (states_CD, n) in enumerate(zip(states_BCD.float(), counts, strict=True)):
        kept = [states_CD[-max(n, 1) :].mean(0), states_CD[-1], states_CD[-n - 1]]
        steps_KD = states_CD[len(states_CD) - n - 1 :]
        at = places[row] if places else ()
        kept += [steps_KD[k] for k in at] + [steps_KD[: k + 1].mean(0) for k in at]
        pooled.append(torch.stack(kept).cpu().numpy())
    return pooled
