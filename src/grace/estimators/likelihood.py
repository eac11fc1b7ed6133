"""Estimators from the token log-probabilities that were recorded while sampling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from grace.config import setting
from grace.engines import Engine
from grace.estimators import Answers, Fitted, Samples, Splits, Values
from grace.estimators.recalibrated import logistic, recalibrate
from grace.records import Response


@dataclass(frozen=True, slots=True)
class Likelihood:
    """Sequence likelihood: the length-normalised probability of the response.

    exp of the mean token log-probability, from the raw softmax at temperature 1.
    Source: Malinin and Gales 2021 (arXiv 2002.07650), as compared in arXiv 2509.09438 Appendix A.
    """

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


@dataclass(frozen=True, slots=True)
class PlattScaling:
    """Platt scaling: sigmoid(a * likelihood + b), fitted on validation answers.

    Source: Platt 1999, as compared in arXiv 2509.09438 Appendix A (mean squared error).
    """

    answers: ClassVar[Answers] = "base"

    def fit(self, splits: Splits, engine: Engine, seed: int) -> Fitted:
        """Fit slope and offset by least squares."""
        return recalibrate(Likelihood(), "platt").fit(splits, engine, seed)


@dataclass(frozen=True, slots=True)
class LogLikelihood:
    """Log-likelihood: logistic regression on the log-probability of the whole response.

    sigmoid(a * sum of log p + b): the sum that sequence likelihood divides by the length, so a
    longer answer is less likely. The two parameters are fitted on validation answers by log loss.
    """

    with_end: bool = setting(True, "count the end token as one more token")

    answers: ClassVar[Answers] = "base"

    def fit(self, splits: Splits, engine: Engine, seed: int) -> Fitted:
        """Fit slope and offset on validation answers."""
        return logistic(self._score, splits)

    def _score(self, samples: Samples) -> Values:
        rows = [counted_logprobs(one, with_end=self.with_end) for one in samples.responses]
        return [math.fsum(row) if row else None for row in rows]


@dataclass(frozen=True, slots=True)
class DeepConf:
    """The least sure window of a response, after DeepConf, but not DeepConf itself.

    exp of the lowest mean log-probability over a window of tokens, the end token included.
    DeepConf's token confidence is minus the mean log-probability of the top 20 tokens; stored
    responses hold the log-probability of the chosen token only, so this is used; tables call it
    "Least sure window". On a greedy response both are low where the model hesitates; a sampled
    response may hold an unlikely token where the model did not hesitate. DeepConf's windows of
    2,048 tokens are for long reasoning; the default here is for short answers.
    Source: Fu et al. 2025, "Deep Think with Confidence" (arXiv 2508.15260), section 3.
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


@dataclass(frozen=True, slots=True)
class DeepConfLogistic(DeepConf):
    """The least sure window (`deepconf`), through a logistic regression on validation answers.

    sigmoid(a * score + b), the score a mean log-probability, fitted by log loss.
    """

    def fit(self, splits: Splits, engine: Engine, seed: int) -> Fitted:
        """Fit slope and offset on validation answers."""
        return logistic(self.score, splits)


ESTIMATORS = {
    "likelihood": Likelihood,
    "platt": PlattScaling,
    "loglik": LogLikelihood,
    "deepconf": DeepConf,
    "deepconf_logistic": DeepConfLogistic,
}
