"""c with evidence is the same number while generating, when scoring and while training."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tiny_models
from grace.cnf import add_cnf
from grace.engines import Sampling
from grace.engines.transformers import TransformersEngine
from grace.evidence import Evidence, shift
from grace.training.examples import Example, collate
from grace.training.forward import losses
from grace.training.validation import log_confidences

EVIDENCE = Evidence((2.0, 0.5, 0.1, -0.4, 1.5, 0.8), (-0.3, -0.9, -2.0, 0.7, 0.4, 0.6), 0.7, 0.8)
SAMPLED = Sampling(max_new_tokens=12, temperature=1.0, num_samples=4, seed=5)


@pytest.fixture(params=["predict", "feed"])
def answered(request, tiny):
    """An engine with evidence, the same without, and what both generated."""
    model, tokenizer = tiny
    add_cnf(model, tokenizer)
    with_it = TransformersEngine(model, tokenizer, request.param, evidence=EVIDENCE)
    without = TransformersEngine(model, tokenizer, request.param)
    prompts = tiny_models.prompts(tokenizer, 8)
    rows = []
    for (i, ours), (_, plain) in zip(
        with_it.generate(prompts, SAMPLED), without.generate(prompts, SAMPLED), strict=True
    ):
        rows += [(prompts[i], a, b) for a, b in zip(ours, plain, strict=True)]
    return with_it, without, [row for row in rows if row[1].finish_reason == "stop"]


@pytest.mark.parametrize("tiny", tiny_models.ARCHITECTURES, indirect=True)
def test_generating_scoring_and_training_read_the_same_c(answered):
    engine, _, rows = answered
    assert len({len(got.token_ids) for _, got, _ in rows}) > 1
    generated = [got.confidence for _, got, _ in rows]
    scored = engine.confidences([p for p, _, _ in rows], [got.token_ids for _, got, _ in rows])
    assert scored == pytest.approx(generated, abs=1e-5)
    examples = [Example(str(i), tuple(p), g.token_ids, 0.5) for i, (p, g, _) in enumerate(rows)]
    trained = np.exp(
        log_confidences(
            engine.model, examples, engine.readout, 0, read_at=engine.read_at, evidence=EVIDENCE
        )
    )
    assert trained.tolist() == pytest.approx(generated, abs=1e-5)


def test_evidence_changes_c_and_nothing_else(answered):
    _, _, rows = answered
    for _, ours, plain in rows:
        assert ours.token_ids == plain.token_ids
        assert ours.logprobs == plain.logprobs
        assert ours.end_logprob == plain.end_logprob
    assert any(abs(ours.confidence - plain.confidence) > 0.01 for _, ours, plain in rows)


def test_c_with_evidence_follows_from_c_without(answered):
    for _, ours, plain in answered[2]:
        odds = plain.confidence / (1 - plain.confidence) * np.exp(EVIDENCE.of(plain.logprobs))
        odds **= EVIDENCE.slope
        assert ours.confidence == pytest.approx(odds / (1 + odds), abs=1e-5)


def test_the_trace_ends_with_the_confidence_where_c_is_read_for_free(answered):
    engine, _, rows = answered
    if engine.read_at == "predict":
        assert all(got.trace[-1] == got.confidence for _, got, _ in rows)


def test_no_gradient_flows_through_the_evidence(tiny):
    """The gradient is that of c moved by a number, although that number came from the model."""
    model, tokenizer = tiny
    cnf = add_cnf(model, tokenizer)
    batch = collate([Example("a", (9, 10), (11, 12), 0.3)], cnf.readout, 0)
    weight = model.get_input_embeddings().weight
    log_p = model(batch["input_ids"][:, :-1]).logits.log_softmax(-1)
    spoken = log_p[0, [1, 2], [11, 12]]
    found = losses(model, batch, cnf.readout, evidence=EVIDENCE).log_c
    moved = shift(log_p[0, -1, cnf.id], torch.tensor(EVIDENCE.of(spoken.tolist())), EVIDENCE.slope)
    through = shift(
        log_p[0, -1, cnf.id],
        EVIDENCE.of_batch(spoken[None], torch.ones(1, 2, dtype=torch.bool))[0],
        EVIDENCE.slope,
    )
    torch.testing.assert_close(found[0], moved)
    ours, wanted, wrong = (
        torch.autograd.grad(value.sum(), weight, retain_graph=True)[0]
        for value in (found, moved, through)
    )
    torch.testing.assert_close(ours, wanted)
    assert (wrong - wanted).abs().max() > 0.1 * wanted.abs().max()
