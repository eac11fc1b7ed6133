"""DeepConf-style confidence: the least sure stretch of a response.

DeepConf's token confidence is minus the mean log-probability of the top 20 tokens; stored
responses hold the chosen token's alone. So here it is the chosen token's log-probability, and
exp(mean over the stretch) brings a value into [0, 1]. On a greedy response both fall where the
model hesitates; a sampled one may hold an unlikely token where the model did not.
Its windows of 2,048 tokens are for long reasoning; the default here is for short answers.
Source: Fu et al. 2025, "Deep Think with Confidence" (arXiv 2508.15260), section 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from grace.config import setting
from grace.engines import Engine
from grace.estimators import Answers, Fitted, Known, Samples, Values, rate_ended


@dataclass(frozen=True, slots=True)
class DeepConf:
    """exp of the mean log-probability of the least sure tokens in a row, the end included."""

    window: int = setting(2, "tokens in a row; a shorter response is taken whole", low=1)

    answers: ClassVar[Answers] = "base"

    def fit(self, known: Known, engine: Engine, seed: int) -> Fitted:
        """Return the reader of what was recorded while sampling; nothing is fitted."""
        return Fitted(self._rate)

    def _rate(self, samples: Samples) -> Values:
        scores = self.score(samples)
        return [None if score is None else min(1.0, math.exp(score)) for score in scores]

    def score(self, samples: Samples) -> Values:
        """Return the mean log-probability over the stretch, None for a response that was cut."""

        def value(row: int) -> float | None:
            response = samples.responses[row]
            if response.end_logprob is None:
                return None
            return min(group_means([*response.logprobs, response.end_logprob], self.window))

        return rate_ended(samples, lambda rows: map(value, rows))


def group_means(logprobs: Sequence[float], window: int) -> list[float]:
    """Return the mean of every `window` consecutive values, or of all if there are fewer."""
    size = min(window, len(logprobs))
    return [
        math.fsum(logprobs[start : start + size]) / size
        for start in range(len(logprobs) - size + 1)
    ]


ESTIMATOR = DeepConf
