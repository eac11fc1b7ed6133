from __future__ import annotations

import dataclasses
import logging

import numpy as np
import pytest
import torch
from slow_engine import assert_naive

import tiny_models
from alike import assert_alike
from grace.cnf import add_cnf
from grace.engines import Sampling
from grace.engines.local import decoding
from grace.engines.local.forward import left_pad
from grace.engines.local.sampling import _draw
from grace.engines.transformers import TransformersEngine
from grace.errors import DataError, ModelError
from grace.records import is_whole

every_architecture = pytest.mark.parametrize("tiny", tiny_models.ARCHITECTURES, indirect=True)
GREEDY = Sampling(max_new_tokens=10)
SAMPLED = Sampling(max_new_tokens=10, temperature=1.0, num_samples=4, seed=5)
CLOSE = 1e-5


def engine_of(tiny, read_at="predict", **options):
    """An engine whose c differs from p(EOS) and is sometimes large."""
    model, tokenizer = tiny
    token = add_cnf(model, tokenizer)
    with torch.no_grad():
        model.get_output_embeddings().weight[token.id] *= 0.9
    return TransformersEngine(model, tokenizer, read_at, **options)


def generate(engine, prompts, sampling, keys=None):
    results = dict(engine.generate(prompts, sampling, keys=keys))
    assert sorted(results) == list(range(len(prompts)))
    return [results[i] for i in range(len(prompts))]


def ended_pairs(prompts, results):
    found = [
        (prompt, generation)
        for prompt, generations in zip(prompts, results, strict=True)
        for generation in generations
        if is_whole(generation)
    ]
    assert found
    return [p for p, _ in found], [g for _, g in found]


@pytest.mark.parametrize(
    ("tiny", "read_at", "sampling"),
    [
        *((name, "feed", SAMPLED) for name in ("qwen2", "gpt_neox", "gemma2")),
        ("gemma2", "predict", GREEDY),
        ("llama_tied", "predict", dataclasses.replace(SAMPLED, temperature=0.7, top_p=0.8, seed=1)),
    ],
    indirect=["tiny"],
)
def test_generation_equals_a_naive_loop_without_cache_padding_or_batch(tiny, read_at, sampling):
    engine = engine_of(tiny, read_at)
    prompts = tiny_models.prompts(engine.tokenizer, 4)
    assert_naive(engine, prompts, generate(engine, prompts, sampling), sampling, CLOSE)


@pytest.mark.parametrize("tiny", tiny_models.HYBRIDS, indirect=True)
def test_a_memory_that_runs_along_the_sequence_stays_with_its_row(tiny):
    engine = engine_of(tiny)  # in float32 its chunks and its steps agree to about 2e-5
    prompts = tiny_models.prompts(engine.tokenizer, 4)
    made = generate(engine, prompts, SAMPLED)
    assert len({len(one.token_ids) for several in made for one in several}) > 2  # some end early
    assert_naive(engine, prompts, made, SAMPLED, 1e-4)
    answers = [list(several[0].token_ids) or [7] for several in made]
    together = engine.features(prompts, answers)
    alone = [engine.features([p], [a]) for p, a in zip(prompts, answers, strict=True)]
    means = np.concatenate([one.mean_ND for one in alone])
    np.testing.assert_allclose(together.mean_ND, means, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("tiny", "read_at", "sampling", "batch_size"),
    [
        *((name, "feed", SAMPLED, 16) for name in tiny_models.ARCHITECTURES),
        ("llama_untied", "predict", GREEDY, 16),
        ("qwen2", "feed", GREEDY, 1),
    ],
    indirect=["tiny"],
)
def test_c_and_logprobs_of_generation_equal_a_teacher_forced_forward(
    tiny, read_at, sampling, batch_size
):
    engine = engine_of(tiny, read_at, batch_size=batch_size)
    prompts = tiny_models.prompts(engine.tokenizer, 16 if batch_size > 1 else 4)
    sampling = dataclasses.replace(sampling, max_new_tokens=16)
    if engine.model.config.model_type == "gemma2":
        sampling = dataclasses.replace(sampling, max_new_tokens=24)
    contexts, generations = ended_pairs(prompts, generate(engine, prompts, sampling))
    responses = [g.token_ids for g in generations]
    scored = engine.confidences(contexts, responses)
    assert scored == pytest.approx([g.confidence for g in generations], abs=CLOSE)
    for got, (logprobs, end) in zip(generations, engine.logprobs(contexts, responses), strict=True):
        assert got.logprobs == pytest.approx(logprobs, abs=CLOSE)
        assert got.end_logprob == pytest.approx(end, abs=CLOSE)


