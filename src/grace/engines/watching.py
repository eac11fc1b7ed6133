"""Abort samples whose confidence falls too low while they are written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from grace.engines.reading import Drawn, Reader, Step, read
from grace.errors import UserInputError
from grace.evidence import Evidence, Running
from grace.records import Generation


class Watch:
    """Follows the confidence of one sample while it is written.

    Args:
        evidence: the model's evidence, with a trace.
        drop: the confidence below which the sample is hopeless; 0: it never is.

    Raises:
        UserInputError: the model has a confidence at the end of a response only.
    """

    def __init__(self, evidence: Evidence | None, drop: float) -> None:
        if drop and (evidence is None or evidence.trace is None):
            raise UserInputError(
                f"samples cannot be dropped below {drop:g}: the model knows its confidence at the "
                "end of an answer only; train it with train.trace=true and train.lora=never"
            )
        self._running, self._drop, self._tokens = Running(evidence), drop, 0

    def hopeless(self, drawn: Drawn) -> bool:
        """Take the next step, and return whether c before its token was too low.

        Before the first token c is that of the question, and does not count.
        """
        if not self._drop or drawn.ended:
            return False
        self._running.read(drawn.reading, drawn.end)
        low = self._tokens > 0 and self._running.so_far() < self._drop
        self._running.add(drawn.logprob)
        self._tokens += 1
        return low

    def falls(self, steps: Sequence[Step], reader: Reader) -> int:
        """Return after how many steps of a sample c was too low, 0 if it was not.

        `steps` are all steps so far; those of earlier calls are not read again.
        """
        if not self._drop:
            return 0
        for count in range(self._tokens, len(steps)):
            if self.hopeless(reader.drawn(steps[count])):
                return count + 1
        return 0


def dropped(steps: Iterable[Step], reader: Reader, tokenizer: Any) -> Generation:
    """Return the response of a sample that was aborted after these steps."""
    return read(steps, reader, tokenizer)._replace(finish_reason="dropped")
