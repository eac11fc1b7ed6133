"""Find the end of a response, and its confidence, in the log-probabilities of an engine.

A response ends at the step that chose an end token: EOS or <CNF>. The log-probability of its end is
that of all end tokens together. This module does not need torch.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from grace.answers.fields import fields_in
from grace.chat import pieces
from grace.cnf import TOKENS, Readout, find_readout
from grace.engines import Ids, Rating
from grace.errors import ModelError
from grace.evidence import (
    Evidence,
    Reading,
    StepConfidences,
    confidence,
    distance_in,
    features,
    reading,
    traced,
)
from grace.records import FieldValue, Response
from grace.store import read_object

LOWEST = -9999.0  # log-probability of 0 in JSON, which has no infinity
NO_CNF = "the model has no <CNF>, so it has no confidence; load a trained adapter or an export"
MOST_IDS = 128  # ids whose log-probabilities vLLM lists per step
# End tokens that are asked for, besides four ids that are read and the token that is scored; all
# other end tokens hardly count.
LISTED_ENDS = MOST_IDS - 5


class Step(NamedTuple):
    """One step of an engine: a chosen token, log-probabilities at temperature 1, before top-p."""

    token: int
    logprob: float
    logprobs: Mapping[int, float]  # of the ids that the engine was asked for
    ends: bool = False  # the engine takes the token for an end

    @property
    def listed(self) -> dict[int, float]:
        """All log-probabilities of the step, by id."""
        return {self.token: self.logprob, **self.logprobs}


class StepResult(NamedTuple):
    """The outcome of one step for one row: a token, or the end of the response."""

    row: int
    token: int
    logprob: float
    readings: Reading  # of c, in log-odds
    end: float  # log-probability of ending here, without the tokens that are read
    ended: bool


class Scored(NamedTuple):
    """A given response with its log-probabilities and the readings of c."""

    logprobs: Sequence[float]
    end_logprob: float  # of its end as it is drawn
    end: float  # the same in a model without the tokens that are read
    readings: Sequence[Reading]  # at each step in log-odds, those of the end step last


@dataclass(frozen=True, slots=True)
class Reader:
    """The end tokens of a model, and how c is read."""

    readout: Readout | None  # None: the model has no confidence
    eos: tuple[int, ...]  # besides `<CNF>`, the tokenizer's first
    read_at: str = "predict"  # at `prompt`, `<CNF>` is never drawn
    evidence: Evidence | None = None

    @classmethod
    def of(
        cls,
        tokenizer: Any,
        card: Mapping[str, Any],
        eos: Ids = (),
        *,
        rows: int = sys.maxsize,
        needs_cnf: bool = True,
    ) -> Reader:
        """Return the reader of a model, from its tokenizer and its grace.json."""
        readout = find_readout(tokenizer)
        if readout is None and needs_cnf:
            raise ModelError(
                "the tokenizer has no <CNF>, so the model has no confidence; give what "
                "`grace export` wrote"
            )
        read_at = card.get("read_at", "predict")
        bins = readout is not None and readout.cnf is None
        if readout and (bins or read_at == "feed"):
            how = "ten bin tokens" if bins else "<CNF>'s own position (read_at=feed)"
            raise ModelError(
                f"the confidence is read from {how}, which only the transformers engine can do"
            )
        named = (*ids_in(tokenizer.eos_token_id), *eos, *card.get("stop_ids", ()))
        ends = ends_in(named, rows, readout.ids if readout else ())
        return cls(readout, ends, read_at, Evidence.in_card(card))

    @property
    def read(self) -> tuple[int, ...]:
        """The ids that c is read from."""
        return self.readout.ids if self.readout else ()

    @property
    def cnf(self) -> int | None:
        """The id of `<CNF>`, None if there is none."""
        return self.readout.cnf if self.readout else None

    @property
    def at_prompt(self) -> bool:
        """Whether c is read before the response."""
        return self.read_at == "prompt"

    @property
    def fed(self) -> list[int]:
        """The tokens to feed after a response before c is read."""
        return [self.cnf] if self.read_at == "feed" and self.cnf is not None else []

    def read_for_c(self, prompt: Ids, response: Ids) -> tuple[Ids, Ids]:
        """Return what to score for c: without evidence c is one reading, so one step is enough."""
        if self.evidence is not None:
            return prompt, response
        return prompt if self.at_prompt else [*prompt, *response], ()

    @property
    def stops(self) -> tuple[int, ...]:
        """The ids at which an engine must stop."""
        return self.eos if self.banned else (*self.eos, *self.read)

    @property
    def banned(self) -> tuple[int, ...]:
        """The ids that are read and must never be drawn: then given responses are read stepwise."""
        drawn = self.readout is not None and self.readout.ends and not self.at_prompt
        return () if drawn else self.read

    @property
    def requested(self) -> tuple[int, ...]:
        """The ids whose log-probabilities each step needs; of end tokens, the most probable."""
        return (*self.eos[:LISTED_ENDS], *self.read)

    def result(self, step: Step) -> StepResult:
        """Return the outcome of a step."""
        odds = (0.0,) if self.readout is None else self.readings(step)
        end = self.end(step)
        if step.ends or step.token in self.stops:
            return StepResult(0, self.eos[0], self.end_logprob(step), odds, end, True)
        return StepResult(0, step.token, self.logprob(step), odds, end, False)

    def end_logprob(self, step: Step) -> float:
        """Return the log-probability that a response ends at a step, as it is drawn."""
        return _end_logprob(step, self.stops, self.banned)

    def end(self, step: Step) -> float:
        """Return the log-probability of ending at a step, in a model without the tokens read."""
        return _end_logprob(step, self.eos, self.read)

    def logprob(self, step: Step) -> float:
        """Return the log-probability of a step's token, without the ids that are never drawn."""
        return min(step.logprob - _log_rest(step.listed, self.banned), 0.0)

    def readings(self, step: Step) -> Reading:
        """Return the step's readings of c, in log-odds."""
        if self.readout is None:
            raise ModelError(NO_CNF)
        listed = step.listed
        missing = [token for token in self.readout.ids if token not in listed]
        if not missing:
            *found, last = (listed[token] for token in self.readout.ids)
            return [one - last for one in found] or [reading(min(last, 0.0))]
        names = dict(zip(self.readout.ids, TOKENS[self.readout.head], strict=True))
        raise ModelError(
            f"the engine returned no log-probability of {names[missing[0]]} (id {missing[0]}) "
            "although it was asked for; use vLLM 0.22 or later in this process, or 0.26 or later "
            "as a server"
        )

    def scored(self, steps: Sequence[Step], logprobs: Sequence[float] | None = None) -> Scored:
        """Return a given response from its steps, or, with known `logprobs`, from its end step."""
        if logprobs is None:
            logprobs = [*map(self.logprob, steps[:-1])]
        readings = [] if self.readout is None else [*map(self.readings, steps)]
        return Scored(logprobs, self.end_logprob(steps[-1]), self.end(steps[-1]), readings)

    def confidence(self, scored: Scored) -> float:
        """Return c of a given response."""
        return confidence(scored.readings, scored.logprobs, scored.end, self.evidence)

    def familiar(self, readings: Sequence[Reading]) -> float | None:
        """Return how familiar the prompt of a response is, None where that is not known."""
        if self.evidence is None or not readings:
            return None
        return self.evidence.familiar_at(distance_in(readings))

    def trace(self, scored: Scored) -> list[float]:
        """Return c at every step of a given response, the end step last."""
        return traced(scored.readings, scored.logprobs, scored.end, self.evidence)


