"""GrACE-SC: a vote weighted by confidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from grace.records import Vote
from grace.strategies.tally import Indices, VoteTable, heaviest, heaviest_rows, never


@dataclass(frozen=True, slots=True)
class Weighted:
    """GrACE-SC: the answer with the largest sum of confidences.

    A vote without a confidence weighs nothing; when none has one this is a majority vote.

    Source: arXiv 2509.09438 eq. 8.
    """

    reads_confidence: ClassVar[bool] = True

    def done(self, votes: Sequence[Vote]) -> bool:
        """Never stop before the budget is spent."""
        return False

    def choose(self, votes: Sequence[Vote]) -> str | None:
        """Return the answer with the largest sum of confidences."""
        return heaviest(votes, (vote.confidence or 0.0 for vote in votes))

    def stops(self, table: VoteTable) -> Indices:
        """As `done`, for every row."""
        return never(table)

    def chooses(self, table: VoteTable) -> Indices:
        """As `choose`, for every row."""
        return heaviest_rows(table.answer_RT, np.nan_to_num(table.confidence_RT, nan=0.0))


STRATEGY = Weighted
