"""Ways to spend samples on one question: when to stop, and which answer to choose.

A strategy is two pure functions of the votes so far, in order of arrival: `done(votes)` and
`choose(votes)`. `decide` feeds them from any iterator: a generator over an engine is a live run,
a list is a replay, and closing the generator stops what is still being sampled.

A response without an extractable answer counts as a sample and casts no vote. Ties go to the
answer that was seen first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from grace.errors import UserInputError
from grace.records import Decision, Vote


class Strategy(Protocol):
    """Decides after each vote whether to stop, and at the end which answer to give."""

    def done(self, votes: Sequence[Vote]) -> bool:
        """Return whether no further sample is needed."""
        ...

    def choose(self, votes: Sequence[Vote]) -> str | None:
        """Return the answer, or None when no vote has one."""
        ...


@dataclass(frozen=True, slots=True)
class Majority:
    """Self-consistency (SC): the most frequent answer of the whole budget.

    Source: Wang et al. 2022 (arXiv 2203.11171).
    """

    def done(self, votes: Sequence[Vote]) -> bool:
        """Never stop before the budget is spent."""
        return False

    def choose(self, votes: Sequence[Vote]) -> str | None:
        """Return the answer with most votes."""
        return _heaviest(votes, lambda vote: 1.0)


@dataclass(frozen=True, slots=True)
class Weighted:
    """GrACE-SC: the answer with the largest sum of confidences.

    Source: arXiv 2509.09438 eq. 8. A vote without a confidence weighs nothing.
    """

    def done(self, votes: Sequence[Vote]) -> bool:
        """Never stop before the budget is spent."""
        return False

    def choose(self, votes: Sequence[Vote]) -> str | None:
        """Return the answer with the largest sum of confidences."""
        return _heaviest(votes, lambda vote: vote.confidence or 0.0)


@dataclass(frozen=True, slots=True)
class EarlyStop:
    """GrACE-ES: stop at the first sample that is sure enough, else vote like GrACE-SC.

    Source: arXiv 2509.09438 Algorithm 1.
    """

    threshold: float = 0.8

    def done(self, votes: Sequence[Vote]) -> bool:
        """Stop when the newest vote has an answer and reaches the threshold."""
        return bool(votes) and self._sure(votes[-1])

    def choose(self, votes: Sequence[Vote]) -> str | None:
        """Return the sure answer, or the weighted vote over all samples."""
        sure = next((vote for vote in votes if self._sure(vote)), None)
        return sure.answer if sure else Weighted().choose(votes)

    def _sure(self, vote: Vote) -> bool:
        return (
            vote.answer is not None
            and vote.confidence is not None
            and vote.confidence >= self.threshold
        )


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
    return Decision(
        answer=answer,
        confidence=_share(taken, answer),
        samples=len(taken),
        tokens=sum(vote.tokens for vote in taken),
        votes=tuple(taken),
    )


def _share(votes: Sequence[Vote], answer: str | None) -> float | None:
    """Return the mean confidence of the votes for the chosen answer, None without any."""
    values = [v.confidence for v in votes if v.answer == answer and v.confidence is not None]
    return sum(values) / len(values) if answer is not None and values else None


def _heaviest(votes: Sequence[Vote], weigh: Callable[[Vote], float]) -> str | None:
    weights: dict[str, float] = defaultdict(float)
    for vote in votes:
        if vote.answer is not None:
            weights[vote.answer] += weigh(vote)
    return max(weights, key=lambda answer: weights[answer], default=None)
