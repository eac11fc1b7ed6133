"""Turn the steps of a sample into a response, or abort it when its confidence falls too low."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from grace.engines.fields import rate_fields
from grace.engines.reading import Drawn, Reader, Step
from grace.errors import UserInputError
from grace.evidence import Evidence, Running, along
from grace.records import Response


def read(steps: Iterable[Step], reader: Reader, tokenizer: Any) -> Response:
    """Return the response in the steps of one sample, up to its end token if it has one."""
    drawn: list[Drawn] = []
    for step in steps:
        drawn.append(reader.drawn(step))
        if drawn[-1].ended:
            break
    return response(drawn, reader, tokenizer)


def response(drawn: Sequence[Drawn], reader: Reader, tokenizer: Any) -> Response:
    """Return the response of some steps: without an end step it was cut, and has no confidence."""
    ended = bool(drawn) and drawn[-1].ended
    reads = reader.readout is not None
    written = drawn[: len(drawn) - ended]
    logprobs, ends = [one.logprob for one in written], [one.end for one in drawn]
    readings = [one.readings for one in drawn]
    trace = along(readings, logprobs, ends, reader.evidence) if reads else []
    tokens = tuple(one.token for one in written)
    text = tokenizer.decode(list(tokens), skip_special_tokens=True)
    rated = ended and reads and text.strip()
    return Response(
        text=text,
        token_ids=tokens,
        finish_reason="stop" if ended else "length",
        logprobs=tuple(logprobs),
        end_logprob=drawn[-1].logprob if ended else None,
        confidence=trace[0 if reader.at_prompt else -1] if rated else None,
        trace=tuple(trace),
        familiar=reader.familiar(readings),
        fields=rate_fields(tokenizer, tokens, logprobs, readings, reader.evidence),
    )


class Watch:
    """Follows c of one sample, which is hopeless once c falls below `drop`."""

    def __init__(self, evidence: Evidence | None, drop: float) -> None:
        if drop and (evidence is None or evidence.trace is None):
            raise UserInputError(
                f"samples cannot be dropped below {drop:g}: the model knows its confidence at the "
                "end of an answer only; train it with grace.trace=true"
            )
        self._running, self._drop, self._tokens = Running(evidence), drop, 0

    def hopeless(self, drawn: Drawn) -> bool:
        """Take the next step, and return whether c before its token, not the first, was too low."""
        if not self._drop or drawn.ended:
            return False
        self._running.read(drawn.readings, drawn.end)
        low = self._tokens > 0 and self._running.so_far() < self._drop
        self._running.add(drawn.logprob)
        self._tokens += 1
        return low

    def falls(self, steps: Sequence[Step], reader: Reader) -> int:
        """Return after how many of all steps so far c was too low, 0 if it was not."""
        if not self._drop:
            return 0
        for count in range(self._tokens, len(steps)):
            if self.hopeless(reader.drawn(steps[count])):
                return count + 1
        return 0


def dropped(steps: Iterable[Step], reader: Reader, tokenizer: Any) -> Response:
    """Return the response of a sample that was aborted after these steps."""
    return replace(read(steps, reader, tokenizer), finish_reason="dropped")
