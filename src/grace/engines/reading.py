"""Where a response ends and what c is there, from the log-probabilities that an engine returns.

A response ends at the step that chose an end token, EOS or <CNF>; the log-probability of its end is
that of both together. No torch is needed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from grace.cnf import CNF_TOKEN, TOKENS, Readout, find_readout
from grace.errors import ModelError
from grace.evidence import Evidence, along, confidence, reading, traced
from grace.records import Generation

LOWEST = -9999.0  # of a log-probability in JSON, for minus infinity
LISTED_ENDS = 126  # end tokens that an engine lists, which lists 128 ids; others hardly count


class Step(NamedTuple):
    """What an engine says of one step, at temperature 1 and before top-p.

    `logprobs` are of the ids that it was asked for. `ends`: the engine ended the sample here, on
    an id that it takes for an end.
    """

    token: int
    logprob: float
    logprobs: Mapping[int, float]
    ends: bool = False


class Drawn(NamedTuple):
    """What one step chose for one row: a token, or (`ended`) that the response ends here.

    `reading` is what the step reads of c, in log-odds; `end` the log-probability of ending here,
    in a model without the tokens that are read.
    """

    row: int
    token: int
    logprob: float
    reading: float
    end: float
    ended: bool


@dataclass(frozen=True, slots=True)
class Reader:
    """What ends the responses of a model, and how its c is read.

    `eos` are the ids that end a response besides `<CNF>`, the tokenizer's first. `read_at` is
    `predict`, or `prompt`, where `<CNF>` ends nothing and is no part of what is drawn. `readout`
    are the tokens that are read, None where there are none: such a model is sampled, without c.
    """

    readout: Readout | None
    eos: tuple[int, ...]
    read_at: str = "predict"
    evidence: Evidence | None = None

    @classmethod
    def of(
        cls,
        tokenizer: Any,
        card: Mapping[str, Any],
        eos: Sequence[int] = (),
        *,
        needs_cnf: bool = True,
    ) -> Reader:
        """Return how a model is read, from its tokenizer and its grace.json.

        Args:
            tokenizer: the tokenizer with `<CNF>`.
            card: the content of grace.json.
            eos: ids that end a response besides the tokenizer's EOS and the stop ids of `card`,
                `<CNF>` perhaps among them.
            needs_cnf: refuse a tokenizer without `<CNF>`.

        Raises:
            ModelError: there is no `<CNF>` or no EOS, or c cannot be read in one request.
        """
        readout = find_readout(tokenizer)
        if readout is None and needs_cnf:
            raise ModelError(
                "the tokenizer has no <CNF>, so the model cannot say how sure it is; give what "
                "`grace export` wrote"
            )
        read_at = card.get("read_at", "predict")
        bins = readout is not None and readout.cnf is None
        if readout and (bins or read_at == "feed"):
            how = "ten bin tokens" if bins else "<CNF>'s own position (read_at=feed)"
            raise ModelError(f"c is read from {how}, which only the transformers engine can do")
        ends = dict.fromkeys((tokenizer.eos_token_id, *eos, *card.get("stop_ids", ())))
        found = tuple(i for i in ends if i not in (None, *(readout.ids if readout else ())))
        if not found:
            raise ModelError("neither tokenizer nor model names an end token; set eos_token")
        evidence = Evidence.in_card(card)
        return cls(readout, found, read_at, evidence)

    @property
    def cnf(self) -> int | None:
        """Return the id of `<CNF>`, None where there is none."""
        return self.readout.cnf if self.readout else None

    @property
    def at_prompt(self) -> bool:
        """Return whether c is read before the response."""
        return self.read_at == "prompt"

    def place(self, prompt: Sequence[int], response: Sequence[int]) -> list[int]:
        """Return the context after which c is read, of a model without evidence."""
        return [*prompt] if self.at_prompt else [*prompt, *response]

    def check_given(self, engine: str) -> None:
        """Refuse to read given responses where `<CNF>` is no part of what is drawn.

        Raises:
            ModelError: c is read at the prompt.
        """
        if self.at_prompt:
            raise ModelError(
                "with read_at=prompt, log-probabilities of given responses need the transformers "
                f"engine; {engine} returns those of <CNF> only while it generates"
            )

    @property
    def stops(self) -> tuple[int, ...]:
        """Return the ids at which an engine must stop."""
        return self.eos if self.readout is None or self.banned else (*self.eos, *self.readout.ids)

    @property
    def banned(self) -> tuple[int, ...]:
        """Return the ids that are read and must never be drawn."""
        if self.readout is None:
            return ()
        return self.readout.ids if self.at_prompt or not self.readout.ends else ()

    @property
    def asked(self) -> tuple[int, ...]:
        """Return the ids whose log-probabilities are needed at every step.

        A stop text may be in hundreds of tokens, more than an engine lists; then p(end) is the sum
        over the first, which are the shortest, and over the one that is drawn.
        """
        listed = self.eos[:LISTED_ENDS]
        return listed if self.readout is None else (*listed, *self.readout.ids)

    @property
    def every_step(self) -> bool:
        """Return whether given responses are read step by step, not at their end alone.

        c of a pair may need the readings of all steps, and the tokens of a response are as
        probable as in a model without the pair.
        """
        return self.readout is not None and self.readout.head == "pair"

    def drawn(self, step: Step) -> Drawn:
        """Return what a step means here.

        Raises:
            ModelError: the engine left out an id that it was asked for.
        """
        odds = 0.0 if self.readout is None else self.reading(step)
        known = {step.token: step.logprob, **step.logprobs}
        stops = (*self.stops, step.token) if step.ends else self.stops
        if step.token in stops:
            return Drawn(0, self.eos[0], self.end_logprob(step), odds, self.end(step), True)
        logprob = min(step.logprob - self.rest(known), 0.0)
        return Drawn(0, step.token, logprob, odds, self.end(step), False)

    def end_logprob(self, step: Step) -> float:
        """Return the log-probability that a response ends at a step, as it is drawn."""
        known = {step.token: step.logprob, **step.logprobs}
        stops = (*self.stops, step.token) if step.ends else self.stops
        end = log_sum([known[i] for i in dict.fromkeys(stops) if i in known])
        return min(end - self.rest(known), 0.0)

    def rest(self, known: Mapping[int, float]) -> float:
        """Return log p of all that may be drawn at a step: without what is read and never drawn."""
        return _without(known, self.banned)

    def end(self, step: Step) -> float:
        """Return the log-probability of ending at a step, in a model without what is read."""
        known = {step.token: step.logprob, **step.logprobs}
        read = self.readout.ids if self.readout else ()
        ends = (*self.eos, step.token) if step.ends else self.eos
        end = log_sum([known[i] for i in dict.fromkeys(ends) if i in known and i not in read])
        return min(end - _without(known, read), 0.0)

    def reading(self, step: Step) -> float:
        """Return what a step reads of c, in log-odds.

        Raises:
            ModelError: there is no c, or the engine left out an id that it was asked for.
        """
        if self.readout is None:
            raise ModelError(f"the model has no {CNF_TOKEN}, so it has no confidence")
        known = {step.token: step.logprob, **step.logprobs}
        missing = [token for token in self.readout.ids if token not in known]
        if not missing:
            first, *others = (known[token] for token in self.readout.ids)
            return first - others[0] if others else reading(min(first, 0.0))
        names = dict(zip(self.readout.ids, TOKENS[self.readout.head], strict=True))
        raise ModelError(
            f"the engine returned no log-probability of {names[missing[0]]} (id {missing[0]}) "
            "although it was asked for; it needs vLLM 0.22 in process or 0.26 as a server"
        )

    def confidence(self, steps: Sequence[Step], logprobs: Sequence[float]) -> float:
        """Return c from the steps that are read and the log-probabilities of the tokens."""
        end = self.end(steps[-1])
        return confidence([*map(self.reading, steps)], logprobs, end, self.evidence)

    def trace(self, steps: Sequence[Step], logprobs: Sequence[float]) -> list[float]:
        """Return c at every step of a given response, that of its end last.

        Raises:
            ModelError: the model knows c at the end only.
        """
        end = self.end(steps[-1])
        return traced([*map(self.reading, steps)], logprobs, end, self.evidence)


def read(steps: Iterable[Step], reader: Reader, tokenizer: Any) -> Generation:
    """Return the response in the steps of one sample, cut where it ends.

    One that never ends counts as cut at its longest. Without `<CNF>` there is no confidence.
    """
    drawn: list[Drawn] = []
    for step in steps:
        drawn.append(reader.drawn(step))
        if drawn[-1].ended:
            break
    reads = reader.readout is not None
    return response(drawn, tokenizer, reader.read_at, reader.evidence, reads=reads)


def response(
    drawn: Sequence[Drawn], tokenizer: Any, read_at: str, evidence: Evidence | None, *, reads: bool
) -> Generation:
    """Return the response that steps have chosen; one without an end was cut.

    Args:
        drawn: the steps of one sample, that of its end last.
        tokenizer: for its text.
        read_at: where c is read.
        evidence: how the response's own probabilities shift c, if at all.
        reads: the model has something to read c from.
    """
    ended = bool(drawn) and drawn[-1].ended
    written = drawn[: len(drawn) - ended]
    logprobs, ends = [one.logprob for one in written], [one.end for one in drawn]
    trace = along([one.reading for one in drawn], logprobs, ends, evidence) if reads else []
    tokens = tuple(one.token for one in written)
    return Generation(
        text=tokenizer.decode(list(tokens), skip_special_tokens=True),
        token_ids=tokens,
        finish_reason="stop" if ended else "length",
        logprobs=tuple(logprobs),
        end_logprob=drawn[-1].logprob if ended else None,
        confidence=trace[0 if read_at == "prompt" else -1] if ended and reads else None,
        trace=tuple(trace),
    )


def named_ends(folder: Path) -> tuple[int, ...]:
    """Return the ids that a model directory names as ends, in the order of its two configs."""
    found: list[int] = []
    for name in ("generation_config.json", "config.json"):
        ids = _json(folder / name).get("eos_token_id")
        found += [ids] if isinstance(ids, int) else list(ids or ())
    return tuple(dict.fromkeys(found))


def named_rows(folder: Path) -> int:
    """Return the size of the vocabulary that a model directory names, 0 where it names none."""
    config = _json(folder / "config.json")
    found: int = config.get("text_config", config).get("vocab_size") or 0
    return found


def _json(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return found


def _without(known: Mapping[int, float], ids: Iterable[int]) -> float:
    """Return log p of all tokens but some."""
    silent = log_sum([known[i] for i in ids if i in known])
    return math.log1p(-min(math.exp(silent), 1 - 1e-7))


def log_sum(values: Sequence[float]) -> float:
    """Return the log of the sum of probabilities given by their logs."""
    top = max(values, default=-math.inf)
    if top == -math.inf:
        return top
    return top + math.log(math.fsum(math.exp(value - top) for value in values))


def log_of(probability: float) -> float:
    """Return the log of a probability, `LOWEST` of one that is 0."""
    return max(math.log(probability), LOWEST) if probability > 0 else LOWEST
