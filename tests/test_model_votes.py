"""A live vote is the replay of its samples, for every strategy, budget and number in flight."""

from __future__ import annotations

import copy
import dataclasses
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import grace
from grace.engines import Sampling
from grace.model import Model
from grace.model.rules import usual_strategy
from grace.records import Decision, Threshold, Vote
from grace.scaling import Pool
from grace.scaling.replaying import outcomes
from grace.strategies import POLICIES, FittedVote, chosen, decide, load
from grace.strategies.tally import VoteTable
from grace.strategies.vote import FREE
from instead import Instead

QUESTIONS = ("What is 1?", "What is 2 and 14?")
LONGEST = 8  # tokens: some samples are cut, and have no confidence
MOST = 8
LIVE = [name for name in POLICIES if not name.startswith(("p_true", "verbal"))]
STOPPING = ["esc,window=2", "asc,threshold=0.6", "grace-es,threshold=SURE"]
STRATEGIES = [*LIVE, *STOPPING]


def few_answers(text: str, choices: Any = ()) -> str | None:
    """One of three answers, or none: so that some agree."""
    return ("A", "A", "B", None, "A", "C")[zlib.crc32(text.encode()) % 6]


@pytest.fixture(scope="module")
def model(finished: Path) -> Model:
    model = grace.load(finished / "run")
    model.sample = dataclasses.replace(model.sample, max_new_tokens=LONGEST)
    model.task = Instead(model.task, answer=few_answers)  # type: ignore[assignment]
    return model


def test_an_empty_sample_wins_no_vote(model: Model) -> None:
    """Samples with an even number say nothing, with a confidence of 0.99."""
    sure = {"text": " \n", "finish_reason": "stop", "confidence": 0.99}

    def generate(prompts: Any, sampling: Sampling, **options: Any) -> Any:
        for at, made in model.engine.generate(prompts, sampling, **options):
            pairs = enumerate(made, start=sampling.first_sample)
            yield at, [one if n % 2 else dataclasses.replace(one, **sure) for n, one in pairs]

    def answer(text: str, choices: Any = ()) -> str:
        return "nothing" if not text.strip() else "A"

    silent = copy.copy(model)
    silent.engine = Instead(model.engine, generate=generate)  # type: ignore[assignment]
    silent.task = Instead(model.task, answer=answer)  # type: ignore[assignment]
    for strategy in ("es", "best", "grace-sc", "sc"):
        (decision,) = silent.vote(["What is 1?"], strategy=strategy, budget=4)
        assert (decision.answer, decision.votes[0].answer) == ("A", None)
        assert (decision.confidence or 0) < 0.99 and decision.votes[0].confidence is None


@pytest.fixture(scope="module")
def streams(model: Model) -> dict[str, list[Vote]]:
    """The samples of each question as separate calls give them."""

    def vote(question: str, number: int) -> Vote:
        sampling = Sampling(1, 0.8, model.sample.top_p, LONGEST, seed=4, first_sample=number)
        prompt = model.encode(question)
        ((_, (given,)),) = model.engine.generate([prompt], sampling, keys=["0"])
        tokens = len(given.token_ids)
        return Vote(model.task.answer(given.text), given.confidence, tokens, given.text.strip())

    return {question: [vote(question, n) for n in range(MOST)] for question in QUESTIONS}


def named(name: str, votes: list[Vote]) -> str:
    """Return a strategy's name, with a threshold between the confidences of the samples."""
    third, second = sorted(vote.confidence or 0.0 for vote in votes)[-3:-1]
    return name.replace("SURE", f"{(second + third) / 2!r}")


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_live_vote_is_the_replay_of_its_samples(name: str, model: Model, streams: Any):
    """Vote by vote and in tables, bit for bit."""
    for question, votes in streams.items():
        strategy: Any = load(named(name, votes))
        codes = [-1 if vote.answer is None else "ABC".index(vote.answer) for vote in votes]
        pool = Pool([codes], np.ones((1, MOST)))
        values = [[np.nan if vote.confidence is None else vote.confidence for vote in votes]]
        table = VoteTable(pool.answer_QS, np.array(values))
        budgets = (2, MOST)  # one sample is plain generation: below
        for budget, found in zip(budgets, outcomes(strategy, table, list(budgets)), strict=True):
            live = model.vote(question, strategy=strategy, budget=budget, seed=4)
            assert live == decide(strategy, votes, budget)
            first = found.chosen_R[0]
            assert live.samples == found.used_R[0]
            assert live.answer == (None if first < 0 else votes[first].answer)


