"""The ablations while generating: c read at the prompt, and c read from bin tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from slow_engine import choose, probabilities

import tiny_models
from grace.chat import encode_chat, encode_text
from grace.cnf import TIE, TOKENS, add_cnf
from grace.engines import Sampling
from grace.engines.local.sampling import uniforms
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


def by_hand(engine, ids):
    """c as the definitions say, from the probabilities after some token ids."""
    p = probabilities(engine, ids)[list(engine.readout.ids)]
    if len(p) == 1:
        return p[0]
    interval = int(np.flatnonzero(p >= p.max() * (1 - TIE))[0])
    return (0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95)[interval]


def naive(engine, prompt, key, sample, sampling):
    """One response by full forwards over the unpadded sequence, in float64 numpy."""
    draws = uniforms(sampling.seed, [key], range(sample, sample + 1), 64)[0]
    tokens, logprobs, trace = [], [], []
    for step in range(sampling.max_new_tokens):
        trace.append(by_hand(engine, [*prompt, *tokens]))
        p = probabilities(engine, [*prompt, *tokens])
        if engine.read_at == "prompt":
            p[list(engine.readout.ids)] = 0
            p /= p.sum()
        token = choose(p, sampling, draws[step])
        if token in engine.reader.stops:
            return tokens, logprobs, trace, float(np.log(p[list(engine.reader.stops)].sum()))
        tokens.append(token)
        logprobs.append(float(np.log(p[token])))
    return tokens, logprobs, trace, None


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
    for i, generations in enumerate(generate(engine, prompts, sampling)):
        for sample, got in enumerate(generations):
            tokens, logprobs, trace, end = naive(engine, prompts[i], str(i), sample, sampling)
            assert list(got.token_ids) == tokens
            assert got.logprobs == pytest.approx(logprobs, abs=CLOSE)
            assert got.trace == pytest.approx(trace, abs=CLOSE)
            assert got.end_logprob == pytest.approx(end, abs=CLOSE)
            read = trace[0] if read_at == "prompt" else trace[-1]
            rated = end is not None and got.text.strip()
            assert got.confidence == (pytest.approx(read, abs=CLOSE) if rated else None)


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


@pytest.mark.parametrize("read_at", ["predict", "prompt"])
def test_bin_tokens_never_show_in_text_or_ids(tiny, read_at):
    engine = engine_of(tiny, "bins", read_at, noise=1.0)
    with torch.no_grad():
        engine.model.get_output_embeddings().weight[list(engine.readout.ids)] *= 1.5
    for generations in generate(engine, tiny_models.prompts(engine.tokenizer, 16), SAMPLED):
        for got in generations:
            assert not set(engine.reader.stops) & set(got.token_ids)
            assert "<B" not in got.text
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
    with pytest.raises(ModelError, match="use predict, feed or prompt"):
        TransformersEngine(model, tokenizer, "here")
    with pytest.raises(ModelError, match="evidence needs a response"):
        TransformersEngine(model, tokenizer, "prompt", evidence=evidence)
    model, tokenizer = tiny_models.model("llama_tied"), tiny_models.tokenizer()
    add_cnf(model, tokenizer, head="bins")
    for options in ({"read_at": "feed"}, {"evidence": evidence}):
        with pytest.raises(ModelError, match="bin tokens are read without evidence"):
            TransformersEngine(model, tokenizer, **options)
