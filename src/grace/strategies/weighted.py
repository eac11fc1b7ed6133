"""GrACE-SC: a vote weighted by confidence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grace.config import setting
from grace.strategies.tally import FixedBudget, Indices, VoteTable, heaviest_rows


@dataclass(frozen=True, slots=True)
class Weighted(FixedBudget):
    """GrACE-SC: the answer with the largest sum of confidences.

    A vote without a confidence weighs nothing; when none has one this is a majority vote.

    Source: arXiv 2509.09438 eq. 8.
    """

    drop: float = setting(0.0, "abort a sample once its confidence is below this", low=0, high=1)

    def chooses(self, table: VoteTable) -> Indices:
        """Choose the answer with the largest sum of confidences."""
        return heaviest_rows(table.answer_RT, np.nan_to_num(table.confidence_RT, nan=0.0))


STRATEGY = Weighted
