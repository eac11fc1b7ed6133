"""c read from the MLP of a block in the middle: free, exact, and without a change to any answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import tiny_models
import tiny_run
from grace.cnf import add_cnf
from grace.engines import LAST, Sampling
from grace.engines.local.layers import LayerRows, blocks, candidates, mlp_output, skeleton
from grace.engines.transformers import TransformersEngine
from grace.errors import ModelError
from grace.evidence import Evidence, confidence
from grace.evidence import features as likelihoods
from grace.export.widening import widen
from grace.pipeline.stages.fit import write_rows_adapter
from grace.records import is_whole

EVIDENCE = Evidence.none()
SAMPLED = Sampling(max_new_tokens=12, temperature=1.0, num_samples=2, seed=5)


def reading(tiny: Any, layer: int = 1, batch: int | None = None) -> TransformersEngine:
    """An engine whose c is read from a block, with random rows."""
    model, tokenizer = tiny
    add_cnf(model, tokenizer, head="linear")
    width = mlp_output(model, layer).in_features
    rows = torch.randn(4, width, generator=torch.Generator().manual_seed(7))
    middle = LayerRows(layer, rows)
    options = {"evidence": EVIDENCE, "batch_size": batch, "layer_rows": middle}
    return TransformersEngine(model, tokenizer, **options)


def activations(model: Any, ids: list[int], layer: int) -> Any:
    """(L, H) inside the MLP of a block, by hooks of our own, as the norms after it divide them."""
    seen: dict[str, Any] = {}
    output = mlp_output(model, layer)
    first = output.register_forward_hook(lambda _, given, out: seen.update(mlp=given[0], out=out))
    with torch.inference_mode():
        blocks = max(
            (one for one in model.modules() if isinstance(one, torch.nn.ModuleList)), key=len
        )
        last = blocks[-1].register_forward_hook(
            lambda _, given, out: seen.update(last=out[0] if isinstance(out, tuple) else out)
        )
        model(input_ids=torch.tensor([ids]))
    first.remove()
    last.remove()
    rms = seen["last"].square().mean(-1, keepdim=True).sqrt()
    if hasattr(blocks[layer - 1], "post_feedforward_layernorm"):  # as in Gemma 2 and 3
        rms = rms * (seen["out"].square().mean(-1, keepdim=True) + 1e-6).sqrt()
    return (seen["mlp"] / rms)[0]


@pytest.mark.parametrize(
    ("tiny", "layer"),
    [(name, 1 + place % 2) for place, name in enumerate(tiny_models.ARCHITECTURES)],
    indirect=["tiny"],
)
def test_generating_and_scoring_read_the_same_c_as_the_definition(tiny, layer):
    engine = reading(tiny, layer)
    prompts = tiny_models.prompts(engine.tokenizer, 8)
    rows = [(prompts[i], one) for i, made in engine.generate(prompts, SAMPLED) for one in made]
    ended = [(prompt, one) for prompt, one in rows if is_whole(one)]
    assert len({len(one.token_ids) for _, one in ended}) > 1
    generated = [one.confidence for _, one in ended]
    scored = engine.confidences([p for p, _ in ended], [one.token_ids for _, one in ended])
    assert scored == pytest.approx(generated, abs=1e-5)
    weights = engine.forward._rows.rows_EH  # type: ignore[union-attr]
    for prompt, one in ended[:4]:
        seen = activations(engine.model, [*prompt, *one.token_ids], layer)[len(prompt) - 1 :]
        base = engine.model(input_ids=torch.tensor([[*prompt, *one.token_ids]])).logits[0]
        logits = base[len(prompt) - 1 :, list(engine.readout.ids)] + seen @ weights.T
        readings = (logits[:, :-1] - logits[:, -1:]).tolist()
        by_hand = confidence(readings, one.logprobs, one.end_logprob, EVIDENCE)
        assert by_hand == pytest.approx(one.confidence, abs=1e-5)


def test_the_confidence_varies_and_the_answers_are_those_of_the_model_alone(tiny):
    engine = reading(tiny)
    prompts = tiny_models.prompts(engine.tokenizer, 8)
    ours = {i: made for i, made in engine.generate(prompts, SAMPLED)}
    plain = TransformersEngine(engine.model, engine.tokenizer, evidence=EVIDENCE)
    theirs = {i: made for i, made in plain.generate(prompts, SAMPLED)}
    for i, made in ours.items():
        assert [one.token_ids for one in made] == [one.token_ids for one in theirs[i]]
        assert [one.logprobs for one in made] == [one.logprobs for one in theirs[i]]
    values = [one.confidence for made in ours.values() for one in made if one.confidence]
    assert np.std(values) > 0.05


@pytest.mark.parametrize("tiny", ["llama_untied"], indirect=True)
def test_a_prompt_whose_state_is_zero_has_a_c(tiny):
    engine = reading(tiny)
    with torch.no_grad():
        engine.model.get_input_embeddings().weight[0] = 0  # as that of a padding token may be
    ((_, made),) = engine.generate([[0]], SAMPLED)
    assert len(made) == 2


@pytest.mark.parametrize("tiny", ["llama_untied", "gemma2"], indirect=True)
def test_a_batch_a_stream_and_a_single_prompt_give_the_same_c(tiny):
    engine, alone = reading(tiny, batch=16), reading(tiny, batch=1)
    prompts = tiny_models.prompts(engine.tokenizer, 6)
    together = dict(engine.generate(prompts, SAMPLED))
    single = dict(alone.generate(prompts, SAMPLED))
    for i, prompt in enumerate(prompts):
        assert [one.token_ids for one in together[i]] == [one.token_ids for one in single[i]]
        for one, other in zip(together[i], single[i], strict=True):
            assert one.confidence == pytest.approx(other.confidence, abs=1e-5)
        scored = engine.confidences([prompt], [together[i][0].token_ids])
        if together[i][0].confidence is not None:
            assert scored == pytest.approx([together[i][0].confidence], abs=1e-5)


def test_pooled_activations_give_the_readings_that_the_engine_reads(tiny):
    engine = reading(tiny)
    prompts = tiny_models.prompts(engine.tokenizer, 6)
    ended = [
        (prompts[i], one)
        for i, (one,) in engine.generate(prompts, Sampling(max_new_tokens=12))
        if is_whole(one) and one.token_ids
    ]
    asked = [prompt for prompt, _ in ended]
    responses = [one.token_ids for _, one in ended]
    read = engine.states(asked, responses, [[0, 1]] * len(ended), [1, 2])
    assert list(read) == [LAST, 1, 2]
    features, at_steps = read[1]
    weights = engine.forward._rows.rows_EH.numpy()  # type: ignore[union-attr]
    apart = weights[:-1] - weights[-1]
    odds = features.last_ND @ apart[0] + features.first_ND @ apart[1] + features.mean_ND @ apart[2]
    expected = [one.confidence for _, one in ended]
    assert 1 / (1 + np.exp(-odds)) == pytest.approx(expected, abs=1e-4)
    assert at_steps.at_NBD[:, 0] == pytest.approx(features.first_ND, abs=1e-6)
    plain = engine.features(asked, responses)
    for ours, theirs in zip(read[LAST].features, plain, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-6)


def test_an_adapter_is_read_as_it_was_written(tmp_path: Path) -> None:
    base = tmp_path / "base"
    tiny_run.write_model(base, "llama_tied")
    engine = TransformersEngine.load(base)
    rng = np.random.default_rng(0)
    rows, middle = (rng.normal(size=(4, width)).astype(np.float32) for width in (32, 48))
    metadata = {"base_model": str(base), "data": {"task": "jsonl", "prompt": "short"}}
    adapter = tmp_path / "adapter"
    write_rows_adapter(engine, rows, EVIDENCE, adapter, metadata, (2, middle))
    loaded = TransformersEngine.load(base, adapter=adapter)
    assert loaded.forward._rows.layer == 2  # type: ignore[union-attr]
    assert loaded.forward._rows.rows_EH.numpy() == pytest.approx(middle)  # type: ignore[union-attr]
    write_rows_adapter(engine, rows, EVIDENCE, tmp_path / "short", metadata, (2, middle[:, :40]))
    with pytest.raises(ModelError, match="no rows for the MLP of block 2, of width 48"):
        TransformersEngine.load(base, adapter=tmp_path / "short")


def test_a_block_is_counted_from_one(tiny):
    model, _ = tiny
    assert mlp_output(model, 1) is model.model.layers[0].mlp.down_proj
    assert mlp_output(model, 2) is model.model.layers[1].mlp.down_proj


def test_a_block_that_is_not_there_is_named(tiny):
    model, _ = tiny
    assert candidates(model) == [1, 2]
    with pytest.raises(ModelError, match=r"grace\.layer is 3, but LlamaForCausalLM has 2 blocks"):
        mlp_output(model, 3)


def test_the_blocks_are_those_of_the_text_where_a_model_has_more_for_images() -> None:
    sizes = {**tiny_models.SIZES, "num_attention_heads": 4}
    turns = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
    config = transformers.Qwen2_5_VLConfig(
        text_config={**sizes, "vocab_size": 320, "rope_parameters": turns},
        vision_config={"depth": 3, "hidden_size": 32, "out_hidden_size": 32, "num_heads": 4},
    )
    model = skeleton(config)
    assert [type(one).__name__ for one in blocks(model)] == 2 * ["Qwen2_5_VLDecoderLayer"]
    assert mlp_output(model, 2).in_features == sizes["intermediate_size"]


def test_a_block_is_chosen_only_where_an_export_can_carry_it(tiny):
    """Quantized weights cannot get wider, and Gemma 2 caps its logits."""
    model, _ = tiny
    model.config.quantization_config = {"quant_method": "gptq"}
    try:
        assert candidates(model) == []
        with pytest.raises(ModelError, match="if they are not quantized"):
            widen(model, LayerRows(1, torch.zeros(4, 48)), (5, 6, 7, 8))
    finally:
        del model.config.quantization_config
    assert candidates(model) == [1, 2]
    assert candidates(tiny_models.model("gemma2")) == []


def test_the_features_of_the_evidence_are_as_without_a_layer(tiny):
    engine = reading(tiny)
    prompts = tiny_models.prompts(engine.tokenizer, 4)
    plain = TransformersEngine(engine.model, engine.tokenizer, evidence=EVIDENCE)
    for (_, (ours,)), (_, (theirs,)) in zip(
        engine.generate(prompts, Sampling(max_new_tokens=8)),
        plain.generate(prompts, Sampling(max_new_tokens=8)),
        strict=True,
    ):
        assert ours.end_logprob == theirs.end_logprob
        if ours.end_logprob is not None:
            assert likelihoods(ours.logprobs, ours.end_logprob) == likelihoods(
                theirs.logprobs, theirs.end_logprob
            )
