"""The confidence c of a response, from the model's readings and the response's own probabilities.

At every decoding step k the model yields *readings*, in log-odds: the log-odds of the probability
of `<CNF>` (the paper's read-out), or the logits of three tokens minus that of `<NOC>` (a linear
read-out: e_k, p_k and a_k). The hidden state behind a reading cannot know how probable the
response's tokens were: each of those probabilities leaves the model at the last layer, which no
later position attends to. They are known while generating, though, so they join the readings as
*evidence*:

    c = sigmoid(slope * (state + bias + w . (phi - center)))
    state = e_K + p_0 + mean(a_1 .. a_K)

Step 0 is the end of the prompt, K the step that ends the response; a_0 takes the place of the mean
in an empty one. The paper's read-out has e_K alone. phi are the `FEATURES` of the log-probabilities
of the response's tokens and its end, each clipped to the range seen in training. `limit` bounds the
log-odds by what the number of training answers supports. Computing c takes no forward pass;
`confidence` does it from what any engine reports that returns the log-probabilities of named
tokens. Without evidence (the paper's c) the log-odds of c are e_K. A fit to several sources also
knows how far a prompt is from theirs, where an engine reports this as a fourth reading: `familiar`
then decides how much `state` counts. Where sources have rows of their own, the place of the nearest
one follows, and e_k, p_k and a_k by its rows.

`grace recalibrate` adapts c to other questions: the part of these log-odds from the readings and
that from the evidence each get a slope, and their sum an offset, after the bound.

Shapes: N responses, F features, R rows, T steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grace.errors import ModelError
from grace.evidence.familiar import Familiar, Near
from grace.evidence.trace import Trace, fitted, trace_features

Array = NDArray[Any]
Reading = Sequence[float]
"""Of one step: e_k; p_k and a_k if the read-out is linear; the prompt's distance if it is known; if
sources have rows of their own, the place of the nearest one, and e_k, p_k and a_k by its rows."""
OWN = 5  # the place of these in a reading

FEATURES = (
    "mean_logprob",
    "min_logprob",
    "sum_logprob",
    "log_length",
    "min_prob",
    "first_prob",
    "last_prob",  # where an explanation ends in its answer, the answer's
    "likelihood",  # exp of the mean log-probability of the tokens and the end: Seq. Likelihood
)
LATER = FEATURES.index("last_prob")  # which earlier versions did not have
LOWEST = -20.0  # log-probabilities below this count as this
MARGIN = 0.1  # share of the training range by which a feature may exceed it before we warn
CERTAIN = 40.0  # bound on log-odds where the number of training answers sets none
MAPPED = math.log(1e6 - 1)  # and where they are read back from c


@dataclass(frozen=True, slots=True)
class Evidence:
    """The fitted numbers that turn readings and log-probabilities into c."""

    weights: tuple[float, ...]  # one per entry of `FEATURES`
    center: tuple[float, ...]  # mean of each feature in training
    bias: float = 0.0  # log-odds where every feature is at its mean
    slope: float = 1.0  # positive factor on the log-odds
    low: tuple[float, ...] = ()  # of each feature in training; empty: features are not clipped
    high: tuple[float, ...] = ()  # likewise
    limit: float = CERTAIN  # of the absolute log-odds
    adjusted: tuple[float, ...] = ()  # by recalibration: slopes of the two parts, and the offset
    trace: Trace | None = None  # the same for c before the end
    # how much readings count at a distance of the prompt; None: always whole
    familiar: Familiar | None = None
    # of a structured answer, by name, "" for others
    fields: Mapping[str, Evidence] = field(default_factory=dict, hash=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of grace.json."""
        found = {"features": list(FEATURES), **asdict(replace(self, fields={}))}
        fields = {name: one.to_dict() for name, one in self.fields.items()}
        trace, familiar = (part and part.to_dict() for part in (self.trace, self.familiar))
        for name, part in (("trace", trace), ("familiar", familiar), ("fields", fields)):
            del found[name]
            found |= {name: part} if part else {}
        if not self.adjusted:
            del found["adjusted"]
        return found

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Evidence:
        """Read what `to_dict` wrote, and what earlier versions wrote without a floor."""
        if isinstance(data, Mapping) and data.get("floor") == 0:
            data = {key: value for key, value in data.items() if key != "floor"}
        if isinstance(data, Mapping) and data.get("features") == _EARLIER:
            data = _with_later(data)
        evidence = fitted(cls, data, FEATURES)
        trace = Trace.from_dict(data["trace"]) if data.get("trace") else None
        near = data.get("familiar")
        fields = data.get("fields") or {}
        if fields and not (isinstance(fields, Mapping) and "" in fields):
            raise ModelError(
                "grace.json has fields that this version cannot use; install the version that "
                "fitted the model, or fit it again"
            )
        return replace(
            evidence,
            trace=trace,
            familiar=Familiar.from_dict(near, len(FEATURES)) if near else None,
            fields={name: cls.from_dict(one) for name, one in fields.items()},
        )

    @classmethod
    def in_card(cls, card: Mapping[str, Any]) -> Evidence | None:
        """Return the evidence stored in a grace.json, or None for the paper's c."""
        return cls.from_dict(card["evidence"]) if card.get("evidence") else None

    @classmethod
    def none(cls) -> Evidence:
        """Return evidence that adds nothing to the readings."""
        zeros = (0.0,) * len(FEATURES)
        return cls(zeros, zeros)

    def mapped(self, rows: float, evidence: float, offset: float) -> Evidence:
        """Return the evidence of a recalibrated model: its two bounded parts, rescaled."""
        one, other, before = self.adjusted or (1.0, 1.0, 0.0)
        return replace(
            self,
            limit=min(self.limit, MAPPED),
            adjusted=(rows * one, evidence * other, evidence * before + offset),
            trace=self.trace.mapped(rows, evidence, offset) if self.trace else None,
        )

    def mapped_fields(self, rows: float, evidence: float, offset: float) -> Evidence:
        """Return the evidence with c of all fields rescaled, as `mapped` does that of answers."""
        mapped = {name: one.mapped(rows, evidence, offset) for name, one in self.fields.items()}
        return replace(self, fields=mapped)

    def of_field(self, name: str) -> Evidence:
        """Return what turns the readings of a field into its c."""
        return self.fields.get(name) or self.fields[""]

    def of(self, logprobs: Sequence[float], end: float) -> float:
        """Return the log-odds that the log-probabilities of a response and its end add."""
        return self.shift_of(features(logprobs, end))

    def added(self, shift: float) -> float:
        """Return the part of the log-odds of c that is not from the readings."""
        _, slope, offset = self.adjusted or (1.0, 1.0, 0.0)
        return slope * self.slope * shift + offset

    def shift_of(self, found: Sequence[float]) -> float:
        """Return the log-odds that `FEATURES` of these values add."""
        parts = zip(self.weights, self._away(found), strict=True)
        return self.bias + sum(weight * value for weight, value in parts)

    def _away(self, found: Sequence[float]) -> list[float]:
        """Return the features less their mean, each clipped to its range in training."""
        if self.low:
            found = [min(max(v, a), b) for v, a, b in zip(found, self.low, self.high, strict=True)]
        return [value - middle for value, middle in zip(found, self.center, strict=True)]

    def outside(self, logprobs: Sequence[float]) -> bool:
        """Return whether a response's tokens are unlike any in training, so that c is a guess."""
        rows = zip(features(logprobs, 0.0)[:-1], self.low, self.high, self.weights, strict=False)
        return any(
            weight and not a - MARGIN * (b - a) <= value <= b + MARGIN * (b - a)
            for value, a, b, weight in rows
        )

    def familiar_at(self, distance: float | None) -> float | None:
        """Return how familiar a prompt at a distance is, None where that is not known."""
        return self.familiar.of(distance) if self.familiar and distance is not None else None

    def rate(self, state: float, found: Sequence[float], near: Near | None) -> float:
        """Return c from `state`, the features and where the prompt is (None: not known)."""
        if self.familiar and near is not None:
            state = self.familiar.state(near, state, self._away(found))
        return self.confidence(state, self.shift_of(found))

    def confidence(self, state: float, shift: float) -> float:
        """Return c, with `state` from the readings and `shift` from the features."""
        log_odds = min(max(self.slope * (state + shift), -self.limit), self.limit)
        if self.adjusted:
            log_odds = self.adjusted[0] * (log_odds - self.slope * shift) + self.added(shift)
        return sigmoid(log_odds)


