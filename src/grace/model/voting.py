"""Votes over sampled answers: on one question as samples arrive, or on many in common waves."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass

from grace.engines import AT_ONCE, Sampling
from grace.engines.base import ModelEngine, check_contexts
from grace.model.arguments import Asked
from grace.model.rules import Voting, promised
from grace.records import Decision, Response, Vote
from grace.strategies import Strategy, check_count, chosen, decide, stopped, waves

OnVote = Callable[[Vote, str | None], None]
KEY = "0"  # all questions share random numbers, so an answer does not depend on the others


@dataclass(frozen=True, slots=True)
class Ballot:
    """The settings of a vote, which decide one question or many."""

    engine: ModelEngine
    answer: Callable[[str, Sequence[str]], str | None]  # `Task.answer`: text and options to answer
    rule: Voting  # the strategy, and the guarantee of its threshold
    budget: int  # most samples of a question
    parallel: int  # samples in flight at a time
    sampling: Sampling  # of one sample

    def __post_init__(self) -> None:
        check_count(self.budget, "the budget")
        check_count(self.parallel, "parallel")

    def decide(self, asked: Asked, on_vote: OnVote | None = None) -> Decision:
        """Sample the answers to one question until the strategy stops; cancel the rest."""
        (sampling,) = self.sampling.by_length([asked.choices])
        strategy, stream = self.rule.strategy, self.engine.stream(asked.prompt, sampling)
        familiar = None

        def issue(numbers: range) -> Iterator[tuple[int, Vote]]:
            nonlocal familiar
            with contextlib.closing(stream.start(numbers)) as running:
                for number, generation in running:
                    familiar = generation.familiar
                    yield number, self._vote(generation, asked.choices)

        votes = waves(issue, self.budget, self.parallel)
        if on_vote is not None:
            votes = _reported(votes, strategy, on_vote)
        decision = decide(strategy, votes, self.budget)
        whole_waves = -(-decision.samples // self.parallel) * self.parallel
        issued = min(whole_waves, self.budget)
        return self._closed(decision, issued, stream.tokens, familiar)

    def decide_all(self, asked: Sequence[Asked]) -> list[Decision]:
        """Sample for all questions together, wave by wave, and decide each, as `decide` would."""
        taken: list[list[Vote]] = [[] for _ in asked]
        familiar: list[float | None] = [None for _ in asked]
        open_, issued = list(range(len(asked))), 0
        while open_ and issued < self.budget:
            count = min(self.parallel, self.budget - issued)
            wave = dataclasses.replace(self.sampling, num_samples=count, first_sample=issued)
            made = sampled(self.engine, [asked[place] for place in open_], wave)
            for place, (one, generations) in zip(open_, made, strict=True):
                taken[place] += [self._vote(sample, one.choices) for sample in generations]
                familiar[place] = generations[-1].familiar  # of the prompt, so of every sample
            open_ = [place for place in open_ if not stopped(self.rule.strategy, taken[place])]
            issued += count
        decided = [decide(self.rule.strategy, votes, self.budget) for votes in taken]
        return [
            self._closed(decision, len(votes), sum(vote.tokens for vote in votes), near)
            for decision, votes, near in zip(decided, taken, familiar, strict=True)
        ]

    def _vote(self, sample: Response, choices: Sequence[str]) -> Vote:
        text = sample.text.strip()
        answer = self.answer(sample.text, choices) if text else None
        return Vote(answer, sample.confidence if text else None, len(sample.token_ids), text)

    def _closed(
        self, decision: Decision, issued: int, issued_tokens: int, familiar: float | None
    ) -> Decision:
        rule = self.rule
        return dataclasses.replace(
            decision,
            issued=issued,
            issued_tokens=issued_tokens,
            promise=promised(rule.promise, familiar),
            familiar=familiar,
            abstains=bool(rule.promise) and not stopped(rule.strategy, decision.votes),
        )


def _reported(
    votes: Generator[Vote, None, None], strategy: Strategy, on_vote: OnVote
) -> Generator[Vote, None, None]:
    """Yield the votes; call `on_vote` before each one is used."""
    taken: list[Vote] = []
    with contextlib.closing(votes):
        for vote in votes:
            taken.append(vote)
            on_vote(vote, chosen(strategy, taken))
            yield vote


def sampled(
    engine: ModelEngine, questions: Iterable[Asked], sampling: Sampling
) -> Iterator[tuple[Asked, list[Response]]]:
    """Yield each question with its samples, in order; `AT_ONCE` are sampled at a time."""
    source, start = iter(questions), 0
    while batch := list(itertools.islice(source, AT_ONCE)):
        is_one = start == 0 and len(batch) == 1
        numbers = () if is_one else [str(start + at) for at in range(len(batch))]
        prompts = [one.prompt for one in batch]
        check_contexts(prompts, engine.limit, sampling.max_new_tokens, numbers)
        waiting: dict[int, list[Response]] = {}
        expected = 0
        for one, places in sampling.by_length(each.choices for each in batch).items():
            asked = [prompts[place] for place in places]
            for at, made in engine.generate(asked, one, keys=[KEY] * len(asked)):
                waiting[places[at]] = made
                while expected in waiting:
                    yield batch[expected], waiting.pop(expected)
                    expected += 1
        start += len(batch)
