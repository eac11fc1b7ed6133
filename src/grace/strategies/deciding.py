"""What a strategy is, and `decide`, which runs one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from grace.errors import UserInputError
from grace.records import Decision, Vote
from grace.strategies.tally import Indices, VoteTable

BUDGET = 8
"""Most samples of a vote for which no number is given: the paper's."""

TEMPERATURE = 0.8
"""Sampling temperature of a vote for which none is given."""


class Strategy(Protocol):
    """Says of a table of votes, in order of arrival, where to stop and which answer to choose."""

    def stops(self, table: VoteTable) -> Indices:
        """Return the number of votes after which each row first stops, width + 1 for never."""
        ...

    def chooses(self, table: VoteTable) -> Indices:
        """Return where each row's chosen answer was first seen, -1 when no vote has one."""
        ...


def stopped(strategy: Strategy, votes: Sequence[Vote]) -> bool:
    """Return whether a strategy needs no sample beyond these votes of one question."""
    return int(strategy.stops(VoteTable.of(votes))[0]) <= len(votes)


def chosen(strategy: Strategy, votes: Sequence[Vote]) -> str | None:
    """Return a strategy's answer after these votes of one question, None when none has one."""
    place = int(strategy.chooses(VoteTable.of(votes))[0]) if votes else -1
    return votes[place].answer if place >= 0 else None


def decide(strategy: Strategy, votes: Iterable[Vote], budget: int) -> Decision:
    """Take votes until the strategy stops or the budget is spent, then choose.

    Raises:
        UserInputError: the budget is below one.
    """
    if budget < 1:
        raise UserInputError(f"the budget is {budget}; at least one sample is needed")
    taken: list[Vote] = []
    source = iter(votes)
    try:
        for vote in source:
            taken.append(vote)
            if len(taken) >= budget or stopped(strategy, taken):
                break
    finally:
        close = getattr(source, "close", None)
        if close is not None:
            close()
    answer = chosen(strategy, taken)
    tokens = sum(vote.tokens for vote in taken)
    return Decision(
        answer=answer,
        confidence=_mean_confidence(taken, answer),
        samples=len(taken),
        tokens=tokens,
        votes=tuple(taken),
        issued=len(taken),
        issued_tokens=tokens,
        threshold=getattr(strategy, "threshold", None),
    )


def _mean_confidence(votes: Sequence[Vote], answer: str | None) -> float | None:
    """Return the mean confidence of the votes for the chosen answer, None without any."""
    values = [v.confidence for v in votes if v.answer == answer and v.confidence is not None]
    return sum(values) / len(values) if answer is not None and values else None