@every_architecture
def test_batched_scoring_equals_one_at_a_time_and_ignores_padding(tiny):
    engine = engine_of(tiny)
    prompts = tiny_models.prompts(engine.tokenizer, 8)
    responses = [p[::-1][: 2 * (i % 4)] for i, p in enumerate(prompts)]
    together = engine.logprobs(prompts, responses)
    states = engine.features(prompts, responses)
    probs = engine.next_token_probs(prompts, [5, 9, engine.reader.cnf])
    assert probs.shape == (8, 3) and probs.dtype == np.float32
    for i, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        [(logprobs, end)] = engine.logprobs([prompt], [response])
        assert together[i][0] == pytest.approx(logprobs, abs=CLOSE)
        assert together[i][1] == pytest.approx(end, abs=CLOSE)
        alone = engine.features([prompt], [response])
        np.testing.assert_allclose(states.mean_ND[i], alone.mean_ND[0], atol=1e-4)
        np.testing.assert_allclose(states.last_ND[i], alone.last_ND[0], atol=1e-4)
        np.testing.assert_allclose(
            probs[i], engine.next_token_probs([prompt], [5, 9, engine.reader.cnf])[0], atol=CLOSE
        )


@every_architecture
def test_features_equal_a_naive_pooling_of_the_last_hidden_states(tiny):
    engine = engine_of(tiny)
    prompts = tiny_models.prompts(engine.tokenizer, 5)
    responses = [[], [7], [8, 9], [10, 11, 12], []]
    features = engine.features(prompts, responses)
    for i, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        with torch.inference_mode():
            out = engine.model(torch.tensor([[*prompt, *response]]), output_hidden_states=True)
        states = out.hidden_states[-1][0].numpy()
        used = states[len(prompt) :] if response else states[-1:]
        np.testing.assert_allclose(features.mean_ND[i], used.mean(0), atol=1e-4)
        np.testing.assert_allclose(features.last_ND[i], states[-1], atol=1e-4)
    assert features.mean_ND.dtype == features.last_ND.dtype == np.float32
    assert engine.features([], []).mean_ND.shape[0] == 0


def test_different_seeds_keys_and_samples_differ_and_equal_ones_repeat(tiny):
    engine = engine_of(tiny)
    prompt = tiny_models.prompts(engine.tokenizer, 8)[-1]
    hot = Sampling(temperature=3.0, num_samples=3, max_new_tokens=12)

    def tokens(sampling, key="a"):
        return [g.token_ids for g in generate(engine, [prompt], sampling, [key])[0]]

    first = tokens(hot)
    assert first == tokens(hot)
    assert len(set(first)) == 3
    assert not set(first) & set(tokens(hot, "b"))
    assert not set(first) & set(tokens(dataclasses.replace(hot, seed=1)))
    longer = tokens(dataclasses.replace(hot, max_new_tokens=20))
    assert all(b[: len(a)] == a for a, b in zip(first, longer, strict=True))


class Scripted(torch.nn.Module):
    """Stands in for a model's head: the same next-token probabilities at every step."""

    def __init__(self, size, hidden, probabilities):
        super().__init__()
        rest = (1 - sum(probabilities.values())) / (size - len(probabilities))
        p = torch.full((size,), rest)
        for token, value in probabilities.items():
            p[token] = value
        self.weight = torch.nn.Parameter(torch.zeros(size, hidden))
        self.log_p = p.log()

    def forward(self, states):
        return self.log_p.expand(*states.shape[:-1], -1).clone()


