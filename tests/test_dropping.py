"""Samples that are aborted midway: what is promised, and that live, in waves and replayed agree."""

from __future__ import annotations

import dataclasses
import zlib
from typing import Any

import numpy as np
import pytest

import tiny_models
from grace.cnf import add_cnf, set_rows
from grace.engines import Sampling
from grace.engines.transformers import TransformersEngine
from grace.errors import UserInputError
from grace.model.arguments import Asked
from grace.model.rules import Voting
from grace.model.voting import Ballot
from grace.records import Vote
from grace.scaling import Pool, replay
from grace.strategies import decide, policy
from grace.thresholds import few_dropped
from test_trace import EVIDENCE


def pool(questions: int = 60, samples: int = 8, seed: int = 0) -> Pool:
    """Samples whose confidence drifts to what they are worth."""
    rng = np.random.default_rng(seed)
    chance = rng.random(questions)[:, None]
    right = rng.random((questions, samples)) < chance
    tokens = rng.integers(3, 20, (questions, samples))
    drift = np.where(right, 0.12, -0.12)[..., None] + 0.4 * rng.normal(size=(*right.shape, 20))
    odds = np.log(chance / (1 - chance))[..., None] + drift.cumsum(-1)
    trace = 1 / (1 + np.exp(-odds))
    traces = [
        [trace[q, s, : tokens[q, s]].tolist() for s in range(samples)] for q in range(questions)
    ]
    answers = np.where(right, 0, rng.integers(1, 4, right.shape))
    end = np.take_along_axis(trace, tokens[..., None], 2)[..., 0]
    return Pool(answers, right, tokens, {"grace": end}, traces)


def test_a_dropped_sample_has_no_answer_and_costs_the_tokens_up_to_there():
    made = Pool(
        [[0, 1, 0]],
        [[1, 0, 1]],
        [[3, 3, 2]],
        {"grace": [[0.9, 0.2, 0.8]]},
        [[[0.1, 0.5, 0.6], [0.9, 0.3, 0.9], [0.5, 0.5]]],
    )
    assert made.lowest_right().tolist() == [0.5]  # c before the first token drops nothing
    left = made.dropped(0.4, 3)
    assert left.answer_QS.tolist() == [[0, -1, 0]]
    assert left.tokens_QS.tolist() == [[3, 2, 2]]  # the token chosen at the low step was drawn
    assert np.isnan(left.confidences["grace"][0, 1]) and not left.correct_QS[0, 1]
    assert made.dropped(0.0, 3).tokens_QS.tolist() == [[3, 3, 2]]
    assert made.take([0, 0]).dropped(0.4, 3).tokens_QS.tolist() == [[3, 2, 2]] * 2


def test_the_last_sample_of_a_vote_is_finished_where_none_before_it_has_an_answer():
    made = Pool(
        [[0, 1, 2], [0, 1, 2], [-1, 1, 2]],
        np.ones((3, 3)),
        np.full((3, 3), 3),
        {"grace": np.full((3, 3), 0.5)},
        [[[0.5, 0.1, 0.5]] * 3, [[0.5, 0.9, 0.9], *[[0.5, 0.1, 0.5]] * 2], [[0.5, 0.9, 0.9]] * 3],
    )
    left = made.dropped(0.4, 3)
    assert (left.answer_QS >= 0).tolist() == [
        [False, False, True],
        [True, False, False],
        [False, True, True],
    ]
    assert left.tokens_QS.tolist() == [[2, 2, 3], [3, 2, 2], [3, 3, 3]]
    assert left.correct_QS[0].tolist() == [False, False, True]
    assert made.dropped(0.4, 1).tokens_QS.tolist() == [[3]] * 3  # the only sample is the last
    turned = made.dropped(0.4, 3, (np.array([[1]]), np.array([[2, 1, 0]])))
    assert turned.tokens_QS.tolist() == [[2, 2, 3]] and turned.answer_QS.tolist() == [[-1, -1, 2]]
    (none,) = replay(made, ["grace-drop,drop=0.4"], budgets=[3], orders=4).curves.values()
    assert none.accuracy_BQ.tolist() == [[1, 1, 1]]


def test_a_pool_without_traces_says_how_to_get_them():
    bare = Pool([[0]], [[1]], [[3]], {"grace": [[0.9]]})
    for asked in (lambda: bare.dropped(0.2, 1), bare.lowest_right):
        with pytest.raises(UserInputError, match=r"grace\.trace=true"):
            asked()


def test_replay_drops_and_counts_fewer_tokens_for_the_same_samples():
    found = replay(pool(), ["grace-sc", "grace-drop,drop=0.3"], budgets=[8], orders=3)
    full, less = found.curves.values()
    assert less.samples_BQ.mean() == full.samples_BQ.mean() == 8
    assert less.tokens_BQ.mean() < 0.8 * full.tokens_BQ.mean()


