"""The protocol of strategies, `decide`, which runs one, and votes that are sampled in parallel."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from numbers import Integral
from typing import Protocol

from grace import plugins
from grace.errors import ModelError, UserInputError
from grace.records import Decision, Vote
from grace.strategies.tally import Indices, VoteTable

Issue = Callable[[range], Iterator[tuple[int, Vote]]]

BUDGET = 8
"""Default number of samples of a vote at most, as in the paper."""

TEMPERATURE = 0.8
"""Default sampling temperature of a vote."""


class Strategy(Protocol):
    """Decides for a table of votes where to stop and which answer to choose."""

    def stops(self, table: VoteTable) -> Indices:
        """Return the number of votes after which each row stops, width + 1 for never: (R,)."""
        ...

    def chooses(self, table: VoteTable) -> Indices:
        """Return the position of each row's chosen answer, -1 when no vote has one: (R,)."""
        ...


def named(strategy: Strategy) -> AbstractContextManager[None]:
    """Name a strategy from outside the package in one line if it raises."""
    kind = type(strategy)
    own = "" if kind.__module__.startswith("grace.") else f"{kind.__module__}:{kind.__qualname__}"
    return plugins.own_code(own, f"strategy {own} failed", "correct it, or leave it out")


def stopped(strategy: Strategy, votes: Sequence[Vote]) -> bool:
    """Return whether a strategy stops after these votes on one question."""
    with named(strategy):
        return int(strategy.stops(VoteTable.of(votes))[0]) <= len(votes)


def chosen(strategy: Strategy, votes: Sequence[Vote]) -> str | None:
    """Return the answer that a strategy chooses from these votes, None when none has one."""
    with named(strategy):
        place = int(strategy.chooses(VoteTable.of(votes))[0]) if votes else -1
    return votes[place].answer if place >= 0 else None


def decide(strategy: Strategy, votes: Iterable[Vote], budget: int) -> Decision:
    """Take votes until the strategy stops or the budget is spent, then choose an answer."""
    check_count(budget, "the budget")
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
        confidence=_confidence(strategy, taken, answer),
        samples=len(taken),
        tokens=tokens,
        votes=tuple(taken),
        issued=len(taken),
        issued_tokens=tokens,
        threshold=getattr(strategy, "threshold", None),
    )


def _confidence(strategy: Strategy, votes: Sequence[Vote], answer: str | None) -> float | None:
    """Return the strategy's own confidence in the chosen answer, else the mean of its votes'.

    None if no vote for it has one.
    """
    values = [v.confidence for v in votes if v.answer == answer and v.confidence is not None]
    if answer is None or not values:
        return None
    own = getattr(strategy, "confidence", None)
    return sum(values) / len(values) if own is None else float(own(VoteTable.of(votes))[0])


def waves(issue: Issue, budget: int, parallel: int) -> Generator[Vote, None, None]:
    """Yield votes that are sampled `parallel` at a time, for `decide`.

    `issue(numbers)` starts the samples with these numbers and yields (number, vote) as they
    finish; it must stop all their work when it is closed. Votes are yielded in the order of
    their numbers, whichever finishes first: so the decision is the same as when they are sampled
    one by one, and short answers have no advantage. A wave starts when the one before is used up.
    """
    for start in range(0, budget, parallel):
        yield from _in_order(issue, range(start, min(start + parallel, budget)))


def _in_order(issue: Issue, wave: range) -> Generator[Vote, None, None]:
    finished: dict[int, Vote] = {}
    expected = wave.start
    arriving = issue(wave)
    try:
        for number, vote in arriving:
            finished[number] = vote
            while expected in finished:
                yield finished.pop(expected)
                expected += 1
    finally:
        close = getattr(arriving, "close", None)
        if close is not None:
            close()
    if expected != wave.stop:
        raise ModelError(
            f"sample {expected} of the wave {wave.start} to {wave.stop - 1} never came; "
            "the engine must return every sample that it was asked for"
        )


def check_count(value: object, name: str) -> None:
    """Check a number of samples or tokens."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise UserInputError(f"{name} is {value!r}; use a whole number, 1 or more")
