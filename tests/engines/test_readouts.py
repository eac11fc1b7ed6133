"""The ablations while generating: c read at the prompt, and c read from bin tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from slow_engine import assert_naive, by_hand, probabilities

import tiny_models
from grace.chat import encode_chat, encode_text
from grace.cnf import TOKENS, add_cnf
from grace.engines import Sampling
from grace.engines.transformers import TransformersEngine
from grace.errors import ModelError
from grace.evidence import Evidence
from grace.records import is_whole

VARIANTS = [("token", "prompt"), ("bins", "predict"), ("bins", "prompt")]
every_variant = pytest.mark.parametrize(("head", "read_at"), VARIANTS)
architectures = pytest.mark.parametrize("tiny", ["llama_untied", "qwen2"], indirect=True)
GREEDY = Sampling(max_new_tokens=10)
SAMPLED = Sampling(max_new_tokens=10, temperature=1.0, num_samples=4, seed=6)
NUCLEUS = Sampling(max_new_tokens=10, temperature=0.7, top_p=0.8, num_samples=2, seed=1)
CLOSE = 1e-5


def engine_of(tiny, head, read_at, noise=0.3):
    """An engine whose tokens are likely, and whose bins differ between contexts."""
    model, tokenizer = tiny
    cnf = add_cnf(model, tokenizer, head=head)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        rows = model.get_output_embeddings().weight
        for token in cnf.readout.ids:
            rows[token] += noise * torch.randn(rows.shape[1], generator=generator)
    return TransformersEngine(model, tokenizer, read_at)


def generate(engine, prompts, sampling):
    results = dict(engine.generate(prompts, sampling))
    return [results[i] for i in range(len(prompts))]


@pytest.mark.parametrize(
    ("tiny", "sampling"),
    [("llama_untied", GREEDY), ("qwen2", NUCLEUS)],
    indirect=["tiny"],
    ids=["greedy", "top_p"],
)
@every_variant
def test_generation_equals_a_naive_loop_without_cache_padding_or_batch(
    tiny, head, read_at, sampling
):
    engine = engine_of(tiny, head, read_at)
    prompts = tiny_models.prompts(engine.tokenizer, 4)
    assert_naive(engine, prompts, generate(engine, prompts, sampling), sampling, CLOSE)


@architectures
@every_variant
def test_c_and_logprobs_of_generation_equal_a_teacher_forced_forward(tiny, head, read_at):
    engine = engine_of(tiny, head, read_at)
    prompts = tiny_models.prompts(engine.tokenizer, 16)
    rows = [
        (prompt, got)
        for prompt, generations in zip(prompts, generate(engine, prompts, SAMPLED), strict=True)
        for got in generations
        if got.finish_reason == "stop"
    ]
    assert len({len(got.token_ids) for _, got in rows}) > 1
    contexts, responses = [p for p, _ in rows], [got.token_ids for _, got in rows]
    expected = [got.trace[0 if read_at == "prompt" else -1] for _, got in rows]
    assert all(
        got.confidence == (c if is_whole(got) else None)
        for (_, got), c in zip(rows, expected, strict=True)
    )
    assert rows and engine.confidences(contexts, responses) == pytest.approx(expected, abs=CLOSE)
    for (_, got), (logprobs, end) in zip(rows, engine.logprobs(contexts, responses), strict=True):
        assert got.logprobs == pytest.approx(logprobs, abs=CLOSE)
        assert got.end_logprob == pytest.approx(end, abs=CLOSE)


@pytest.mark.parametrize("head", ["token", "bins"])
def test_read_at_the_prompt_the_model_says_what_it_says_without_the_tokens(head):
    plain = TransformersEngine(tiny_models.model("llama_untied"), tiny_models.tokenizer())
    grown = (tiny_models.model("llama_untied"), tiny_models.tokenizer())
    engine = engine_of(grown, head, "prompt", noise=1.0)
    prompts = tiny_models.prompts(plain.tokenizer, 8)
    likely = int(probabilities(engine, prompts[-1]).argmax())
    with torch.no_grad():  # the tokens take much of the mass of what would be said
        rows = engine.model.get_output_embeddings().weight
        rows[engine.readout.ids[-1]] = 2 * rows[likely]
    assert max(engine.next_token_probs(prompts, engine.readout.ids).sum(1)) > 0.3
    responses = [p[::-1][:4] for p in prompts]
    for ours, theirs in zip(
        [*generate(engine, prompts, SAMPLED), *generate(engine, prompts, GREEDY)],
        [*generate(plain, prompts, SAMPLED), *generate(plain, prompts, GREEDY)],
        strict=True,
    ):
        assert [got.token_ids for got in ours] == [got.token_ids for got in theirs]
        for one, other in zip(ours, theirs, strict=True):
            assert one.logprobs == pytest.approx(other.logprobs, abs=CLOSE)
    for ours, theirs in zip(
        engine.logprobs(prompts, responses), plain.logprobs(prompts, responses), strict=True
    ):
        assert ours[0] == pytest.approx(theirs[0], abs=CLOSE)
        assert ours[1] == pytest.approx(theirs[1], abs=CLOSE)


def test_read_at_the_prompt_every_response_to_it_has_the_same_c(tiny):
    engine = engine_of(tiny, "token", "prompt")
    prompt = tiny_models.prompts(engine.tokenizer, 8)[-1]
    [generations] = generate(engine, [prompt], Sampling(20, 1.5, max_new_tokens=20))
    assert len({got.token_ids for got in generations}) > 2
    expected = by_hand(engine, prompt)
    for got in generations:
        if is_whole(got):
            assert got.confidence == pytest.approx(expected, abs=CLOSE)
    assert engine.confidences([prompt] * 3, [[], [7], [8, 9]]) == pytest.approx(
        [expected] * 3, abs=CLOSE
    )


@pytest.mark.parametrize(("head", "read_at"), [("token", "predict"), *VARIANTS[1:]])
def test_tokens_that_are_read_never_show_in_text_or_ids(tiny, head, read_at):
    engine = engine_of(tiny, head, read_at, noise=1.0)
    with torch.no_grad():
        engine.model.get_output_embeddings().weight[list(engine.readout.ids)] *= 1.5
    for generations in generate(engine, tiny_models.prompts(engine.tokenizer, 16), SAMPLED):
        for got in generations:
            assert not {engine.tokenizer.eos_token_id, *engine.readout.ids} & {*got.token_ids}
            assert not any(name in got.text for name in (*TOKENS[head], tiny_models.EOS))
    shown = engine.tokenizer.decode(list(engine.readout.ids), skip_special_tokens=True)
    assert shown == ""


def test_every_bin_token_ends_a_response(tiny):
    engine = engine_of(tiny, "bins", "predict")
    assert engine.reader.stops[-10:] == engine.readout.ids
    prompts = tiny_models.prompts(engine.tokenizer, 8)
    for prompt, (_, end) in zip(prompts, engine.logprobs(prompts, [[]] * 8), strict=True):
        p = probabilities(engine, prompt)
        assert end == pytest.approx(np.log(p[list(engine.reader.stops)].sum()), abs=CLOSE)


def test_bin_tokens_in_a_users_text_are_text(tiny):
    engine = engine_of(tiny, "bins", "predict")
    for name in TOKENS["bins"]:
        chat = [{"role": "user", "content": f"Is {name} right?{name}"}]
        for ids in (encode_chat(engine.tokenizer, chat), encode_text(engine.tokenizer, name)):
            assert not set(ids) & set(engine.readout.ids)
            assert name in engine.tokenizer.decode(ids)


def test_readings_that_make_no_sense_are_refused(tiny):
    model, tokenizer = tiny
    add_cnf(model, tokenizer)
    evidence = Evidence((0.0,) * 8, (0.0,) * 8)
    with pytest.raises(ModelError, match="evidence needs a response"):
        TransformersEngine(model, tokenizer, "prompt", evidence=evidence)
    model, tokenizer = tiny_models.model("llama_tied"), tiny_models.tokenizer()
    add_cnf(model, tokenizer, head="bins")
    for options in ({"read_at": "feed"}, {"evidence": evidence}):
        with pytest.raises(ModelError, match="bin tokens are read without evidence"):
            TransformersEngine(model, tokenizer, **options)
