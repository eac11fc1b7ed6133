"""The engine and the trainer on a CUDA device; run with `pytest -m gpu`."""

from __future__ import annotations

import pytest
import torch

import tiny_models
from grace.cnf import add_cnf
from grace.config import PaperSettings
from grace.engines import Sampling
from grace.engines.transformers import TransformersEngine
from grace.methods.paper.examples import Example
from grace.methods.paper.trainer import train_adapter

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
SAMPLED = Sampling(max_new_tokens=12, temperature=1.0, num_samples=4, seed=5)


@pytest.mark.parametrize("read_at", ["predict", "feed"])
@pytest.mark.parametrize("tiny", tiny_models.ARCHITECTURES, indirect=True)
def test_generation_equals_a_teacher_forced_forward_on_the_gpu(tiny, read_at):
    model, tokenizer = tiny
    add_cnf(model, tokenizer)
    engine = TransformersEngine(model.to("cuda"), tokenizer, read_at)
    prompts = tiny_models.prompts(tokenizer, 8)
    rows = [
        (prompts[i], sample)
        for i, samples in engine.generate(prompts, SAMPLED)
        for sample in samples
        if sample.finish_reason == "stop" and sample.text.strip()
    ]
    scored = engine.confidences([p for p, _ in rows], [s.token_ids for _, s in rows])
    assert scored == pytest.approx([s.confidence for _, s in rows], abs=1e-4)


@pytest.mark.parametrize("tiny", tiny_models.ARCHITECTURES, indirect=True)
def test_steps_that_are_replayed_as_graphs_draw_what_usual_steps_draw(tiny, monkeypatch):
    model, tokenizer = tiny
    add_cnf(model, tokenizer)
    engines = [TransformersEngine(model.to("cuda"), tokenizer, batch_size=8) for _ in range(2)]
    monkeypatch.setitem(vars(engines[0]), "_placed", False)
    replayed, replay = [], torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(
        torch.cuda.CUDAGraph, "replay", lambda self: [replayed.append(self), replay(self)][1]
    )
    if engines[0].forward.slides:
        pytest.skip("the model has sliding windows, so its steps are not replayed")
    prompts = tiny_models.prompts(tokenizer, 8)
    usual, placed = (dict(engine.generate(prompts, SAMPLED)) for engine in engines)
    assert engines[1]._placed and len(replayed) > SAMPLED.max_new_tokens
    for place in range(len(prompts)):
        for one, other in zip(usual[place], placed[place], strict=True):
            assert one.token_ids == other.token_ids
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
            assert one.confidence == pytest.approx(other.confidence, abs=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_training_on_the_gpu_moves_the_row_and_keeps_float32(dtype, tmp_path):
    model, tokenizer = tiny_models.model("llama_untied"), tiny_models.tokenizer()
    model = model.to("cuda", getattr(torch, dtype))
    cnf = add_cnf(model, tokenizer)
    examples = [Example(str(i), (9, 10 + i), (12, 13), i / 8) for i in range(8)]
    result = train_adapter(
        model,
        tokenizer,
        cnf,
        examples,
        examples,
        PaperSettings(learning_rate=1e-2, epochs=4, batch_size=4),
        seed=0,
        output_dir=tmp_path / "adapter",
        checkpoint_dir=tmp_path / "checkpoints",
        metadata={},
    )
    losses = [row["calibration"] for row in result.log if "calibration" in row]
    assert losses[-1] < losses[0]
