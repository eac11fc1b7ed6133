"""Several samples in flight decide as one after the other, and the rest is cancelled."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace.errors import ModelError
from grace.records import Vote
from grace.strategies import EarlyStop, decide, load, waves


class Engine:
    """Finishes the samples of a wave in a shuffled order and notes what is still running."""

    def __init__(self, votes: list[Vote], dice) -> None:
        self.votes = votes
        self.dice = dice
        self.waves: list[range] = []
        self.running: set[int] = set()

    def issue(self, wave: range) -> Iterator[tuple[int, Vote]]:
        self.waves.append(wave)
        self.running = set(wave)
        try:
            for number in self.dice.sample(list(wave), len(wave)):
                self.running.discard(number)
                yield number, self.votes[number]
        finally:
            self.running.clear()


votes = st.lists(
    st.builds(Vote, st.sampled_from(["A", "B", None]), st.none() | st.floats(0, 1)),
    min_size=12,
    max_size=12,
)
names = st.sampled_from(
    ["sc", "asc", "asc,rule=beta", "esc", "grace-sc", "es", "cisc", "best", "vote"]
)


@given(votes, names, st.integers(1, 12), st.integers(1, 13), st.randoms(use_true_random=False))
def test_waves_decide_as_sampling_one_by_one_does(cast, name, budget, parallel, dice):
    engine = Engine(cast, dice)
    decision = decide(load(name), waves(engine.issue, budget, parallel), budget)
    assert decision == decide(load(name), cast, budget)
    whole = -(-decision.samples // parallel) * parallel
    assert sum(map(len, engine.waves)) == min(whole, budget)
    assert not engine.running


def test_a_sure_vote_cancels_what_is_in_flight():
    closed: list[int] = []

    def issue(wave: range) -> Iterator[tuple[int, Vote]]:
        try:
            for number in wave:
                yield number, Vote("A", 0.9 if number == 1 else 0.1)
        finally:
            closed.append(wave.start)

    votes = waves(issue, budget=8, parallel=4)
    decision = decide(EarlyStop(0.8), votes, 8)
    assert (decision.samples, closed) == (2, [0])
    assert list(votes) == []


def test_an_engine_that_loses_a_sample_is_found_out():
    votes = waves(lambda wave: iter([(1, Vote("A", 0.1))]), budget=2, parallel=2)
    with pytest.raises(ModelError, match="sample 0 of the wave 0 to 1 never came"):
        list(votes)
