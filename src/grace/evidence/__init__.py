"""What becomes of the model's readings: `c`, its calibrated confidence.

At every step k of a response the model gives a *reading* r_k, in log-odds: that of the probability
of `<CNF>` (the paper's read-out), or the difference of the logits of `<CNF>` and `<NOC>` (a pair).
The hidden states behind it cannot contain how probable the response's tokens were: each of those
probabilities comes out of the last layer, which no later position can see. So the running
log-probabilities, and that of ending at each step, known while generating, are added as *evidence*:

    log-odds of c = slope * (state + bias + w . (phi - center))
    state = share * mean(r_0 .. r_K) + (1 - share) * r_K

with K the step that ends the response and phi the `FEATURES` of the log-probabilities of its tokens
and its end, each clipped to the range seen in training. c is kept within what the number of
training answers supports (`limit`). It costs no forward pass, and any engine that returns the
log-probabilities of named tokens can compute it (`confidence`). Without evidence (the paper's c)
log-odds of c = r_K.

A model that was recalibrated for other questions (`grace recalibrate`) has another `slope` than 1,
and other weights.

Shapes: N responses, F features, R rows, T steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grace.errors import ModelError
from grace.evidence.trace import Trace, trace_features

Array = NDArray[Any]

FEATURES = (
    "mean_logprob",
    "min_logprob",
    "sum_logprob",
    "log_length",
    "min_prob",
    "first_prob",
    "likelihood",  # exp of the mean log-probability of the tokens and the end: Seq. Likelihood
)
LOWEST = -20.0  # log-probabilities below this count as this
MARGIN = 0.1  # of the range seen in training, beyond which a response is unlike those
CERTAIN = 40.0  # log-odds beyond these are as good as certain


@dataclass(frozen=True, slots=True)
class Evidence:
    """How c follows from the readings and the log-probabilities of a response.

    Attributes:
        weights: of `FEATURES`.
        center: their means in training.
        bias: what is added at those means.
        slope: what multiplies the log-odds of c; positive.
        low: the smallest value of each feature in training; empty: no bound.
        high: the largest.
        share: how much the mean of the readings of all steps counts, beside the last one.
        limit: the largest log-odds of c, in absolute value.
        trace: how c follows along the way, None where that was not trained.
    """

    weights: tuple[float, ...]
    center: tuple[float, ...]
    bias: float = 0.0
    slope: float = 1.0
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    share: float = 0.0
    limit: float = CERTAIN
    trace: Trace | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return what grace.json holds."""
        found = {"features": list(FEATURES), **asdict(self)}
        trace = found.pop("trace") and self.trace
        return {**found, "trace": trace.to_dict()} if trace else found

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Evidence:
        """Read what `to_dict` wrote.

        Raises:
            ModelError: the features are not those of this version.
        """
        named = tuple(data.get("features", ()))
        if not named or named != FEATURES[: len(named)]:
            raise ModelError(
                f"grace.json has evidence on {data.get('features')}, this version knows "
                f"{list(FEATURES)}; install the version that trained the model"
            )
        values: dict[str, Any] = {k: v for k, v in data.items() if k not in ("features", "trace")}
        later = (0.0,) * (len(FEATURES) - len(named))  # what earlier versions did not use
        made: dict[str, Any] = {
            k: (*v, *(later if v else ())) if isinstance(v, list) else v for k, v in values.items()
        }
        trace = Trace.from_dict(data["trace"]) if data.get("trace") else None
        return cls(**made, trace=trace)

    @classmethod
    def in_card(cls, card: Mapping[str, Any]) -> Evidence | None:
        """Return the evidence that a grace.json holds, None for the paper's c."""
        return cls.from_dict(card["evidence"]) if card.get("evidence") else None

    @classmethod
    def none(cls) -> Evidence:
        """Return evidence that changes nothing."""
        zeros = (0.0,) * len(FEATURES)
        return cls(zeros, zeros)

    def mapped(self, rows: float, evidence: float, offset: float) -> Evidence:
        """Return the evidence that multiplies both parts of c's log-odds and adds an offset.

        Args:
            rows: multiplies what the readings say; positive.
            evidence: multiplies what the log-probabilities say.
            offset: is added.
        """
        share, slope = evidence / rows, self.slope * rows
        return replace(
            self,
            weights=tuple(share * weight for weight in self.weights),
            bias=share * self.bias + offset / slope,
            slope=slope,
            trace=self.trace.mapped(rows, evidence, offset) if self.trace else None,
        )

    def of(self, logprobs: Sequence[float], end: float) -> float:
        """Return what the log-probabilities of one response add to the log-odds."""
        return self.shift_of(features(logprobs, end))

    def shift_of(self, found: Sequence[float]) -> float:
        """Return what these features add to the log-odds."""
        if self.low:
            found = [min(max(v, a), b) for v, a, b in zip(found, self.low, self.high, strict=True)]
        parts = zip(self.weights, found, self.center, strict=True)
        return self.bias + sum(weight * (value - middle) for weight, value, middle in parts)

    def outside(self, logprobs: Sequence[float]) -> bool:
        """Return whether the features of a response's tokens lie well outside those of training.

        Its confidence is then that of the nearest one seen, and a guess.
        """
        rows = zip(features(logprobs, 0.0)[:-1], self.low, self.high, self.weights, strict=False)
        return any(
            weight and not a - MARGIN * (b - a) <= value <= b + MARGIN * (b - a)
            for value, a, b, weight in rows
        )

    def log_odds(self, state: float, shift: float) -> float:
        """Return the log-odds of c from what the readings and the features say."""
        return min(max(self.slope * (state + shift), -self.limit), self.limit)


