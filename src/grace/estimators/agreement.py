"""Estimators that compare further samples of the same question.

Cost: `samples` more answers to each question, drawn at `sample.draw_temperature`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from grace.answers import alike
from grace.config import setting
from grace.engines import Engine
from grace.estimators import Draw, Fitted, Rows, Samples, Splits, Values, of_ended


@dataclass(frozen=True, slots=True)
class Consistency:
    """Consistency: how often further samples of the question give the same answer.

    The share of further samples whose answer agrees with that of the response. A sample without an
    answer agrees with nothing; a response without an answer has no value.
    Source: the share behind self-consistency, Wang et al. 2023 (arXiv 2203.11171).
    """

    samples: int = setting(10, "further samples per question", low=1)
    rouge_threshold: float = setting(
        0.3,
        "smallest share of words that two answers which agree have in common; 0: equal",
        low=0,
        high=1,
    )

    draws: ClassVar[bool] = True

    def fit(self, splits: Splits, engine: Engine, seed: int) -> Fitted:
        """Nothing is fitted."""
        return of_ended(self._rate)

    def _rate(self, samples: Samples, rows: Rows) -> Values:
        draws = samples.draw(self.samples)
        return [self._value(samples.answers[row], draws[row]) for row in rows]

    def _value(self, answer: str | None, draws: Sequence[Draw]) -> float | None:
        if answer is None:
            return None
        agree = [same_answer(answer, draw.answer, self.rouge_threshold) for draw in draws]
        return sum(agree) / len(agree)


@dataclass(frozen=True, slots=True)
class SemanticEntropy(Consistency):
    """Semantic entropy: how much further samples of the question disagree in meaning.

    1 - H / log(samples), with H the entropy over clusters of answers of the same meaning: equal
    after normalisation, or alike by their words; the published method asks a language model
    instead, which short answers do not need. All responses to one question have the same value.
    Source: Kuhn et al. 2023 (arXiv 2302.09664); counts as in Farquhar et al. 2024 (Nature 630).
    """

    samples: int = setting(10, "further samples per question", low=2)

    def _value(self, answer: str | None, draws: Sequence[Draw]) -> float:
        sizes = Counter(cluster([draw.answer for draw in draws], self.rouge_threshold)).values()
        shares = [size / len(draws) for size in sizes]
        entropy = -math.fsum(share * math.log(share) for share in shares)
        return min(1.0, max(0.0, 1 - entropy / math.log(len(draws))))


def cluster(answers: Sequence[str | None], rouge_threshold: float = 0.0) -> list[int]:
    """Return the cluster of each answer: the first whose first member agrees, or a new one."""
    first: list[str | None] = []
    numbers = []
    for answer in answers:
        alike = (i for i, other in enumerate(first) if same_answer(other, answer, rouge_threshold))
        number = next(alike, len(first))
        if number == len(first):
            first.append(answer)
        numbers.append(number)
    return numbers


def same_answer(first: str | None, second: str | None, rouge_threshold: float) -> bool:
    """Whether two answers are equal or alike, and differ in no number and no denial."""
    if first is None or second is None:
        return False
    return first == second or alike(first, second, rouge_threshold)


ESTIMATORS = {
    "consistency": Consistency,
    "semantic_entropy": SemanticEntropy,
}