@pytest.mark.parametrize("name", [*STOPPING, "grace-vote", "sc"])
def test_samples_side_by_side_decide_as_one_after_the_other(name: str, model: Model, streams: Any):
    for question, votes in streams.items():
        how: Any = {"strategy": named(name, votes), "budget": MOST, "seed": 4}
        alone = model.vote(question, **how)
        assert alone.issued == alone.samples and alone.issued_tokens == alone.tokens
        for parallel in (3, MOST):
            waved = model.vote(question, **how, parallel=parallel)
            assert same(alone) == same(waved)
            assert waved.confidence == pytest.approx(alone.confidence, abs=1e-5)
            assert waved.issued == min(-(-waved.samples // parallel) * parallel, MOST)
            assert waved.issued_tokens >= waved.tokens


def same(decision: Decision) -> Any:
    """Return all of a decision but its confidences, which differ by the last bits."""
    votes = [dataclasses.replace(vote, confidence=None) for vote in decision.votes]
    return decision.answer, decision.samples, decision.tokens, votes


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_budget_of_one_is_plain_generation(name: str, model: Model, streams: Any):
    for question, votes in streams.items():
        decision = model.vote(question, strategy=named(name, votes), budget=1, seed=4)
        reply = model.ask(question, temperature=0.8, seed=4)
        assert (decision.answer, decision.tokens) == (reply.answer, reply.tokens)
        assert decision.votes == (votes[0],)
        if reply.answer is not None:
            near = 1e-3 if name == "grace-vote" else 0  # it takes c as no nearer to 0 or 1
            assert decision.confidence == pytest.approx(reply.confidence, abs=near, rel=0)


def test_a_vote_that_is_sure_leaves_no_work(model: Model, monkeypatch: pytest.MonkeyPatch):
    forward, calls = type(model.engine.model).forward, []

    def counted(self: Any, *arguments: Any, **options: Any) -> Any:
        calls.append(1)
        return forward(self, *arguments, **options)

    monkeypatch.setattr(type(model.engine.model), "forward", counted)
    decision = model.vote(QUESTIONS[0], threshold=0.0, budget=8, parallel=4)
    used = len(calls)
    longest = max(vote.tokens for vote in decision.votes)
    assert decision.samples < decision.issued == 4
    assert used <= 1 + longest + 1  # the prompt, then one pass per token of the longest used
    assert decision.tokens < decision.issued_tokens <= 4 * (longest + 1)
    model.ask(QUESTIONS[0])
    assert len(calls) > used


def test_every_vote_that_is_used_is_told_as_it_comes(model: Model) -> None:
    told: list[tuple[Vote, str | None]] = []
    decision = model.vote(
        QUESTIONS[0],
        strategy="grace-sc",
        budget=6,
        parallel=3,
        seed=4,
        on_vote=lambda vote, leading: told.append((vote, leading)),
    )
    assert tuple(vote for vote, _ in told) == decision.votes
    rule = load("grace-sc")
    assert [leading for _, leading in told] == [
        chosen(rule, decision.votes[: number + 1]) for number in range(len(told))
    ]
    assert told[-1][1] == decision.answer
    sure = model.vote(
        QUESTIONS[0], threshold=0, budget=6, parallel=3, seed=4, on_vote=lambda *each: None
    )
    assert sure == model.vote(QUESTIONS[0], threshold=0, budget=6, parallel=3, seed=4)


def test_a_vote_without_a_strategy_is_that_of_its_threshold_or_the_fitted_one() -> None:
    fitted, stops = FittedVote(), Threshold("early-stop", 8, 0.8, 0.7, 0.05, 0.9, 99, 0.7, "")
    given = dataclasses.replace(stops, weights=FREE)
    none, single = dataclasses.replace(stops, tau=None), dataclasses.replace(stops, mode="answer")
    for promise in (None, none, single):
        assert usual_strategy(promise, None) == "es"
        assert usual_strategy(promise, fitted) == "grace-vote"
    assert [usual_strategy(stops, one) for one in (None, fitted)] == ["es", "es"]
    assert [usual_strategy(given, one) for one in (None, fitted)] == ["grace-vote", "grace-vote"]
