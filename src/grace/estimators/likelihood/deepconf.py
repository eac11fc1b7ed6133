"""The confidence of the least sure window of a response, after DeepConf, but not DeepConf itself.

DeepConf's token confidence is minus the mean log-probability of the top 20 tokens; stored responses
hold the log-probability of the chosen token only. So this is used, and exp(mean over the window)
maps it to [0, 1]; tables call it "Least sure window". On a greedy response both are low where the
model hesitates; a sampled response may hold an unlikely token where the model did not hesitate.
DeepConf's windows of 2,048 tokens are for long reasoning; the default here is for short answers.
Source: Fu et al. 2025, "Deep Think with Confidence" (arXiv 2508.15260), section 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from grace.config import setting
from grace.engines import Engine
from grace.estimators import Answers, Fitted, Samples, Splits, Values
from grace.estimators.likelihood.likelihood import counted_logprobs


@dataclass(frozen=True, slots=True)
class DeepConf:
    """exp of the lowest mean log-probability over a window of tokens, the end token included.

    DeepConf itself takes the top 20 tokens at each step, and windows of 2,048.
    """

    window: int = setting(2, "tokens in a window; a shorter response is one window", low=1)

    answers: ClassVar[Answers] = "base"

    def fit(self, splits: Splits, engine: Engine, seed: int) -> Fitted:
        """Nothing is fitted: the log-probabilities were recorded while sampling."""
        return Fitted(self._rate)

    def _rate(self, samples: Samples) -> Values:
        scores = self.score(samples)
        return [None if score is None else min(1.0, math.exp(score)) for score in scores]

    def score(self, samples: Samples) -> Values:
        """Return the mean log-probability of the window, None for a response that was cut off."""
        rows = [counted_logprobs(response, with_end=True) for response in samples.responses]
        return [min(group_means(row, self.window)) if row else None for row in rows]


def group_means(logprobs: Sequence[float], window: int) -> list[float]:
    """Return the mean of every `window` consecutive values, or of all if there are fewer."""
    size = min(window, len(logprobs))
    return [
        math.fsum(logprobs[start : start + size]) / size
        for start in range(len(logprobs) - size + 1)
    ]


ESTIMATOR = DeepConf
