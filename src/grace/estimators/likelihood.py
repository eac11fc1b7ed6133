"""Estimators from the token log-probabilities that were recorded while sampling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from grace.config import setting
from grace.engines import Engine
from grace.estimators import Fitted, Samples, Splits, Values
from grace.estimators.recalibrated import logistic, recalibrate
from grace.records import Response


@dataclass(frozen=True, slots=True)
class Likelihood:
    """Sequence likelihood: the length-normalised probability of the response.

    exp of the mean token log-probability, from the raw softmax at temperature 1.
    Source: Malinin and Gales 2021 (arXiv 2002.07650), as compared in arXiv 2509.09438 Appendix A.
    """

    def fit(self, splits: Splits, engine: Engine, seed: int) -> Fitted:
        """Nothing is fitted: the log-probabilities were recorded while sampling."""
        return Fitted(lambda samples: [sequence_likelihood(one) for one in samples.responses])


def sequence_likelihood(response: Response) -> float | None:
    """Return exp(mean log p) over the tokens and the end, None if the response was cut off."""
    logprobs = counted_logprobs(response)
    return min(1.0, math.exp(math.fsum(logprobs) / len(logprobs))) if logprobs else None


def counted_logprobs(response: Response) -> list[float]:
    """Return the log-probabilities of the tokens and of the end; empty for a cut response."""
    return [] if response.end_logprob is None else [*response.logprobs, response.end_logprob]


@dataclass(frozen=True, slots=True)
class PlattScaling:
    """Platt scaling: sigmoid(a * likelihood + b), fitted on validation answers.

    Source: Platt 1999, as compared in arXiv 2509.09438 Appendix A (mean squared error).
    """

    def fit(self, splits: Splits, engine: Engine, seed: int) -> Fitted:
        """Fit slope and offset by least squares."""
        return recalibrate(Likelihood(), "platt").fit(splits, engine, seed)


@dataclass(frozen=True, slots=True)
class LogLikelihood:
    """Log-likelihood: logistic regression on the log-probability of the whole response.

    sigmoid(a * sum of log p + b): the sum that sequence likelihood divides by the length, so a
    longer answer is less likely. The two parameters are fitted on validation answers by log loss.
    """

    def fit(self, splits: Splits, engine: Engine, seed: int) -> Fitted:
        """Fit slope and offset on validation answers."""

        def score(samples: Samples) -> Values:
            rows = map(counted_logprobs, samples.responses)
            return [math.fsum(row) if row else None for row in rows]

        return logistic(score, splits)


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

    def fit(self, splits: Splits, engine: Engine, seed: int) -> Fitted:
        """Nothing is fitted: the log-probabilities were recorded while sampling."""

        def rate(samples: Samples) -> Values:
            return [None if s is None else min(1.0, math.exp(s)) for s in self.score(samples)]

        return Fitted(rate)

    def score(self, samples: Samples) -> Values:
        """Return the mean log-probability of the window, None for a response that was cut off."""
        rows = map(counted_logprobs, samples.responses)
        return [least_mean(row, self.window) if row else None for row in rows]


def least_mean(logprobs: Sequence[float], window: int) -> float:
    """Return the least mean of `window` consecutive values, or that of all if there are fewer."""
    size = min(window, len(logprobs))
    starts = range(len(logprobs) - size + 1)
    return min(math.fsum(logprobs[start : start + size]) / size for start in starts)


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