def live_and_replayed(engine: Any, prompt: list[int], name: str, parallel: int) -> tuple[int, bool]:
    """Check that a live vote is the replay of stored samples, in decision and in tokens.

    Return how many samples it dropped, and whether it finished the last as it had dropped all.
    """
    strategy = policy(name).strategy
    whole = Sampling(8, 0.9, max_new_tokens=10, seed=5)
    ((_, samples),) = engine.generate([prompt], whole)

    def answer(text, choices=()):
        return str(zlib.crc32(text.encode()) % 3) if text else None

    stored = Pool.from_answers(
        [[answer(one.text) for one in samples]],
        [[True] * 8],
        [[len(one.token_ids) for one in samples]],
        {"grace": [[one.confidence for one in samples]]},
        [[one.trace[: len(one.token_ids)] for one in samples]],
    )
    left = stored.dropped(strategy.drop, 8)
    votes = [
        Vote(
            None if left.answer_QS[0, s] < 0 else answer(one.text),
            None if np.isnan(left.confidences["grace"][0, s]) else one.confidence,
            int(left.tokens_QS[0, s]),
        )
        for s, one in enumerate(samples)
    ]

    sampling = dataclasses.replace(whole, num_samples=1, drop=strategy.drop)
    live = Ballot(engine, answer, Voting(strategy), 8, parallel, sampling).decide(Asked(prompt, ()))
    wanted = decide(strategy, votes, 8)
    assert (live.answer, live.samples, live.tokens) == (
        wanted.answer,
        wanted.samples,
        wanted.tokens,
    )
    assert live.issued_tokens >= live.tokens
    finished = [one.answer is None for one in live.votes] == [True] * 7 + [False]
    return sum(vote.answer is None for vote in live.votes), finished


@pytest.mark.parametrize("parallel", [1, 3, 8])
@pytest.mark.parametrize(
    "name",
    ["grace-drop,drop=0.45", "grace-es-drop,drop=0.45,threshold=0.55", "grace-drop,drop=1"],
)
def test_a_live_vote_decides_and_spends_what_the_replay_says(name, parallel):
    model, tokenizer = tiny_models.model("llama_untied"), tiny_models.tokenizer()
    cnf = add_cnf(model, tokenizer, head="linear")
    width = model.get_output_embeddings().weight.shape[1]
    set_rows(model, cnf.readout, np.random.default_rng(3).normal(size=(4, width)))
    engine = TransformersEngine(model, tokenizer, evidence=EVIDENCE)
    prompts = tiny_models.prompts(tokenizer, 8)[:4]
    dropped, finished = zip(
        *(live_and_replayed(engine, prompt, name, parallel) for prompt in prompts), strict=True
    )
    assert sum(dropped) and (any(finished) or policy(name).strategy.drop < 1)


def test_few_right_samples_are_dropped_and_too_few_to_tell_drop_none():
    low = np.linspace(0.05, 0.9, 400)
    found = few_dropped(low, 0.1, 0.05)
    assert 0.05 < found.drop < 0.05 + 0.1 * 0.85
    assert found.dropped == (low < found.drop).sum() and found.bound <= 0.1
    assert "at most 10.0% of the right ones" in str(found)
    none = few_dropped(low[:20], 0.1, 0.05)
    assert none.drop == 0.0 and "29 could" in str(none)
    with pytest.raises(UserInputError, match="alpha is 1"):
        few_dropped(low, 1.0)


@pytest.mark.parametrize("delta", [0.05, 0.1, 0.2])
def test_the_promise_is_broken_at_most_as_often_as_it_says(delta):
    """Thresholds from independent draws, checked against the share they drop in the long run."""
    rng = np.random.default_rng(1)
    alpha, broken = 0.1, 0
    for _ in range(1000):
        found = few_dropped(rng.beta(3, 2, 150), alpha, delta)
        broken += found.drop > 0.3205  # the tenth percentile of that distribution
    assert 0 < broken / 1000 <= delta
    assert _broken_on_halves(pool(400), alpha, delta) <= delta


def _broken_on_halves(pool, alpha, delta):
    """Return how often thresholds from random halves drop too many right samples of the pool."""
    rng, right_Q = np.random.default_rng(0), pool.correct_QS[:, 0]
    low_Q = np.full(pool.num_questions, np.nan)
    low_Q[right_Q] = low_N = pool.lowest_right()
    halves = [rng.permutation(pool.num_questions) < pool.num_questions // 2 for _ in range(1000)]
    chosen = [few_dropped(low_Q[half_Q & right_Q], alpha, delta).drop for half_Q in halves]
    return np.mean([(low_N < drop).mean() > alpha for drop in chosen])
