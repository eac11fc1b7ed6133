"""c while a response is being written: P(right), given the question and what is written so far.

`Evidence` says how sure the model is of a response that ends; along the way the same rows and
log-probabilities say something else, so they get weights of their own. At the step that chooses
token k of a response,

    log-odds of c_k = bias + w . (phi_k - center)

with phi_k the `TRACE_FEATURES` of the readings r_0 .. r_k and of the log-probabilities of the k
tokens before. Nothing else is read from the model than for c at the end, and that stays as it is.

Shapes: N boundaries, F features.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grace.errors import ModelError

Array = NDArray[Any]

TRACE_FEATURES = (
    "mean_logprob",
    "min_logprob",
    "sum_logprob",
    "log_length",
    "min_prob",
    "first_prob",
    "length",
    "reading",
    "mean_reading",
    "sum_reading",
)
READINGS = TRACE_FEATURES[-3:]


@dataclass(frozen=True, slots=True)
class Trace:
    """How c follows from what is written so far.

    Attributes:
        weights: of `TRACE_FEATURES`.
        center: their means in training.
        bias: the log-odds at those means.
        low: the smallest value of each feature in training; features count as no less.
        high: the largest.
        limit: the largest log-odds of c, in absolute value.
    """

    weights: tuple[float, ...]
    center: tuple[float, ...]
    bias: float
    low: tuple[float, ...]
    high: tuple[float, ...]
    limit: float

    def to_dict(self) -> dict[str, Any]:
        """Return what grace.json holds."""
        return {"features": list(TRACE_FEATURES), **asdict(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Trace:
        """Read what `to_dict` wrote.

        Raises:
            ModelError: the features are not those of this version.
        """
        if tuple(data.get("features", ())) != TRACE_FEATURES:
            raise ModelError(
                f"grace.json has a trace of {data.get('features')}, this version knows "
                f"{list(TRACE_FEATURES)}; install the version that trained the model"
            )
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in data.items()
            if key != "features"
        }
        return cls(**values)

    def mapped(self, rows: float, evidence: float, offset: float) -> Trace:
        """Return the trace that multiplies both parts of c's log-odds and adds an offset.

        See `Evidence.mapped`. The readings' part is their weighted sum, the rest is the evidence's.
        """
        slopes = [rows if name in READINGS else evidence for name in TRACE_FEATURES]
        parts = zip(slopes, self.weights, self.center, strict=True)
        read = sum((slope - evidence) * weight * middle for slope, weight, middle in parts)
        weights = tuple(a * weight for a, weight in zip(slopes, self.weights, strict=True))
        bias = evidence * self.bias + read + offset
        return Trace(weights, self.center, bias, self.low, self.high, self.limit)

    def log_odds(self, found: tuple[float, ...]) -> float:
        """Return the log-odds of c where the features are these."""
        total = self.bias
        rows = zip(found, self.low, self.high, self.weights, self.center, strict=True)
        for value, low, high, weight, middle in rows:
            total += weight * (min(max(value, low), high) - middle)
        return min(max(total, -self.limit), self.limit)


def trace_features(
    total: float, low: float, first: float, tokens: int, readings: float, reading: float
) -> tuple[float, ...]:
    """Return the `TRACE_FEATURES` at a step.

    Args:
        total: sum of the log-probabilities of the tokens so far.
        low: the smallest of them, 0 before the first.
        first: that of the first token, 0 before it.
        tokens: how many there are.
        readings: sum of the readings of the steps so far, this one included.
        reading: that of this step.
    """
    count = max(tokens, 1)
    chances = (math.exp(low), math.exp(first))
    read = (reading, readings / (tokens + 1), readings)
    return (total / count, low, total, math.log(count), *chances, float(tokens), *read)


def features_at(logprobs: Array, places: Array, reading_B: Array, mean_B: Array) -> Array:
    """Return the `TRACE_FEATURES` at some steps of one response, shape (B, F).

    Args:
        logprobs: of its tokens, each clipped as `grace.evidence` clips them.
        places: the steps (B,), each the number of tokens before it.
        reading_B: the readings there.
        mean_B: the means of the readings of all steps up to there.
    """
    sums = np.concatenate([[0.0], np.cumsum(logprobs)])
    lows = np.concatenate([[0.0], np.minimum.accumulate(logprobs)])
    first = float(logprobs[0]) if len(logprobs) else 0.0
    return np.array(
        [
            trace_features(
                sums[k], lows[k], first if k else 0.0, int(k), float(mean) * (k + 1), float(reading)
            )
            for k, reading, mean in zip(places.tolist(), reading_B, mean_B, strict=True)
        ]
    ).reshape(len(places), len(TRACE_FEATURES))