class Running:
    """c at every step of one response, while it is written; constant work per step.

    Call `read` once per step with the step's reading and the log-probability of ending there, then
    `add` with that of the token that the step chose, unless it ended the response. After `read`,
    `so_far` is c of a response that goes on, and `at_end` of one that ends at this step. `evidence`
    None: the paper's c.
    """

    def __init__(self, evidence: Evidence | None) -> None:
        self._evidence = evidence
        self._readings, self._steps = 0.0, 0
        self._reading = self._end = 0.0
        self._total, self._low, self._first, self._count = 0.0, 0.0, 0.0, 0

    def read(self, reading: float, end: float) -> None:
        """Take a step's reading, and the log-probability of ending there."""
        self._steps += 1
        self._readings += reading
        self._reading, self._end = reading, end

    def so_far(self) -> float:
        """Return c of what is written: P(right) if it was trained, else as if it ended here."""
        trace = self._evidence.trace if self._evidence else None
        if trace is None:
            return self.at_end()
        tokens = (self._total, self._low, self._first, self._count)
        return sigmoid(trace.log_odds(trace_features(*tokens, self._readings, self._reading)))

    def at_end(self) -> float:
        """Return c of a response that ends at this step."""
        if self._evidence is None:
            return sigmoid(self._reading)
        share = self._evidence.share
        state = share * self._readings / self._steps + (1 - share) * self._reading
        found = _features(self._total, self._low, self._first, self._count, self._end)
        return sigmoid(self._evidence.log_odds(state, self._evidence.shift_of(found)))

    def add(self, logprob: float) -> None:
        """Take the log-probability of the token that this step chose."""
        value = _clipped(logprob)
        self._first = self._first if self._count else value
        self._total, self._low = self._total + value, min(self._low, value)
        self._count += 1


def along(
    readings: Sequence[float],
    logprobs: Sequence[float],
    ends: Sequence[float],
    evidence: Evidence | None,
) -> list[float]:
    """Return c at every step of a response: while it goes on, and where it ends.

    Without an end there is one reading per token. `ends` are the log-probabilities of ending at
    each step.
    """
    running, trace = Running(evidence), []
    for step, (reading, end) in enumerate(zip(readings, ends, strict=True)):
        running.read(reading, end)
        if step < len(logprobs):
            trace.append(running.so_far())
            running.add(logprobs[step])
        else:
            trace.append(running.at_end())
    return trace


def confidence(
    readings: Sequence[float],
    logprobs: Sequence[float],
    end: float,
    evidence: Evidence | None = None,
) -> float:
    """Return c from what any server can return.

    Args:
        readings: log-odds of each step, the one that ended the response last. With one row that is
            `reading(log p(<CNF>))`, and only the last counts; with two rows it is
            log p(<CNF>) - log p(<NOC>). All at temperature 1.
        logprobs: natural-log probabilities of the response's tokens, without its end token.
        end: log of the probability of ending there, all end tokens together, in a model without
            the tokens that are read: log p(end) - log(1 - p(<CNF>) - p(<NOC>)).
        evidence: the numbers in grace.json; None: the paper's c.
    """
    if evidence is None:
        return sigmoid(readings[-1])
    mean = math.fsum(readings) / len(readings)
    state = evidence.share * mean + (1 - evidence.share) * readings[-1]
    return sigmoid(evidence.log_odds(state, evidence.of(logprobs, end)))


def traced(
    readings: Sequence[float], logprobs: Sequence[float], end: float, evidence: Evidence | None
) -> list[float]:
    """Return c at every step of a given response, that of its end last (see `confidence`).

    Raises:
        ModelError: the model's c holds at the end of a response only.
    """
    if evidence is None or evidence.trace is None:
        raise ModelError(
            "the model knows no confidence along the way; train it with train.trace=true and "
            "train.lora=never, or `grace fit --trace`"
        )
    return along(readings, logprobs, [*([0.0] * len(logprobs)), end], evidence)


def reading(cnf_logprob: float) -> float:
    """Return the log-odds of a probability given by its natural log."""
    log_c = min(cnf_logprob, -1e-7)
    return log_c - math.log(-math.expm1(log_c))


def sigmoid(log_odds: float) -> float:
    """Return the probability of log-odds."""
    if log_odds >= 0:
        return 1 / (1 + math.exp(-log_odds))
    return math.exp(log_odds) / (1 + math.exp(log_odds))


def features(logprobs: Sequence[float], end: float) -> tuple[float, ...]:
    """Return the `FEATURES` of a response; the tokens of an empty one count as certain."""
    kept = [_clipped(value) for value in logprobs] or [0.0]
    return _features(math.fsum(kept), min(kept), kept[0], len(logprobs), end)


def clipped(logprobs: Sequence[float]) -> Array:
    """Return log-probabilities as the evidence takes them."""
    return np.array([_clipped(value) for value in logprobs])


def _clipped(logprob: float) -> float:
    return min(max(LOWEST, logprob), 0.0)  # nan: the lowest


def _features(total: float, low: float, first: float, tokens: int, end: float) -> tuple[float, ...]:
    count = max(tokens, 1)
    likelihood = math.exp((total + _clipped(end)) / (tokens + 1))
    mean = total / count
    return (mean, low, total, math.log(count), math.exp(low), math.exp(first), likelihood)
