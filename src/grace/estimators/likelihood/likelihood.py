"""Sequence likelihood: the length-normalised probability of the response.

Source: Malinin and Gales 2021 (arXiv 2002.07650), as compared in arXiv 2509.09438 Appendix A.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from grace.config import setting
from grace.engines import Engine
from grace.estimators import Answers, Fitted, Splits
from grace.records import Response


@dataclass(frozen=True, slots=True)
class Likelihood:
    """exp of the mean token log-probability, from the raw softmax at temperature 1."""

    with_end: bool = setting(True, "count the end token as one more token")

    answers: ClassVar[Answers] = "base"

    def fit(self, splits: Splits, engine: Engine, seed: int) -> Fitted:
        """Nothing is fitted: the log-probabilities were recorded while sampling."""
        return Fitted(
            lambda samples: [
                sequence_likelihood(response, with_end=self.with_end)
                for response in samples.responses
            ]
        )


def sequence_likelihood(response: Response, *, with_end: bool = True) -> float | None:
    """Return exp(mean log p) over the tokens, None if the response was cut off or has no token."""
    logprobs = counted_logprobs(response, with_end=with_end)
    return min(1.0, math.exp(math.fsum(logprobs) / len(logprobs))) if logprobs else None


def counted_logprobs(response: Response, *, with_end: bool) -> list[float]:
    """Return the log-probabilities of the tokens and of the end; empty for a cut response."""
    if response.end_logprob is None:
        return []
    return [*response.logprobs, *([response.end_logprob] if with_end else [])]


ESTIMATOR = Likelihood
