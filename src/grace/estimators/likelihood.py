"""Sequence likelihood: the length-normalised probability of the response.

Source: Malinin and Gales 2021 (arXiv 2002.07650), as compared in arXiv 2509.09438 Appendix A.
"""

from __future__ import annotations

import math

from grace.estimators import Answers, Estimate, Evidence
from grace.records import Response


class Likelihood:
    """exp of the mean token log-probability, the end token included."""

    name = "likelihood"
    answers: Answers = "base"

    def estimate(self, evidence: Evidence) -> Estimate:
        """Return one likelihood per response; it was recorded while sampling."""
        return Estimate([sequence_likelihood(response) for response in evidence.test.responses])


def sequence_likelihood(response: Response) -> float | None:
    """Return exp(mean log p) over the response tokens and the end token, None if it was cut."""
    if response.end_logprob is None:
        return None
    logprobs = (*response.logprobs, response.end_logprob)
    return min(1.0, math.exp(math.fsum(logprobs) / len(logprobs)))


ESTIMATOR = Likelihood()