_EARLIER = [name for name in FEATURES if name != FEATURES[LATER]]


def _with_later(data: Any) -> Any:
    """Return an entry of an earlier version with a weight of 0 for `LATER`."""
    if isinstance(data, Mapping):
        found = {key: _with_later(value) for key, value in data.items() if key != "trace"}
        for key in ("weights", "center", "low", "high"):
            if isinstance(data.get(key), list) and len(data[key]) == len(_EARLIER):
                found[key] = [*data[key][:LATER], 0.0, *data[key][LATER:]]
        if data.get("features") == _EARLIER:
            found["features"] = list(FEATURES)
        return {**data, **found}
    return [*map(_with_later, data)] if isinstance(data, list) else data


class Running:
    """c at every step of one response while it is generated, with constant work per step.

    At each step call `read`, and then `add` with the log-probability of the chosen token unless the
    step ends the response. Between the two, `so_far` is c of a response that goes on and `at_end` c
    of one that ends here. With `evidence=None` it is the paper's c.
    """

    def __init__(self, evidence: Evidence | None) -> None:
        self._evidence = evidence
        self._steps, self._end = 0, 0.0
        self._state, self._own = _Pool(), _Pool()
        self._near: Sequence[float] = ()
        self._total, self._low, self._first, self._last, self._count = 0.0, 0.0, 0.0, 0.0, 0

    def read(self, readings: Reading, end: float) -> None:
        """Record a step's readings and the log-probability of ending there."""
        self._state.read(self._steps, readings[:3])
        if len(readings) > OWN:
            self._own.read(self._steps, readings[OWN:])
        if not self._steps:
            self._near = readings[3:OWN]
        self._steps, self._end = self._steps + 1, end

    def so_far(self) -> float:
        """Return c of the response so far; without a trained trace, as if it ended here."""
        trace = self._evidence.trace if self._evidence else None
        if trace is None:
            return self.at_end()
        tokens = (self._total, self._low, self._first, self._count)
        return sigmoid(trace.log_odds(trace_features(*tokens, self._state.pooled(self._steps))))

    def at_end(self) -> float:
        """Return c of a response that ends at this step."""
        if self._evidence is None:
            return sigmoid(self._state.at_end)
        tokens = (self._total, self._low, self._first, self._last, self._count)
        found = _features(*tokens, self._end)
        state, own = (math.fsum(one.pooled(self._steps)) for one in (self._state, self._own))
        return self._evidence.rate(state, found, _near(self._near, own))

    def add(self, logprob: float) -> None:
        """Record the log-probability of the token chosen at this step."""
        value = _clipped(logprob)
        self._first, self._last = self._first if self._count else value, value
        self._total, self._low = self._total + value, min(self._low, value)
        self._count += 1


