"""Votes over sampled answers: on one question as samples arrive, or on many in common waves."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from grace.engines import AT_ONCE, ModelEngine, Sampling
from grace.engines.base import check_contexts
from grace.model.rules import Voting
from grace.records import Decision, Generation, Vote
from grace.strategies import Strategy, Waves, check_count, chosen, decide, stopped

OnVote = Callable[[Vote, str | None], None]
Ids = Sequence[int]
KEY = "0"  # all questions share random numbers, so an answer does not depend on the others


@dataclass(frozen=True, slots=True)
class Ballot:
    """The settings of a vote, which decide one question or many.

    Attributes:
        engine: the model.
        read: turns a response into a vote.
        rule: the strategy, and the guarantee of its threshold.
        budget: maximum number of samples of a question.
        parallel: number of samples in flight at a time.
        sampling: the settings of one sample.
    """

    engine: ModelEngine
    read: Callable[[Generation], Vote]
    rule: Voting
    budget: int
    parallel: int
    sampling: Sampling

    def __post_init__(self) -> None:
        check_count(self.budget, "the budget")
        check_count(self.parallel, "parallel")

    def decide(self, prompt: Ids, on_vote: OnVote | None = None) -> Decision:
        """Sample the answers to one question until the strategy stops; cancel the rest.

        If all samples are dropped, the last one is drawn again to its end, so that the question
        gets an answer.
        """
        strategy, stream = self.rule.strategy, self.engine.stream(prompt, self.sampling)
        answered, last, again = False, self.budget - 1, 0

        def issue(numbers: range) -> Iterator[tuple[int, Vote]]:
            nonlocal answered, again
            final: Vote | None = None
            with contextlib.closing(stream.start(numbers)) as running:
                for number, generation in running:
                    vote = self.read(generation)
                    answered = answered or vote.answer is not None
                    if number == last and generation.finish_reason == "dropped":
                        final = vote
                    else:
                        yield number, vote
            if final and not answered:
                whole = self.engine.stream(prompt, dataclasses.replace(self.sampling, drop=0.0))
                with contextlib.closing(whole.start(range(last, self.budget))) as running:
                    ((_, generation),) = running
                final, again = self.read(generation), whole.tokens
            if final:
                yield last, final

        waves = Waves(issue, self.budget, self.parallel)
        votes = waves if on_vote is None else _reported(waves, strategy, on_vote)
        decision = decide(strategy, votes, self.budget)
        return self._closed(decision, waves.issued, stream.tokens + again)

    def decide_all(self, prompts: Sequence[Ids]) -> list[Decision]:
        """Sample for all questions together, wave by wave, and decide each.

        The samples are those of `decide`, but a wave is finished before it is judged. Samples can
        be dropped in a stream only, so a strategy that drops decides one question after the other.
        """
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
            abstains=bool(rule.promise) and not stopped(rule.strategy, decision.votes),
        )


def _reported(votes: Waves, strategy: Strategy, on_vote: OnVote) -> Iterator[Vote]:
    """Yield the votes; call `on_vote` before each one is used."""
    taken: list[Vote] = []
    with contextlib.closing(votes):
        for vote in votes:
            taken.append(vote)
            on_vote(vote, chosen(strategy, taken))
            yield vote


def sampled(
    engine: ModelEngine, prompts: Iterable[Ids], sampling: Sampling
) -> Iterator[list[Generation]]:
    """Yield the samples of each prompt, in the order of the prompts.

    `AT_ONCE` prompts are read and sampled at a time, so there may be any number of them.

    Raises:
        ModelError: a prompt and its response could exceed the model's context.
    """
    source, start = iter(prompts), 0
    while batch := list(itertools.islice(source, AT_ONCE)):
        is_one = start == 0 and len(batch) == 1
        numbers = () if is_one else [str(start + at) for at in range(len(batch))]
        check_contexts(batch, engine.limit, sampling.max_new_tokens, numbers)
        waiting: dict[int, list[Generation]] = {}
        expected = 0
        for at, made in engine.generate(batch, sampling, keys=[KEY] * len(batch)):
            waiting[at] = made
            while expected in waiting:
                yield waiting.pop(expected)
                expected += 1
        start += len(batch)
