"""c with evidence is the same number while generating, when scoring and while training."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

import tiny_models
from grace.cnf import add_cnf, set_rows
from grace.engines import Sampling
from grace.engines.transformers import TransformersEngine
from grace.evidence import Evidence, confidence
from grace.records import is_whole

EVIDENCE = Evidence(
    (2.0, 0.5, 0.1, -0.4, 1.5, 0.8, 0.6, 1.2), (-0.3, -0.9, -2.0, 0.7, 0.4, 0.6, 0.6, 0.5), 0.7, 0.8
)
SAMPLED = Sampling(max_new_tokens=12, temperature=1.0, num_samples=4, seed=5)


@functools.cache
def answered_by(name, how):
    model, tokenizer = tiny_models.model(name), tiny_models.tokenizer()
    linear = how == "linear"
    cnf = add_cnf(model, tokenizer, head="linear" if linear else "token")
    if linear:
        width = model.get_output_embeddings().weight.shape[1]
        generator = torch.Generator().manual_seed(7)
        set_rows(model, cnf.readout, torch.randn(4, width, generator=generator))
    read_at = "predict" if linear else how
    with_it = TransformersEngine(model, tokenizer, read_at, evidence=EVIDENCE)
    without = TransformersEngine(model, tokenizer, read_at)
    prompts = tiny_models.prompts(tokenizer, 8)
    rows = []
    for (i, ours), (_, plain) in zip(
        with_it.generate(prompts, SAMPLED), without.generate(prompts, SAMPLED), strict=True
    ):
        rows += [(prompts[i], a, b) for a, b in zip(ours, plain, strict=True)]
    return with_it, without, [row for row in rows if is_whole(row[1])]


@pytest.fixture(
    params=[("llama_untied", how) for how in ("predict", "feed", "linear")], ids="-".join
)
def answered(request):
    """An engine with evidence, the same without, and what both generated."""
    return answered_by(*request.param)


@pytest.mark.parametrize(
    "answered",
    [
        *(("llama_untied", how) for how in ("predict", "feed")),
        *((name, "linear") for name in tiny_models.ARCHITECTURES),
    ],
    ids="-".join,
    indirect=True,
)
def test_generating_and_scoring_read_the_same_c(answered):
    engine, _, rows = answered
    assert len({len(got.token_ids) for _, got, _ in rows}) > 1
    generated = [got.confidence for _, got, _ in rows]
    scored = engine.confidences([p for p, _, _ in rows], [got.token_ids for _, got, _ in rows])
    assert scored == pytest.approx(generated, abs=1e-5)


def test_evidence_changes_c_and_nothing_else(answered):
    _, _, rows = answered
    for _, ours, plain in rows:
        assert ours.token_ids == plain.token_ids
        assert ours.logprobs == plain.logprobs
        assert ours.end_logprob == plain.end_logprob
    assert any(abs(ours.confidence - plain.confidence) > 0.01 for _, ours, plain in rows)


def test_c_with_evidence_follows_from_c_without(answered):
    for prompt, ours, plain in answered[2]:
        if answered[0].readout.head == "linear":  # the readings of all steps count
            continue
        (read,) = answered[0]._scored([prompt], [plain.token_ids])
        shift = EVIDENCE.of(plain.logprobs, read.end)
        odds = plain.confidence / (1 - plain.confidence) * np.exp(shift)
        odds **= EVIDENCE.slope
        c = odds / (1 + odds)
        assert ours.confidence == pytest.approx(c, abs=1e-5)


def test_a_linear_read_out_changes_no_token_and_no_probability(tiny):
    """What a model with its tokens says is what it said without, to the last bit."""
    model, tokenizer = tiny
    prompts = tiny_models.prompts(tokenizer, 8)
    before = list(TransformersEngine(model, tokenizer).generate(prompts, SAMPLED))
    cnf = add_cnf(model, tokenizer, head="linear")
    width = model.get_output_embeddings().weight.shape[1]
    set_rows(model, cnf.readout, 9 * torch.ones(4, width))  # likely, were it ever drawn
    engine = TransformersEngine(model, tokenizer, evidence=EVIDENCE)
    after = list(engine.generate(prompts, SAMPLED))
    for (_, plain), (_, ours) in zip(before, after, strict=True):
        for one, other in zip(plain, ours, strict=True):
            assert (one.token_ids, one.finish_reason) == (other.token_ids, other.finish_reason)
            assert (one.logprobs, one.end_logprob) == (other.logprobs, other.end_logprob)
    assert any(one.confidence is not None for _, made in after for one in made)
    assert not set(cnf.readout.ids) & set(engine.reader.stops)


def test_c_of_a_linear_read_out_follows_from_its_readings_and_the_tokens_before(answered):
    engine, _, rows = answered
    if engine.readout.head != "linear":
        return
    for prompt, ours, _ in rows:
        (read,) = engine._scored([prompt], [ours.token_ids])
        assert len(read.readings) == len(ours.token_ids) + 1
        for k, c in enumerate(ours.trace):
            (start,) = engine._scored([prompt], [ours.token_ids[:k]])
            wanted = confidence(read.readings[: k + 1], ours.logprobs[:k], start.end, EVIDENCE)
            assert c == pytest.approx(wanted, abs=1e-5)
        assert ours.trace[-1] == ours.confidence