class _Pool:
    """The readings of a response so far, each where it counts."""

    def __init__(self) -> None:
        self.at_end, self._prompt, self._answer = 0.0, 0.0, 0.0

    def read(self, step: int, readings: Reading) -> None:
        self.at_end, *others = readings
        if others:
            prompt, answer = others
            self._prompt = self._prompt if step else prompt
            self._answer = self._answer + answer if step > 1 else answer

    def pooled(self, steps: int) -> Reading:
        return self.at_end, self._prompt, self._answer / max(steps - 1, 1)


def along(
    readings: Sequence[Reading],
    logprobs: Sequence[float],
    ends: Sequence[float],
    evidence: Evidence | None,
) -> list[float]:
    """Return c at every step; an ended response has one reading more than tokens, a cut one not."""
    running, trace = Running(evidence), []
    for step, (read, end) in enumerate(zip(readings, ends, strict=True)):
        running.read(read, end)
        if step < len(logprobs):
            trace.append(running.so_far())
            running.add(logprobs[step])
        else:
            trace.append(running.at_end())
    return trace


@dataclass(frozen=True, eq=False)
class StepConfidences(Sequence[float]):
    """What `along` returns, computed when it is first read: of most responses only c counts."""

    readings: Sequence[Reading]
    logprobs: Sequence[float]
    ends: Sequence[float]
    evidence: Evidence | None

    @cached_property
    def _values(self) -> tuple[float, ...]:
        return tuple(along(self.readings, self.logprobs, self.ends, self.evidence))

    def __len__(self) -> int:
        return len(self.readings)

    def __getitem__(self, place: Any) -> Any:
        return self._values[place]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, tuple | list | StepConfidences):
            return NotImplemented
        return self._values == tuple(other)

    def __hash__(self) -> int:
        return hash(self._values)