def scripted(tiny, probabilities):
    model, tokenizer = tiny
    token = add_cnf(model, tokenizer)
    ids = {"eos": tokenizer.eos_token_id, "cnf": token.id, "comma": 40, "other": 41}
    head = Scripted(token.id + 1, 32, {ids[k]: v for k, v in probabilities.items()})
    model.set_output_embeddings(head)
    return TransformersEngine(model, tokenizer)


@pytest.mark.parametrize(("eos", "cnf"), [(0.45, 0.01), (0.01, 0.45), (0.41, 0.4)])
def test_greedy_ends_where_an_end_token_is_the_most_probable_token(tiny, eos, cnf):
    engine = scripted(tiny, {"eos": eos, "cnf": cnf, "comma": 0.1})
    [[got]] = generate(engine, [[5, 6]], GREEDY)
    assert got.token_ids == () and got.finish_reason == "stop"
    assert got.trace == pytest.approx([cnf], abs=CLOSE) and got.confidence is None  # no text
    assert got.end_logprob == pytest.approx(np.log(eos + cnf), abs=CLOSE)


@pytest.mark.parametrize("cnf", [0.2, 0.3, 0.35])
def test_greedy_goes_on_where_the_ends_are_most_probable_only_together(tiny, cnf):
    engine = scripted(tiny, {"eos": 0.55 - cnf, "cnf": cnf, "comma": 0.4})
    [[got]] = generate(engine, [[5, 6]], GREEDY)
    assert got.token_ids == (40,) * 10 and got.finish_reason == "length"


@pytest.mark.parametrize("cnf", [0.01, 0.1, 0.25])
def test_a_larger_cnf_that_is_not_the_most_probable_changes_no_greedy_answer(tiny, cnf):
    """Raising one logit takes from all other tokens alike."""
    model, tokenizer = tiny
    for eos, comma, tokens in ((0.5, 0.4, ()), (0.4, 0.5, (40,) * 10)):
        parts = {"eos": eos * (1 - cnf), "comma": comma * (1 - cnf), "cnf": cnf}
        [[got]] = generate(scripted((model, tokenizer), parts), [[5, 6]], GREEDY)
        assert got.token_ids == tokens


@pytest.mark.parametrize(("temperature", "top_p"), [(0.6, 1.0), (1.5, 1.0), (0.8, 0.7)])
def test_samples_end_as_often_as_where_a_stock_engine_has_both_ends_as_stop_tokens(
    tiny, temperature, top_p
):
    engine = scripted(tiny, {"eos": 0.25, "cnf": 0.2, "comma": 0.35, "other": 0.1})
    sampling = Sampling(2000, temperature, top_p, max_new_tokens=1, seed=2)
    [generations] = generate(engine, [[5, 6]], sampling)
    p = engine.model.get_output_embeddings().log_p.div(temperature).softmax(-1).numpy()
    kept = p >= np.sort(p)[::-1][2] if top_p < 1 else p >= 0  # the three likeliest reach 0.7
    expected = p[list(engine.reader.stops)].sum() / p[kept].sum()
    ended = [g for g in generations if g.finish_reason == "stop"]
    assert len(ended) / len(generations) == pytest.approx(expected, abs=0.03)
    assert [g.end_logprob for g in ended] == pytest.approx([np.log(0.45)] * len(ended), abs=CLOSE)


def test_sampled_frequencies_follow_the_distribution(tiny):
    engine = scripted(tiny, {"eos": 0.1, "cnf": 0.2, "comma": 0.4, "other": 0.2})
    [generations] = generate(engine, [[5, 6]], Sampling(2000, 1.0, max_new_tokens=1, seed=3))
    first = [g.token_ids[0] if g.token_ids else "end" for g in generations]
    for token, p in (("end", 0.3), (40, 0.4), (41, 0.2)):
        assert first.count(token) / 2000 == pytest.approx(p, abs=0.035)


def test_a_small_top_p_keeps_the_likeliest_token_and_counts_each_end_by_itself(tiny):
    engine = scripted(tiny, {"eos": 0.25, "cnf": 0.25, "comma": 0.4})
    [generations] = generate(engine, [[5, 6]], Sampling(50, 1.0, top_p=0.39, max_new_tokens=3))
    assert {g.token_ids for g in generations} == {(40,) * 3}


