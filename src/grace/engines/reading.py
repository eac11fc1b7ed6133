"""Find the end of a response, and its confidence, in the log-probabilities of an engine.

A response ends at the step that chose an end token: EOS or <CNF>. The log-probability of its end is
that of all end tokens together. This module does not need torch.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from grace.cnf import TOKENS, Readout, find_readout
from grace.engines import Ids
from grace.errors import ModelError
from grace.evidence import Evidence, Reading, confidence, distance_in, reading, traced

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
        ends = dict.fromkeys((tokenizer.eos_token_id, *eos, *card.get("stop_ids", ())))
        read = readout.ids if readout else ()
        unread = tuple(i for i in ends if i is not None and 0 <= i < rows and i not in read)
        if not unread:
            raise ModelError("neither tokenizer nor model names an end token; set eos_token")
        return cls(readout, unread, read_at, Evidence.in_card(card))

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
        return self.eos if self.readout is None or self.banned else (*self.eos, *self.readout.ids)

    @property
    def banned(self) -> tuple[int, ...]:
        """The ids that are read and must never be drawn."""
        if self.readout is None:
            return ()
        return self.readout.ids if self.at_prompt or not self.readout.ends else ()

    @property
    def requested(self) -> tuple[int, ...]:
        """The ids whose log-probabilities each step needs; of end tokens, the most probable."""
        listed = self.eos[:LISTED_ENDS]
        return listed if self.readout is None else (*listed, *self.readout.ids)

    @property
    def every_step(self) -> bool:
        """Whether given responses are read at all steps: where tokens are never drawn, they are."""
        return bool(self.banned)

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
        return _end_logprob(step, self.eos, self.readout.ids if self.readout else ())

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
    top = max(values, default=-math.inf)
    if top == -math.inf:
        return top
    return top + math.log(math.fsum(math.exp(value - top) for value in values))


def log_of(probability: float) -> float:
    """Return the log of a probability, `LOWEST` for 0."""
    return max(math.log(probability), LOWEST) if probability > 0 else LOWEST
