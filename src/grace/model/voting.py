"""A vote over sampled answers: on one question while they arrive, or on many in common waves."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from grace.engines import Sampling, StreamingEngine
from grace.model.many import sampled
from grace.model.rules import Voting
from grace.records import Decision, Generation, Vote
from grace.strategies import Strategy, Waves, check_parallel, chosen, decide, stopped

OnVote = Callable[[Vote, str | None], None]
Ids = Sequence[int]


@dataclass(frozen=True, slots=True)
class Ballot:
    """How votes are held.

    Attributes:
        engine: the model.
        read: makes a vote of a response.
        rule: the strategy, and what its threshold guarantees.
        budget: most samples for a question, `parallel` of them in flight.
        sampling: how one is drawn.
    """

    engine: StreamingEngine
    read: Callable[[Generation], Vote]
    rule: Voting
    budget: int
    parallel: int
    sampling: Sampling

    def decide(self, prompt: Ids, on_vote: OnVote | None = None) -> Decision:
        """Sample the answers to one question until the strategy is sure; cancel the rest."""
        strategy, stream = self.rule.strategy, self.engine.stream(prompt, self.sampling)

        def issue(numbers: range) -> Iterator[tuple[int, Vote]]:
            with contextlib.closing(stream.start(numbers)) as running:
                for number, generation in running:
                    yield number, self.read(generation)

        waves = Waves(issue, self.budget, self.parallel)
        votes = waves if on_vote is None else _told(waves, strategy, on_vote)
        decision = decide(strategy, votes, self.budget)
        return self._closed(decision, waves.issued, stream.tokens)

    def decide_all(self, prompts: Sequence[Ids]) -> list[Decision]:
        """Sample for all questions together, a wave at a time, and decide on each.

        The samples are those of `decide`, but a wave is finished before it is judged. Only a single
        question's samples can be dropped on the way, so a strategy that drops takes them in turn.
        """
        check_parallel(self.parallel)
        if self.sampling.drop:
            return [self.decide(prompt) for prompt in prompts]
        taken: list[list[Vote]] = [[] for _ in prompts]
        open_, issued = list(range(len(prompts))), 0
        while open_ and issued < self.budget:
            count = min(self.parallel, self.budget - issued)
            wave = dataclasses.replace(self.sampling, num_samples=count, first_sample=issued)
            made = sampled(self.engine, [prompts[place] for place in open_], wave)
            for place, generations in zip(open_, made, strict=True):
                taken[place] += map(self.read, generations)
            open_ = [place for place in open_ if not stopped(self.rule.strategy, taken[place])]
            issued += count
        decided = [decide(self.rule.strategy, votes, self.budget) for votes in taken]
        return [
            self._closed(decision, len(votes), sum(vote.tokens for vote in votes))
            for decision, votes in zip(decided, taken, strict=True)
        ]

    def _closed(self, decision: Decision, issued: int, issued_tokens: int) -> Decision:
        rule = self.rule
        return dataclasses.replace(
            decision,
            issued=issued,
            issued_tokens=issued_tokens,
            promise=rule.promise,
            abstains=rule.covers_sure_only and not stopped(rule.strategy, decision.votes),
        )


def _told(votes: Waves, strategy: Strategy, on_vote: OnVote) -> Iterator[Vote]:
    """Yield the votes, telling of each before it is used."""
    taken: list[Vote] = []
    with contextlib.closing(votes):
        for vote in votes:
            taken.append(vote)
            on_vote(vote, chosen(strategy, taken))
            yield vote