def test_a_draw_of_zero_never_picks_an_impossible_token():
    logits = torch.tensor([[-torch.inf, 0.0, 1.0, -torch.inf]]).expand(2, -1)
    draws = torch.tensor([0.0, np.nextafter(1.0, 0.0)], dtype=torch.float64)
    assert _draw(logits, 1.0, draws).tolist() == [1, 2]


def test_left_padding_gives_every_token_the_position_it_has_alone():
    ids, mask, positions = left_pad([[7, 8, 9], [5]], torch.device("cpu"), pad=0)
    assert ids.tolist() == [[7, 8, 9], [0, 0, 5]]
    assert mask.tolist() == [[1, 1, 1], [0, 0, 1]]
    assert positions.tolist() == [[0, 1, 2], [0, 0, 0]]


def test_every_eos_id_of_the_generation_config_ends(tiny):
    model, tokenizer = tiny
    model.generation_config.eos_token_id = [17, tokenizer.eos_token_id]
    engine = TransformersEngine(model, tokenizer)
    assert set(engine.reader.stops) == {17, tokenizer.eos_token_id}
    prompts = tiny_models.prompts(tokenizer, 16)
    with torch.no_grad():
        model.get_output_embeddings().weight[17] = model.get_output_embeddings().weight[3]
    for generations in generate(engine, prompts, SAMPLED):
        assert all(17 not in got.token_ids for got in generations)


def test_without_the_token_there_is_no_confidence_but_all_else(tiny):
    model, tokenizer = tiny
    engine = TransformersEngine(model, tokenizer)
    prompts = tiny_models.prompts(tokenizer, 8)
    _, ended = ended_pairs(prompts, generate(engine, prompts, SAMPLED))
    assert engine.reader.cnf is None
    assert all(g.confidence is None and g.trace == () for g in ended)
    assert all(g.end_logprob < 0 for g in ended)
    with pytest.raises(ModelError, match=r"no <CNF>, .*; load a trained adapter"):
        engine.confidences(prompts, prompts)


