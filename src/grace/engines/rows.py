"""What decoding has written down, and the responses in it.

Shapes: R rows, T steps.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from grace.evidence import Evidence, shift
from grace.records import Generation


class Rows(NamedTuple):
    """What R rows produced; columns from a row's own end on are meaningless."""

    tokens_RT: Tensor
    logprobs_RT: Tensor  # of the token, or of ending
    confidences_RT: Tensor  # c as read at every step, all zero without <CNF>
    end_step_R: Tensor  # step at which the row ended; the number of steps when it was cut
    fed_R: Tensor  # c at <CNF>'s own position, where it was fed


def empty(num_rows: int, steps: int, device: torch.device) -> Rows:
    """Return the record of rows that have not begun."""
    zeros = torch.zeros(num_rows, steps, device=device)
    return Rows(
        tokens_RT=zeros.long(),
        logprobs_RT=zeros,
        confidences_RT=zeros.clone(),
        end_step_R=torch.full((num_rows,), steps, device=device),
        fed_R=torch.zeros(num_rows, device=device),
    )


def with_evidence(rows: Rows, evidence: Evidence) -> Rows:
    """Return the rows with every c shifted by the probabilities of the tokens before it."""
    offset_RT = evidence.running(rows.logprobs_RT)
    end_R = rows.end_step_R[:, None]
    return rows._replace(
        confidences_RT=shift(rows.confidences_RT.log(), offset_RT[:, :-1], evidence.slope).exp(),
        fed_R=shift(rows.fed_R.log(), offset_RT.gather(1, end_R)[:, 0], evidence.slope).exp(),
    )


def generations(rows: Rows, tokenizer: Any, read_at: str, *, reads: bool) -> list[Generation]:
    """Return the response of each row; without `reads` the model has nothing to read c from."""
    steps = rows.tokens_RT.shape[1]
    tokens_RT, logprobs_RT = rows.tokens_RT.tolist(), rows.logprobs_RT.tolist()
    traces_RT, fed_R = rows.confidences_RT.tolist(), rows.fed_R.tolist()
    made = []
    for row, end in enumerate(rows.end_step_R.tolist()):
        ended = end < steps
        read = 0 if read_at == "prompt" else min(end, steps - 1)
        confidence = fed_R[row] if read_at == "feed" else traces_RT[row][read]
        made.append(
            Generation(
                text=tokenizer.decode(tokens_RT[row][:end], skip_special_tokens=True),
                token_ids=tuple(tokens_RT[row][:end]),
                finish_reason="stop" if ended else "length",
                logprobs=tuple(logprobs_RT[row][:end]),
                end_logprob=logprobs_RT[row][end] if ended else None,
                confidence=confidence if ended and reads else None,
                trace=tuple(traces_RT[row][: end + 1]) if reads else (),
            )
        )
    return made