def check_rows(readout: Readout | None, rows: int, model: str, remedy: str) -> None:
    """Refuse a model without a row of the vocabulary for every token that is read."""
    if readout is not None and max(readout.ids) >= rows:
        name = TOKENS[readout.head][-1]
        raise ModelError(
            f"the tokenizer knows {name} as id {readout.ids[-1]}, but {model} has {rows} rows; "
            f"{remedy}"
        )


def _end_logprob(step: Step, ends: Ids, absent: Collection[int]) -> float:
    """Return log p(end) at a step, in a model without the ids `absent`."""
    listed = step.listed
    ids = dict.fromkeys((*ends, step.token) if step.ends else ends)
    end = log_sum([listed[i] for i in ids if i in listed and i not in absent])
    return min(end - _log_rest(listed, absent), 0.0)


def _log_rest(listed: Mapping[int, float], absent: Iterable[int]) -> float:
    """Return log p of all tokens but some."""
    gone = log_sum([listed[i] for i in absent if i in listed])
    return math.log1p(-min(math.exp(gone), 1 - 1e-7))


def log_sum(values: Sequence[float]) -> float:
    """Return the log of the sum of probabilities given as logs."""
    return float(np.logaddexp.reduce(values))


def log_of(probability: float) -> float:
    """Return the log of a probability, `LOWEST` for 0."""
    return max(math.log(probability), LOWEST) if probability > 0 else LOWEST


