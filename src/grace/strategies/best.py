"""Best-of-n: the answer of the surest sample."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grace.strategies.tally import FixedBudget, Indices, VoteTable


@dataclass(frozen=True, slots=True)
class BestOfN(FixedBudget):
    """Best-of-n: the answer of the sample with the highest confidence, the first of equals.

    A sample without a confidence comes after all that have one.

    Source: Stiennon et al. 2020 (arXiv 2009.01325), with a confidence in place of a reward.
    """

    def chooses(self, table: VoteTable) -> Indices:
        """Choose the answer of the surest sample."""
        sure_RT = np.nan_to_num(table.confidence_RT, nan=-1.0)
        sure_RT[table.answer_RT < 0] = -2
        best_R = sure_RT.argmax(axis=1)
        chosen_R: Indices = table.answer_RT[np.arange(len(best_R)), best_R]
        return chosen_R


STRATEGY = BestOfN
