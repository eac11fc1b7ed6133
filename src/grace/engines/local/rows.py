"""What decoding has written down, and the responses in it.

Shapes: R rows, T steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from grace.engines.reading import Drawn
from grace.evidence import Evidence, along
from grace.records import Generation


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
    steps = rows.tokens_RT.shape[1]
    tokens_RT, logprobs_RT = rows.tokens_RT.tolist(), rows.logprobs_RT.tolist()
    readings_RT, ends_RT = rows.readings_RT.tolist(), rows.ends_RT.tolist()
    made = []
    for row, end in enumerate(rows.end_step_R.tolist()):
        ended, logprobs = end < steps, logprobs_RT[row][:end]
        read, ending = readings_RT[row][: end + 1], ends_RT[row][: end + 1]
        trace = along(read, logprobs, ending, evidence) if reads else []
        c = trace[0 if read_at == "prompt" else -1] if ended and reads else None
        made.append(
            Generation(
                text=tokenizer.decode(tokens_RT[row][:end], skip_special_tokens=True),
                token_ids=tuple(tokens_RT[row][:end]),
                finish_reason="stop" if ended else "length",
                logprobs=tuple(logprobs),
                end_logprob=logprobs_RT[row][end] if ended else None,
                confidence=c,
                trace=tuple(trace),
            )
        )
    return made
