"""GrACE-ES: stop at the first sample that is sure enough."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from grace.config import setting
from grace.strategies.tally import Indices, VoteTable
from grace.strategies.weighted import Weighted


@dataclass(frozen=True, slots=True)
class EarlyStop:
    """GrACE-ES: stop at the first sample that is sure enough, else vote like GrACE-SC.

    No confidence reaches a threshold above 1: then this is GrACE-SC.

    Source: arXiv 2509.09438 Algorithm 1.
    """

    threshold: float = setting(0.8, "confidence at which a sample's answer is taken", low=0)
    drop: float = setting(0.0, "abort a sample once its confidence is below this", low=0, high=1)

    def stops(self, table: VoteTable) -> Indices:
        """Stop at the first vote that has an answer and reaches the threshold."""
        sure_RT = self._sure_rows(table)
        last_R = np.where(sure_RT.any(axis=1), sure_RT.argmax(axis=1), sure_RT.shape[1])
        stop_R: Indices = last_R + 1
        return stop_R

    def chooses(self, table: VoteTable) -> Indices:
        """Choose the sure answer, or the weighted vote over all samples."""
        sure_RT = self._sure_rows(table)
        first_R = sure_RT.argmax(axis=1)
        chosen_R: Indices = table.answer_RT[np.arange(len(first_R)), first_R]
        unsure_R = ~sure_RT.any(axis=1)
        rest = VoteTable(table.answer_RT[unsure_R], table.confidence_RT[unsure_R])
        chosen_R[unsure_R] = Weighted().chooses(rest)
        return chosen_R

    def _sure_rows(self, table: VoteTable) -> NDArray[np.bool_]:
        sure_RT: NDArray[np.bool_] = table.confidence_RT >= self.threshold
        return sure_RT & (table.answer_RT >= 0)


STRATEGY = EarlyStop
