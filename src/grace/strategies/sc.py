"""Self-consistency: a plain majority vote."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from grace.strategies.tally import FixedBudget, Indices, VoteTable, heaviest_rows


@dataclass(frozen=True, slots=True)
class Majority(FixedBudget):
    """Self-consistency (SC): the most frequent answer of the whole budget.

    Source: Wang et al. 2022 (arXiv 2203.11171).
    """

    reads_confidence: ClassVar[bool] = False

    def chooses(self, table: VoteTable) -> Indices:
        """Choose the answer with the most votes."""
        return heaviest_rows(table.answer_RT)


STRATEGY = Majority
