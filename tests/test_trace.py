"""c while a response is written: the same number however it is read, and a calibrated one."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import tiny_models
from grace.cnf import HeadShape, add_cnf, set_rows
from grace.engines import LAST, Features, Sampling
from grace.engines.transformers import TransformersEngine
from grace.errors import ModelError
from grace.evidence import FEATURES, Evidence, Running, along, clipped, confidence, sigmoid, traced
from grace.evidence.trace import TRACE_FEATURES, Trace, features_at
from grace.methods.grace.fit import Steps, fit_readout
from grace.methods.grace.trace import STEPS, draw_steps, fit_trace
from grace.metrics import ece
from made_up_evidence import TRACE

EVIDENCE = Evidence(
    (0.3, -0.2, 0.1, 0.2, 1.5, -0.7, 0.6, 1.2),
    (-0.5, -1.0, -2.0, 0.7, 0.4, 0.5, 0.6, 0.5),
    0.4,
    trace=TRACE,
)
READINGS = [(0.5, -0.3, 0.9), (-1.0, 2.2, 0.4), (2.0, 1.1, -0.8)]  # end, prompt, answer


def test_along_the_way_is_the_trace_and_at_the_end_the_confidence():
    logprobs, ends = [-0.2, -1.5], [-3.0, -2.0, -0.1]
    found = along(READINGS, logprobs, ends, EVIDENCE)
    plain = along(READINGS, logprobs, ends, dataclasses.replace(EVIDENCE, trace=None))
    assert found[-1] == plain[-1]
    assert found[:-1] != pytest.approx(plain[:-1], abs=0.01)
    pooled = np.array([(0.5, -0.3, 0.9), (-1.0, -0.3, 0.4), (2.0, -0.3, -0.2)])
    rows = features_at(clipped(logprobs), np.array([0, 1, 2]), pooled)
    wanted = [sigmoid(TRACE.log_odds(tuple(row))) for row in rows[:2]]
    assert found[:-1] == pytest.approx(wanted, abs=1e-12)


def test_the_last_token_counts_in_the_last_value_alone_which_is_c():
    weights = list(EVIDENCE.weights)
    weights[FEATURES.index("last_prob")] = 0.0
    without = dataclasses.replace(EVIDENCE, weights=tuple(weights))
    given = READINGS, [-0.2, -1.5], -0.1
    found, other = (traced(*given, evidence) for evidence in (EVIDENCE, without))
    assert found[:-1] == other[:-1]
    assert abs(found[-1] - other[-1]) > 0.001
    for trace, evidence in ((found, EVIDENCE), (other, without)):
        assert trace[-1] == pytest.approx(confidence(*given, evidence), abs=1e-12)


def test_a_response_that_was_cut_has_a_trace_of_the_trace_alone():
    found = along(READINGS[:2], [-0.2, -1.5], [-3.0, -2.0], EVIDENCE)
    assert found == along(READINGS, [-0.2, -1.5], [-3.0, -2.0, -0.1], EVIDENCE)[:2]


def test_c_so_far_knows_nothing_of_what_follows():
    running = Running(EVIDENCE)
    running.read(READINGS[0], -3.0)
    first = running.so_far()
    running.add(-0.2)
    running.read(READINGS[1], -2.0)
    assert first == along([READINGS[0], (9.0,) * 3], [-7.0], [-1.0, -1.0], EVIDENCE)[0]
    assert running.so_far() != first


def test_features_are_clipped_to_those_of_training_and_c_to_what_it_supports():
    row = [0.0] * len(TRACE_FEATURES)
    far, edge = list(row), list(row)
    far[10], edge[10] = 1e6, 9.0
    assert TRACE.log_odds(tuple(far)) == TRACE.log_odds(tuple(edge))
    strict = dataclasses.replace(TRACE, limit=0.1)
    assert abs(strict.log_odds(tuple(edge))) == 0.1


def test_it_is_kept_in_grace_json_and_recalibrated_with_c():
    assert Evidence.from_dict(EVIDENCE.to_dict()) == EVIDENCE
    assert "trace" not in dataclasses.replace(EVIDENCE, trace=None).to_dict()
    row = np.linspace(-1, 1, len(TRACE_FEATURES))
    total = TRACE.log_odds(tuple(row))
    read = float(np.array(TRACE.weights[-4:]) @ row[-4:])
    for rows, evidence in ((0.5, 0.5), (0.2, 0.9)):
        moved = EVIDENCE.mapped(rows, evidence, 1.0).trace.log_odds(tuple(row))
        assert moved == pytest.approx(rows * read + evidence * (total - read) + 1.0)
    with pytest.raises(ModelError, match="this version knows"):
        Trace.from_dict({**TRACE.to_dict(), "features": ["length"]})


@pytest.mark.parametrize("batch", [1, 16])
def test_generating_and_one_forward_over_the_whole_answer_give_the_same_trace(batch):
    model, tokenizer = tiny_models.model("llama_untied"), tiny_models.tokenizer()
    cnf = add_cnf(model, tokenizer, head="linear")
    width = model.get_output_embeddings().weight.shape[1]
    set_rows(model, cnf.readout, np.random.default_rng(3).normal(size=(4, width)))
    engine = TransformersEngine(model, tokenizer, evidence=EVIDENCE, batch_size=batch)
    prompts = tiny_models.prompts(tokenizer, 8)
    sampling = Sampling(2, 1.0, max_new_tokens=12, seed=5)
    rows = [(prompts[i], one) for i, made in engine.generate(prompts, sampling) for one in made]
    assert len({len(one.token_ids) for _, one in rows}) > 2  # ragged
    again = engine.traces([p for p, _ in rows], [one.token_ids for _, one in rows])
    for (_, one), trace in zip(rows, again, strict=True):
        count = len(one.trace)
        assert trace[:count] == pytest.approx(one.trace, abs=1e-5)
        assert len(trace) == len(one.token_ids) + 1


def test_states_at_steps_are_those_of_shorter_answers():
    """The state that chooses token k, and the mean over those before, know nothing later."""
    model, tokenizer = tiny_models.model("llama_untied"), tiny_models.tokenizer()
    engine = TransformersEngine(model, tokenizer)
    prompts = tiny_models.prompts(tokenizer, 8)[:3]
    responses = [[9, 10, 11, 12, 13], [11], [14, 15, 16]]
    steps = [[0, 2, 4], [0, 0, 0], [0, 1, 2]]
    pooled, at_steps = engine.states(prompts, responses, steps)[LAST]
    alone = engine.features(prompts, responses)
    np.testing.assert_allclose(pooled.mean_ND, alone.mean_ND, atol=1e-6)
    for row, places in enumerate(steps):
        for column, k in enumerate(places):
            short = engine.features([prompts[row]], [responses[row][:k]])
            found = at_steps.at_NBD[row, column], at_steps.mean_NBD[row, column]
            np.testing.assert_allclose(found[0], short.last_ND[0], atol=1e-5)
            np.testing.assert_allclose(found[1], short.mean_ND[0], atol=1e-5)


def test_steps_are_drawn_in_equal_parts_of_an_answer():
    steps = draw_steps([80, 3, 1, 0], seed=0)
    assert steps.shape == (4, STEPS)
    assert [k // 10 for k in steps[0]] == list(range(8))
    assert steps[1].max() == 2 and set(steps[2]) == {0} == set(steps[3])
    assert (draw_steps([80], 0) != draw_steps([80], 1)).any()


def world(count, seed):
    """Answers of 12 tokens whose state says from a random step on whether they will be right."""
    rng = np.random.default_rng(seed)
    right = rng.random(count) < 0.5
    told = rng.integers(0, 12, count)
    states = rng.normal(size=(count, 13, 6))
    says = np.where(right, 1.0, -1.0)[:, None] * (np.arange(13) >= told[:, None])
    states[:, :, 0] += 0.5 * says
    logprobs = [list(-rng.exponential(0.3, 12)) for _ in range(count)]
    return right, states, logprobs, told


def means(states):
    """The mean of the states after the first up to each step; the first itself at step 0."""
    later = states[:, 1:].cumsum(1) / np.arange(1, 13)[:, None]
    return np.concatenate([states[:, :1], later], axis=1)


def test_readings_of_the_folds_are_at_one_level_however_far_the_states_are_from_0():
    """A direction that all states share would else tell the folds apart, which says nothing."""
    right, states, logprobs, _ = world(600, seed=0)
    traces = []
    for shared in (0.0, 300.0):
        moved = states + shared * np.eye(6)[1]
        pooled = Features(moved[:, 1:].mean(1), moved[:, -1], moved[:, 0])
        phi = np.random.default_rng(1).normal(size=(600, 8))
        made = fit_readout(
            lambda _, pooled=pooled: pooled, phi, right, list(range(600)), HeadShape(np.zeros(6))
        )
        steps, row = draw_steps([12] * 600, 0), np.arange(600)[:, None]
        known = Steps(moved[row, steps], means(moved)[row, steps], moved[:, 0], steps, logprobs)
        found = fit_trace(made, known, right, list(range(600)))
        traces.append(found.losses.mean())
    assert traces[1] == pytest.approx(traces[0], abs=1e-6)


def test_it_is_calibrated_at_every_step_and_ranks_better_the_more_is_written():
    count = 700
    right, states, logprobs, _ = world(count, seed=0)
    counts, groups = [12] * count, list(range(count))
    pooled = Features(states[:, 1:].mean(1), states[:, -1], states[:, 0])
    phi = np.random.default_rng(1).normal(size=(count, 8))
    steps, row = draw_steps(counts, 0), np.arange(count)[:, None]
    known = Steps(states[row, steps], means(states)[row, steps], states[:, 0], steps, logprobs)
    made = fit_readout(
        lambda _, pooled=pooled: pooled, phi, right, groups, HeadShape(np.zeros(6)), along=known
    )
    found = fit_trace(made, known, right, groups)
    rate = right.mean()
    assert found.losses.mean() < -rate * np.log(rate) - (1 - rate) * np.log1p(-rate) - 0.05

    evidence = dataclasses.replace(made.evidence, trace=found.trace)
    differences_QD = made.rows_ED[:-1] - made.rows_ED[-1]
    fresh_right, fresh, fresh_logprobs, _ = world(1500, seed=9)
    traces = np.array(
        [
            traced((one @ differences_QD.T).tolist(), logs, -0.1, evidence)
            for one, logs in zip(fresh, fresh_logprobs, strict=True)
        ]
    )
    gaps = [traces[fresh_right, k].mean() - traces[~fresh_right, k].mean() for k in (0, 4, 8, 11)]
    assert gaps == sorted(gaps) and gaps[-1] > 0.2
    along_the_way = traces[:, :12].ravel()
    assert ece(along_the_way, np.repeat(fresh_right, 12)) < 0.035


@pytest.mark.parametrize("common", [True, False])
def test_the_rows_learn_from_the_steps_where_the_ends_lose_nothing_by_it(common):
    """What tells midway how it ends also tells at the end, or there something else does."""
    count, rng = 300, np.random.default_rng(0)
    right, groups = rng.random(count) < 0.5, list(range(count))
    sign_N = np.where(right, 1.0, -1.0)
    states = rng.normal(size=(count, 13, 6))
    states[:, :-1, 1] += 0.6 * sign_N[:, None]
    states[:, -1, 1 if common else 0] += 0.6 * sign_N
    pooled = Features(rng.normal(size=(count, 6)), states[:, -1], rng.normal(size=(count, 6)))
    steps, row = draw_steps([12] * count, 0), np.arange(count)[:, None]
    logprobs = [list(-rng.exponential(0.3, 12)) for _ in range(count)]
    noise = rng.normal(size=(count, STEPS, 6))
    known = Steps(states[row, steps], noise, pooled.first_ND, steps, logprobs)
    phi = np.insert(rng.normal(size=(count, 7)), 6, 0.0, axis=1)
    ends, both = (
        fit_readout(
            lambda _, pooled=pooled: pooled, phi, right, groups, HeadShape(np.zeros(6)), along=along
        )
        for along in (None, known)
    )
    assert both.losses.shape == both.held_out.shape == both.fold_N.shape == (count,)
    if common:
        told = [made.weights_QD[0, 1] / np.linalg.norm(made.weights_QD[0]) for made in (ends, both)]
        losses = [fit_trace(made, known, right, groups).losses.mean() for made in (ends, both)]
        assert told[0] < 0.98 < 0.99 < told[1]
        assert both.losses.mean() < ends.losses.mean() and losses[1] < losses[0]
    else:
        assert both.weights_QD.tolist() == ends.weights_QD.tolist()
