"""GrACE: the probability of <CNF> at the end of the response, read while generating.

Source: arXiv 2509.09438 eq. 5.
"""

from __future__ import annotations

from grace.estimators import Answers, Estimate, Evidence


class Grace:
    """The tuned model's own confidence in its own answers; it was recorded with the response."""

    name = "grace"
    answers: Answers = "tuned"

    def estimate(self, evidence: Evidence) -> Estimate:
        """Return the confidence recorded at the end of each response."""
        return Estimate([response.confidence for response in evidence.test.responses])


ESTIMATOR = Grace()