def test_greedy_equals_generate_of_transformers(tiny):
    model, tokenizer = tiny
    engine = TransformersEngine(model, tokenizer)
    prompts = tiny_models.prompts(tokenizer, 8)
    for prompt, [got] in zip(prompts, generate(engine, prompts, GREEDY), strict=True):
        ids = torch.tensor([prompt])
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=10, do_sample=False
        )
        expected = [i for i in out[0, len(prompt) :].tolist() if i != tokenizer.eos_token_id]
        assert list(got.token_ids) == expected


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: tried 8 bytes"),
        MemoryError(),
    ],
    ids=["cuda", "cpu", "python"],
)
def test_running_out_of_memory_halves_the_batch_and_changes_nothing(
    tiny, monkeypatch, caplog, error
):
    engine = engine_of(tiny)
    prompts = tiny_models.prompts(engine.tokenizer, 6)
    responses = [[7, 8]] * 6
    before = (
        generate(engine, prompts, SAMPLED),
        engine.confidences(prompts, responses),
        engine.logprobs(prompts, responses),
        engine.features(prompts, responses).mean_ND,
    )
    limit_rows(monkeypatch, 2, error)
    with caplog.at_level(logging.WARNING):
        after = generate(engine, prompts, SAMPLED)
    for ours, theirs in zip(before[0], after, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert_alike(one, other)
    assert "out of memory: going on with half the batch" in caplog.text
    assert engine.confidences(prompts, responses) == pytest.approx(before[1], abs=CLOSE)
    for a, b in zip(engine.logprobs(prompts, responses), before[2], strict=True):
        assert a[0] == pytest.approx(b[0], abs=CLOSE)
        assert a[1] == pytest.approx(b[1], abs=CLOSE)
    np.testing.assert_allclose(engine.features(prompts, responses).mean_ND, before[3], atol=1e-4)
    limit_rows(monkeypatch, 0, error)
    with pytest.raises(ModelError, match="out of memory on a single sequence of"):
        generate(engine, prompts, SAMPLED)
    with pytest.raises(ModelError, match="out of memory on a single sequence of"):
        engine.confidences(prompts, responses)


def test_other_errors_are_not_taken_for_a_lack_of_memory(tiny, monkeypatch):
    engine = engine_of(tiny)
    limit_rows(monkeypatch, 0, RuntimeError("shapes do not match"))
    with pytest.raises(RuntimeError, match="shapes do not match"):
        generate(engine, [[5]], GREEDY)


def limit_rows(monkeypatch, rows, error):
    call, decoded = decoding.Forward.__call__, decoding.Forward._decoded

    def limited(method):
        def wrapper(self, unread, **options):
            if len(unread.ids_BC) > rows:
                raise error
            return method(self, unread, **options)

        return wrapper

    monkeypatch.undo()
    monkeypatch.setattr(decoding.Forward, "__call__", limited(call))
    monkeypatch.setattr(decoding.Forward, "_decoded", limited(decoded))


def test_a_prompt_beyond_the_context_is_refused_with_the_lengths(tiny):
    engine = engine_of(tiny)
    fits = dataclasses.replace(GREEDY, max_new_tokens=6)
    generate(engine, [[5] * 250], fits)
    match = (
        "prompt 2 has 252 tokens and its answer up to 6, .* context is 256; .* max_new_tokens to 4$"
    )
    with pytest.raises(ModelError, match=match):
        generate(engine, [[5], [5] * 251, [5] * 252, [5] * 251], fits)
    with pytest.raises(ModelError, match="context is 256"):
        engine.next_token_probs([[5] * 257], [5])


def test_an_empty_prompt_is_refused(tiny):
    engine = engine_of(tiny)
    with pytest.raises(DataError, match="prompt 1 has no tokens"):
        generate(engine, [[5], []], GREEDY)
    with pytest.raises(DataError, match="prompt 0 has no tokens"):
        engine.next_token_probs([[]], [5])


def test_the_plan_is_by_length_within_the_budget_and_repeats(tiny):
    engine = engine_of(tiny, batch_size=2)  # a unit has four rows for each one in flight
    prompts = tiny_models.prompts(engine.tokenizer, 16)
    plan = engine.plan(prompts, num_samples=2)
    assert plan == engine.plan(prompts, num_samples=2)
    assert [len(batch) for batch in plan] == [4, 4, 4, 4]
    lengths = [len(prompts[i]) for batch in plan for i in batch]
    assert lengths == sorted(lengths, reverse=True)
    assert sorted(i for batch in plan for i in batch) == list(range(16))
    assert [len(batch) for batch in engine.plan(prompts, num_samples=100)] == [1] * 16


def test_one_unit_of_the_plan_is_bitwise_what_the_whole_run_gives(tiny):
    engine = engine_of(tiny, batch_size=6)
    prompts = tiny_models.prompts(engine.tokenizer, 12)
    keys = [f"q{i}" for i in range(12)]
    whole = generate(engine, prompts, SAMPLED, keys)
    plan = engine.plan(prompts, SAMPLED.num_samples, SAMPLED.max_new_tokens)
    assert len(plan) == 2
    for batch in reversed(plan):
        unit = engine.generate_unit(
            [prompts[i] for i in batch], SAMPLED, keys=[keys[i] for i in batch]
        )
        assert dict(unit) == dict(enumerate(whole[i] for i in batch))


def test_the_prompt_is_prefilled_once_for_all_its_samples(tiny, monkeypatch):
    engine = engine_of(tiny)
    shapes = []
    call = decoding.Forward.__call__

    def recorded(self, unread, **options):
        shapes.append(tuple(unread.ids_BC.shape))
        return call(self, unread, **options)

    monkeypatch.setattr(decoding.Forward, "__call__", recorded)
    prompts = [[5] * 30, [6] * 20]
    generate(engine, prompts, SAMPLED)
    assert shapes[0] == (2, 30)
    assert all(width == 1 and rows <= 8 for rows, width in shapes[1:])
    assert len(shapes) <= SAMPLED.max_new_tokens
