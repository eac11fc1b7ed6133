"""What a strategy is, and `decide`, which runs one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

from grace.errors import UserInputError
from grace.records import Decision, Vote
from grace.strategies.tally import Indices, VoteTable


class Strategy(Protocol):
    """Decides after each vote whether to stop, and at the end which answer to give."""

    def done(self, votes: Sequence[Vote]) -> bool:
        """Return whether no further sample is needed."""
        ...

    def choose(self, votes: Sequence[Vote]) -> str | None:
        """Return the answer, or None when no vote has one."""
        ...


@runtime_checkable
class Batched(Protocol):
    """A strategy that also decides many questions at once, with the same outcome."""

    def stops(self, table: VoteTable) -> Indices:
        """Return the number of votes after which each row is first done, width + 1 for never."""
        ...

    def chooses(self, table: VoteTable) -> Indices:
        """Return where each row's chosen answer was first seen, -1 when no vote has one."""
        ...


def decide(strategy: Strategy, votes: Iterable[Vote], budget: int) -> Decision:
    """Take votes until the strategy is done or the budget is spent, then choose.

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
            if len(taken) >= budget or strategy.done(taken):
                break
    finally:
        close = getattr(source, "close", None)
        if close is not None:
            close()
    answer = strategy.choose(taken)
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
