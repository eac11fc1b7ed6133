"""The trace: c_k, the probability that a response will be right, given its first k tokens.

The readings and log-probabilities of a prefix predict less than those of a finished response, so
they have weights of their own. At the step that chooses the token after the first k,

    log-odds of c_k = bias + w . (phi_k - center)

where phi_k are the `TRACE_FEATURES` of the readings e_k, p_0 and a_1 .. a_k and of the
log-probabilities of the k tokens. The model is asked for nothing more than c at the end needs.

Two features of a finished response are not among them: `likelihood`, since there is no end yet, and
`last_prob`, since the last token so far is any word, and not where an explanation ends in its
answer. The last value of a trace is c, which has both.

Shapes: N boundaries, F features.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from grace.errors import ModelError

Array = NDArray[Any]
Fitted = TypeVar("Fitted")
VECTORS = ("weights", "center", "low", "high")  # fields with a number per feature
PARTS = 3  # numbers in the field `adjusted`

TRACE_FEATURES = (
    "mean_logprob",
    "min_logprob",
    "sum_logprob",
    "log_length",
    "min_prob",
    "first_prob",
    "length",
    "end_reading",
    "prompt_reading",
    "answer_reading",
    "answer_sum",
)
READINGS = TRACE_FEATURES[-4:]


@dataclass(frozen=True, slots=True)
class Trace:
    """The fitted numbers that turn a prefix into c_k."""

    weights: tuple[float, ...]  # one per entry of `TRACE_FEATURES`
    center: tuple[float, ...]  # mean of each feature in training
    bias: float  # log-odds where every feature is at its mean
    low: tuple[float, ...]  # of each feature in training, to which it is clipped
    high: tuple[float, ...]  # likewise
    limit: float  # of the absolute log-odds

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of grace.json."""
        return {"features": list(TRACE_FEATURES), **asdict(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Trace:
        """Read what `to_dict` wrote."""
        return fitted(cls, data, TRACE_FEATURES)

    def mapped(self, rows: float, evidence: float, offset: float) -> Trace:
        """Return the trace of a recalibrated model: readings are one part, the rest the other."""
        slopes = [rows if name in READINGS else evidence for name in TRACE_FEATURES]
        parts = zip(slopes, self.weights, self.center, strict=True)
        read = sum((slope - evidence) * weight * middle for slope, weight, middle in parts)
        weights = tuple(a * weight for a, weight in zip(slopes, self.weights, strict=True))
        bias = evidence * self.bias + read + offset
        return Trace(weights, self.center, bias, self.low, self.high, self.limit)

    def log_odds(self, found: tuple[float, ...]) -> float:
        """Return the log-odds of c_k for `TRACE_FEATURES` of these values."""
        total = self.bias
        rows = zip(found, self.low, self.high, self.weights, self.center, strict=True)
        for value, low, high, weight, middle in rows:
            total += weight * (min(max(value, low), high) - middle)
        return min(max(total, -self.limit), self.limit)


def fitted(kind: type[Fitted], data: Any, names: Sequence[str]) -> Fitted:
    """Return the fitted numbers in an entry of grace.json."""
    what, found = kind.__name__.lower(), data if isinstance(data, Mapping) else {}
    remedy = "install the version that trained the model, or fit it again"
    if found.get("features") != list(names):
        raise ModelError(
            f"grace.json has {what} on {found.get('features')}, this version knows {list(names)}; "
            f"{remedy}"
        )
    try:
        values: dict[str, Any] = {
            key: tuple(map(float, value)) if key in (*VECTORS, "adjusted") else float(value)
            for key, value in found.items()
            if key not in ("features", "trace", "familiar", "fields")
        }
        sizes = [len(values.get(key, ())) for key in VECTORS]
        if not all(math.isfinite(one) for value in values.values() for one in np.ravel(value)):
            raise ValueError("not all numbers are finite")
        if sizes not in ([len(names)] * 4, [len(names)] * 2 + [0] * 2):
            raise ValueError(f"there are not {len(names)} numbers in each list")
        if len(values.get("adjusted", (0,) * PARTS)) != PARTS:
            raise ValueError(f"adjusted has not {PARTS} numbers")
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise ModelError(
            f"grace.json has {what} that this version cannot use ({error}); {remedy}"
        ) from None


def trace_features(
    total: float, low: float, first: float, tokens: int, readings: Sequence[float]
) -> tuple[float, ...]:
    """Return the `TRACE_FEATURES` at a step."""
    count = max(tokens, 1)
    chances = (math.exp(low), math.exp(first))
    read = (*readings, tokens * readings[-1])
    return (total / count, low, total, math.log(count), *chances, float(tokens), *read)


def features_at(logprobs: Array, places: Array, reading_BQ: Array) -> Array:
    """Return features (B, F) at steps, of clipped log-probabilities and readings (B, Q)."""
    sums = np.concatenate([[0.0], np.cumsum(logprobs)])
    lows = np.concatenate([[0.0], np.minimum.accumulate(logprobs)])
    first = float(logprobs[0]) if len(logprobs) else 0.0
    rows = [
        trace_features(sums[k], lows[k], first if k else 0.0, k, readings)
        for k, readings in zip(places.tolist(), reading_BQ.tolist(), strict=True)
    ]
    return np.array(rows).reshape(len(places), len(TRACE_FEATURES))
