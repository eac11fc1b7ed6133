"""Best-of-n: the answer of the surest sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from grace.records import Vote
from grace.strategies.tally import Indices, VoteTable, never


@dataclass(frozen=True, slots=True)
class BestOfN:
    """Best-of-n: the answer of the sample with the highest confidence, the first of equals.

    A sample without a confidence comes after all that have one.

    Source: Stiennon et al. 2020 (arXiv 2009.01325), with a confidence in place of a reward.
    """

    reads_confidence: ClassVar[bool] = True

    def done(self, votes: Sequence[Vote]) -> bool:
        """Never stop before the budget is spent."""
        return False

    def choose(self, votes: Sequence[Vote]) -> str | None:
        """Return the answer of the surest sample."""
        cast = [vote for vote in votes if vote.answer is not None]
        best = max(cast, key=lambda v: -1 if v.confidence is None else v.confidence, default=None)
        return best.answer if best else None

    def stops(self, table: VoteTable) -> Indices:
        """As `done`, for every row."""
        return never(table)

    def chooses(self, table: VoteTable) -> Indices:
        """As `choose`, for every row."""
        sure_RT = np.nan_to_num(table.confidence_RT, nan=-1.0)
        sure_RT[table.answer_RT < 0] = -2
        best_R = sure_RT.argmax(axis=1)
        chosen_R: Indices = table.answer_RT[np.arange(len(best_R)), best_R]
        return chosen_R


STRATEGY = BestOfN