# --- the end tokens of a model


def stop_ids(tokenizer: Any, stop: Sequence[str]) -> tuple[int, ...]:
    """Return all tokens whose text contains a stop text, the most probable first."""
    if not stop:
        return ()
    backend = tokenizer.backend_tokenizer
    singles = [[token] for token in range(len(tokenizer))]
    texts = backend.decode_batch(singles, skip_special_tokens=True)
    found: set[int] = set()
    for part in stop:
        holding = [token for token, text in enumerate(texts) if part in text]
        if not holding:
            raise ModelError(
                f"no token of the vocabulary contains the stop text {part!r}, so it cannot end a "
                "response; use a shorter one, e.g. its first character"
            )
        found.update(holding)

    def order(token: int) -> tuple[bool, int, int]:
        return not texts[token].startswith(tuple(stop)), len(texts[token]), token

    return tuple(sorted(found, key=order))


def ids_in(*fields: Any) -> list[int]:
    """Return the ids in `eos_token_id` fields, each of which is an id, a list of ids, or None."""
    lists = (ids if isinstance(ids, list | tuple) else [ids] for ids in fields)
    return [i for ids in lists for i in ids if i is not None]


def ends_in(ids: Iterable[int], rows: int, read: Collection[int]) -> tuple[int, ...]:
    """Return the ids that end a response and have a row in the model, without those of c."""
    ends = tuple(dict.fromkeys(i for i in ids if 0 <= i < rows and i not in read))
    if not ends:
        raise ModelError(
            "neither tokenizer nor model names an end token; set eos_token in tokenizer_config.json"
        )
    return ends


def named_ends(folder: Path) -> tuple[int, ...]:
    """Return the end tokens that generation_config.json and config.json of a model name."""
    ends: dict[int, None] = {}
    for file in (folder / "generation_config.json", folder / "config.json"):
        ids = ids_in(read_object(file).get("eos_token_id"))
        if not all(type(i) is int for i in ids):
            raise ModelError(f"{file}: eos_token_id is {ids}; write the id of a token, or a list")
        ends |= dict.fromkeys(ids)
    return tuple(ends)


def named_rows(folder: Path) -> int:
    """Return the vocabulary size in a model's config.json, 0 if it names none."""
    config = read_object(folder / "config.json")
    text = config.get("text_config", config)
    rows = (text.get("vocab_size") if isinstance(text, dict) else None) or 0
    if type(rows) is not int:
        raise ModelError(f"{folder / 'config.json'}: vocab_size is {rows!r}; write a whole number")
    return rows


# --- from the steps of a sample to a response

# A field of a structured answer is read like an answer of its own: its tokens are those of its
# value, its prompt is all that comes before them, and it ends at the token after them (the closing
# quote, a comma).


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
    return to_response(results, reader, tokenizer)


def to_response(results: Sequence[StepResult], reader: Reader, tokenizer: Any) -> Response:
    """Return the response of some steps: without an end step it was cut, and has no confidence."""
    ended = bool(results) and results[-1].ended
    reads = reader.readout is not None
    written = results[: len(results) - ended]
    logprobs, ends = [one.logprob for one in written], [one.end for one in results]
    readings = [one.readings for one in results]
    trace = StepConfidences(readings, logprobs, ends, reader.evidence) if reads else ()
    tokens = tuple(one.token for one in written)
    text = tokenizer.decode(list(tokens), skip_special_tokens=True)
    c = None
    if ended and reads and text.strip():
        read = readings[:1] if reader.at_prompt else readings
        c = confidence(read, logprobs, ends[-1], reader.evidence)
    return Response(
        text=text,
        token_ids=tokens,
        finish_reason="stop" if ended else "length",
        logprobs=tuple(logprobs),
        end_logprob=results[-1].logprob if ended else None,
        confidence=c,
        trace=trace,
        familiar=reader.familiar(readings),
        fields=rate_fields(tokenizer, tokens, logprobs, readings, reader.evidence),
    )
