"""What one question gets from a model."""

from __future__ import annotations

from typing import NamedTuple


class Reply(NamedTuple):
    """An answer and how sure the model is of it.

    `text` is the response without surrounding space. `confidence` is P(correct) in [0, 1], None
    when the answer was cut. `answer` is what counts in a vote (the letter, or the short answer
    normalised), None if there is none. `finish_reason` is "stop", or "length" for an answer that
    was cut at `max_new_tokens`. `tokens` counts the response without its end token, and `pieces`
    are the texts that they add, one each. `trace` is c at every step, the end step last:
    `trace[k]` is P(correct | the first k tokens) of a model that was trained with `train.trace`,
    of another what c would be, were the answer to end there. `threshold` is the confidence that
    was asked for, if any, and `promise` what it guarantees when it is the run's own; `abstains`:
    the answer falls short of it. `unusual`: the probabilities of its tokens lie well outside of
    those that the confidence was fitted on, so it is a guess.
    """

    text: str
    confidence: float | None
    answer: str | None
    finish_reason: str
    tokens: int
    trace: tuple[float, ...]
    threshold: float | None = None
    promise: str = ""
    abstains: bool = False
    unusual: bool = False
    pieces: tuple[str, ...] = ()
