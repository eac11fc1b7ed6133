"""GrACE-SC: a vote weighted by confidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from grace.config import setting
from grace.strategies.tally import Indices, VoteTable, heaviest_rows, never


@dataclass(frozen=True, slots=True)
class Weighted:
    """GrACE-SC: the answer with the largest sum of confidences.

    A vote without a confidence weighs nothing; when none has one this is a majority vote.

    Source: arXiv 2509.09438 eq. 8.
    """

    reads_confidence: ClassVar[bool] = True

    drop: float = setting(0.0, "a sample is aborted once its confidence is below", low=0, high=1)

    def stops(self, table: VoteTable) -> Indices:
        """Never stop before the budget is spent."""
        return never(table)

    def chooses(self, table: VoteTable) -> Indices:
        """Choose the answer with the largest sum of confidences."""
        return heaviest_rows(table.answer_RT, np.nan_to_num(table.confidence_RT, nan=0.0))


STRATEGY = Weighted
