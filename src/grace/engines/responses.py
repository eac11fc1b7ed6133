"""Turn the steps of a sample into a response.

A field of a structured answer is read like an answer of its own: its tokens are those of its value,
its prompt is all that comes before them, and it ends at the token after them (the closing quote, a
comma).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from grace.answers.fields import fields_in
from grace.chat import pieces
from grace.engines import Ids, Rating
from grace.engines.reading import Reader, Scored, Step, StepResult
from grace.evidence import Evidence, Reading, along, confidence, features
from grace.records import FieldValue, Response


class Span(NamedTuple):
    """The value of a field, and the tokens [start, end) that it is in."""

    value: Any
    start: int
    end: int
    closed: bool  # the last token also has the first character after it


def field_places(tokenizer: Any, ids: Ids) -> dict[str, Span]:
    """Return where in an answer's tokens the values of its fields are."""
    texts = pieces(tokenizer, ids)
    text = "".join(texts)
    begins = [0, *accumulate(map(len, texts))]
    found = {}
    for name, (value, start, end) in fields_in(text).items():
        # tokens without a text hold the first bytes of the character that the next one completes
        first = bisect_left(begins, start)
        if begins[first] != start:
            first = bisect_right(begins, start) - 1
        last = bisect_left(begins, end)
        found[name] = Span(value, first, last, closed=begins[last] > end)
    return found


def end_of(place: Span, logprobs: Sequence[float]) -> float:
    """Return the log-probability that a value ends where it does, 0 if its last token says so."""
    return 0.0 if place.closed or place.end >= len(logprobs) else logprobs[place.end]


def rated(scored: Scored, ids: Ids, reader: Reader, tokenizer: Any) -> Rating:
    """Return what is known of a given response."""
    fields = rate_fields(tokenizer, ids, scored.logprobs, scored.readings, reader.evidence)
    likelihoods = {}
    for name, place in field_places(tokenizer, ids).items() if fields else ():
        mean, least, *_ = features(scored.logprobs[place.start : place.end], 0.0)
        likelihoods[name] = (math.exp(mean), math.exp(least))
    c, familiar = reader.confidence(scored), reader.familiar(scored.readings)
    return Rating(c, familiar, fields, likelihoods)


def rate_fields(
    tokenizer: Any,
    ids: Ids,
    logprobs: Sequence[float],
    readings: Sequence[Reading],
    evidence: Evidence | None,
) -> dict[str, FieldValue]:
    """Return the fields of an answer with their confidences, if the model has some for fields."""
    if evidence is None or not evidence.fields:
        return {}
    found: dict[str, FieldValue] = {}
    for name, place in field_places(tokenizer, ids).items():
        if place.end < len(readings):
            c = confidence(
                readings[place.start : place.end + 1],
                logprobs[place.start : place.end],
                end_of(place, logprobs),
                evidence.of_field(name),
            )
            found[name] = {"value": place.value, "confidence": c}
    return found


def read(steps: Iterable[Step], reader: Reader, tokenizer: Any) -> Response:
    """Return the response in the steps of one sample, up to its end token if it has one."""
    results: list[StepResult] = []
    for step in steps:
        results.append(reader.result(step))
        if results[-1].ended:
            break
    return response(results, reader, tokenizer)


def response(results: Sequence[StepResult], reader: Reader, tokenizer: Any) -> Response:
    """Return the response of some steps: without an end step it was cut, and has no confidence."""
    ended = bool(results) and results[-1].ended
    reads = reader.readout is not None
    written = results[: len(results) - ended]
    logprobs, ends = [one.logprob for one in written], [one.end for one in results]
    readings = [one.readings for one in results]
    trace = along(readings, logprobs, ends, reader.evidence) if reads else []
    tokens = tuple(one.token for one in written)
    text = tokenizer.decode(list(tokens), skip_special_tokens=True)
    rated = ended and reads and text.strip()
    return Response(
        text=text,
        token_ids=tokens,
        finish_reason="stop" if ended else "length",
        logprobs=tuple(logprobs),
        end_logprob=results[-1].logprob if ended else None,
        confidence=trace[0 if reader.at_prompt else -1] if rated else None,
        trace=tuple(trace),
        familiar=reader.familiar(readings),
        fields=rate_fields(tokenizer, tokens, logprobs, readings, reader.evidence),
    )