def confidence(
    readings: Sequence[Reading],
    logprobs: Sequence[float],
    end: float,
    evidence: Evidence | None = None,
) -> float:
    """Return c from log-probabilities that an inference server reports."""
    if evidence is None:
        return sigmoid(readings[-1][0])
    state, found = math.fsum(pooled(readings)), features(logprobs, end)
    own = math.fsum(pooled(readings, OWN)) if len(readings[0]) > OWN else 0.0
    return evidence.rate(state, found, _near(readings[0][3:OWN], own))


def _near(known: Sequence[float], own: float) -> Near | None:
    """Return where a prompt is, from what an engine reports of it, if anything."""
    if not known:
        return None
    distance, *source = known
    return Near(distance, int(source[0]), own) if source else Near(distance)


def distance_in(readings: Sequence[Reading]) -> float | None:
    """Return the distance of a response's prompt, None where the engine does not report it."""
    return readings[0][3] if len(readings[0]) > 3 else None


def pooled(readings: Sequence[Reading], at: int = 0) -> Reading:
    """Return the readings of a response, each where it counts: e_K, p_0 and the mean of a_k."""
    if len(readings[-1]) < 3:
        return readings[-1][:1]
    answer = [one[at + 2] for one in readings[1:] or readings]
    return readings[-1][at], readings[0][at + 1], math.fsum(answer) / len(answer)


def traced(
    readings: Sequence[Reading], logprobs: Sequence[float], end: float, evidence: Evidence | None
) -> list[float]:
    """Return c at every step of a finished response, its end last; arguments as `confidence`."""
    if evidence is None or evidence.trace is None:
        raise ModelError(
            "the model has a confidence at the end of an answer only; for one at every token, "
            "train it with grace.trace=true, or use `grace fit --trace`"
        )
    return along(readings, logprobs, [*([0.0] * len(logprobs)), end], evidence)


def reading(cnf_logprob: float) -> float:
    """Return the log-odds of p(<CNF>) from its natural logarithm."""
    log_c = min(cnf_logprob, -1e-7)
    return log_c - math.log(-math.expm1(log_c))


def sigmoid(log_odds: float) -> float:
    """Return the probability with these log-odds, without overflow."""
    if log_odds >= 0:
        return 1 / (1 + math.exp(-log_odds))
    return math.exp(log_odds) / (1 + math.exp(log_odds))


def features(logprobs: Sequence[float], end: float) -> tuple[float, ...]:
    """Return the `FEATURES` of a response. An empty one counts as one token of probability 1."""
    kept = [_clipped(value) for value in logprobs] or [0.0]
    return _features(math.fsum(kept), min(kept), kept[0], kept[-1], len(logprobs), end)


def clipped(logprobs: Sequence[float]) -> Array:
    """Return log-probabilities clipped to [`LOWEST`, 0]."""
    return np.array([_clipped(value) for value in logprobs])


def _clipped(logprob: float) -> float:
    return min(max(LOWEST, logprob), 0.0)  # in this order NaN becomes LOWEST


def _features(
    total: float, low: float, first: float, last: float, tokens: int, end: float
) -> tuple[float, ...]:
    count = max(tokens, 1)
    likelihood = math.exp((total + _clipped(end)) / (tokens + 1))
    mean = total / count
    chances = (math.exp(low), math.exp(first), math.exp(last))
    return (mean, low, total, math.log(count), *chances, likelihood)
