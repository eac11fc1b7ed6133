"""Platt scaling: sigmoid(a * likelihood + b), fitted on validation answers.

Source: Platt 1999, as compared in arXiv 2509.09438 Appendix A (mean squared error).
"""

from __future__ import annotations

import numpy as np

from grace.calibration import Platt as Scaler
from grace.errors import DataError
from grace.estimators import Answers, Estimate, Evidence
from grace.estimators.likelihood import sequence_likelihood


class Platt:
    """Sequence likelihood with two parameters fitted on the validation split."""

    name = "platt"
    answers: Answers = "base"

    def estimate(self, evidence: Evidence) -> Estimate:
        """Fit on validation, transform test.

        Raises:
            DataError: no validation answer ended, so there is nothing to fit on.
        """
        validation = evidence.validation
        fitted_on = [
            (value, correct)
            for response, correct in zip(validation.responses, validation.correct, strict=True)
            if (value := sequence_likelihood(response)) is not None
        ]
        if not fitted_on:
            raise DataError(
                "platt: every validation answer was cut before its end; raise sample.max_new_tokens"
            )
        values, labels = zip(*fitted_on, strict=True)
        scaler = Scaler.fit(np.array(values), np.array(labels))
        raw = [sequence_likelihood(response) for response in evidence.test.responses]
        return Estimate(
            [None if v is None else float(scaler.transform(np.array([v]))[0]) for v in raw]
        )


ESTIMATOR = Platt()
