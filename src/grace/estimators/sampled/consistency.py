"""Consistency: how often further samples of the question give the same answer.

Cost: `samples` more answers to each question, drawn at `sample.draw_temperature`.
Source: the share behind self-consistency, Wang et al. 2023 (arXiv 2203.11171).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from grace.config import setting
from grace.engines import Engine
from grace.estimators import Answers, Fitted, Rows, Samples, Splits, Values, of_ended
from grace.estimators.sampled.semantic_entropy import same_answer


@dataclass(frozen=True, slots=True)
class Consistency:
    """The share of further samples whose answer agrees with that of the response.

    A sample without an answer agrees with nothing; a response without an answer has no value.
    """

    samples: int = setting(10, "further samples per question", low=1)
    rouge_threshold: float = setting(
        0.3, "smallest ROUGE-L F1 of two answers that agree; 0: they must be equal", low=0, high=1
    )

    answers: ClassVar[Answers] = "base"
    draws: ClassVar[bool] = True

    def fit(self, splits: Splits, engine: Engine, seed: int) -> Fitted:
        """Nothing is fitted."""
        return of_ended(self._rate)

    def _rate(self, samples: Samples, rows: Rows) -> Values:
        draws = samples.draw(self.samples)

        def agreement(row: int) -> float | None:
            answer = samples.answers[row]
            if answer is None:
                return None
            agree = [same_answer(answer, draw.answer, self.rouge_threshold) for draw in draws[row]]
            return sum(agree) / len(agree)

        return [agreement(row) for row in rows]


ESTIMATOR = Consistency
