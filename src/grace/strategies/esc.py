"""ESC: stop when a window of samples agrees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from grace.config import setting
from grace.strategies.tally import Indices, VoteTable, heaviest_rows


@dataclass(frozen=True, slots=True)
class WindowConsistency:
    """Early-stopping self-consistency (ESC): stop after the first unanimous window.

    Windows do not overlap. The answer is that of the unanimous window, or else the majority of the
    whole budget, including a last part shorter than a window (which the published code leaves out).
    With a budget smaller than the window this is SC. The published window is 5, at a budget of 40;
    only 4 is consistent with the mean numbers of samples of arXiv 2509.09438 at a budget of 8.

    Source: Li et al. 2024 (arXiv 2401.10480).
    """

    reads_confidence: ClassVar[bool] = False

    window: int = setting(4, "number of consecutive samples that must agree", low=1)

    def stops(self, table: VoteTable) -> Indices:
        """Stop at the end of the first window whose votes are all for one answer."""
        width = table.answer_RT.shape[1]
        agreed_RW = self._windows(table) >= 0
        ends_R: Indices = (agreed_RW.cumsum(axis=1) == 0).sum(axis=1) * self.window + self.window
        return np.where(agreed_RW.any(axis=1), ends_R, width + 1)

    def chooses(self, table: VoteTable) -> Indices:
        """Choose the answer of the first unanimous window, else the majority's."""
        chosen_R = heaviest_rows(table.answer_RT)
        for agreed_R in self._windows(table).T[::-1]:
            chosen_R = np.where(agreed_R >= 0, agreed_R, chosen_R)
        return chosen_R

    def _windows(self, table: VoteTable) -> Indices:
        """Return the answer of each complete window, -1 where it is not unanimous."""
        rows, width = table.answer_RT.shape
        whole = width // self.window
        answer_RWS = table.answer_RT[:, : whole * self.window].reshape(rows, whole, self.window)
        same_RW = (answer_RWS == answer_RWS[:, :, :1]).all(axis=2)
        return np.where(same_RW, answer_RWS[:, :, 0], -1)


STRATEGY = WindowConsistency
