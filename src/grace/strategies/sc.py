"""Self-consistency: a plain majority vote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from grace.records import Vote
from grace.strategies.tally import Indices, VoteTable, heaviest, heaviest_rows, never


@dataclass(frozen=True, slots=True)
class Majority:
    """Self-consistency (SC): the most frequent answer of the whole budget.

    Source: Wang et al. 2022 (arXiv 2203.11171).
    """

    reads_confidence: ClassVar[bool] = False

    def done(self, votes: Sequence[Vote]) -> bool:
        """Never stop before the budget is spent."""
        return False

    def choose(self, votes: Sequence[Vote]) -> str | None:
        """Return the answer with most votes."""
        return heaviest(votes, (1.0 for _ in votes))

    def stops(self, table: VoteTable) -> Indices:
        """As `done`, for every row."""
        return never(table)

    def chooses(self, table: VoteTable) -> Indices:
        """As `choose`, for every row."""
        return heaviest_rows(table.answer_RT)


STRATEGY = Majority
