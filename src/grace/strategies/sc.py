"""Self-consistency: a plain majority vote."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from grace.strategies.tally import Indices, VoteTable, heaviest_rows, never


@dataclass(frozen=True, slots=True)
class Majority:
    """Self-consistency (SC): the most frequent answer of the whole budget.

    Source: Wang et al. 2022 (arXiv 2203.11171).
    """

    reads_confidence: ClassVar[bool] = False

    def stops(self, table: VoteTable) -> Indices:
        """Never stop before the budget is spent."""
        return never(table)

    def chooses(self, table: VoteTable) -> Indices:
        """Choose the answer with most votes."""
        return heaviest_rows(table.answer_RT)


STRATEGY = Majority
