"""A model whose c reads a layer in the middle, exported as one whose own logits contain it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers

import tiny_gguf
import tiny_models
import tiny_run
from grace.cnf import add_cnf
from grace.engines import Sampling
from grace.engines.gguf import resolve_model
from grace.engines.local.layers import LayerRows, mlp_output
from grace.engines.local.loading import load_tokenizer
from grace.engines.transformers import TransformersEngine
from grace.errors import ModelError
from grace.evidence import Evidence
from grace.export import export_model, gguf_widening
from grace.export.widening import READINGS_SCALE_HALF, _more, widen
from grace.pipeline.stages.fit import write_rows_adapter
from grace.records import is_whole
from grace.store import read_card

SAMPLING = Sampling(max_new_tokens=12)
CARRIED = ("llama_tied", "llama_untied", "mistral", "qwen2", "qwen3", "phi3", "smollm3", "gemma3")
PROMPTS = [tiny_models.tokenizer().encode(text) for text in tiny_models.SENTENCES]


def fitted(name: str, folder: Path, layer: int = 1) -> Path:
    """Write a backbone and random rows that read a block of it, and return the adapter."""
    base = folder / "base"
    tiny_run.write_model(base, name)
    return fitted_on(base, folder, layer)


def fitted_on(base: Path, folder: Path, layer: int = 1) -> Path:
    """Write random rows that read a block of a backbone, and return the adapter."""
    engine = TransformersEngine.load(resolve_model(str(base)))
    rng = np.random.default_rng(0)
    rows, middle = (rng.normal(size=(4, width)).astype(np.float32) for width in (32, 48))
    metadata = {"base_model": str(base), "data": {"task": "jsonl", "prompt": "short"}}
    adapter = folder / "adapter"
    write_rows_adapter(engine, rows, Evidence.none(), adapter, metadata, (layer, middle))
    return adapter


def answers(engine: Any) -> list[Any]:
    made = {at: one for at, (one,) in engine.generate(PROMPTS, SAMPLING)}
    return [made[at] for at in range(len(PROMPTS))]


@pytest.mark.parametrize(
    ("name", "layer"), [(name, 1 + place % 2) for place, name in enumerate(CARRIED)]
)
def test_an_export_gives_the_same_answers_and_the_same_c(
    name: str, layer: int, tmp_path: Path
) -> None:
    adapter = fitted(name, tmp_path, layer)
    ours = answers(TransformersEngine.load(tmp_path / "base", adapter=adapter))
    out = tmp_path / "out"
    export_model(tmp_path / "none", adapter, str(tmp_path / "base"), out)
    assert read_card(out)["layer"] == 0
    model = transformers.AutoModelForCausalLM.from_pretrained(out)
    assert model.config.hidden_size == 40 and model.config.head_dim == 8
    theirs = answers(TransformersEngine.load(out))
    assert any(one.confidence is not None for one in ours)
    for one, other in zip(ours, theirs, strict=True):
        assert one.token_ids == other.token_ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
        if one.confidence is not None:
            assert one.confidence == pytest.approx(other.confidence, abs=1e-4)


@pytest.mark.parametrize(("dtype", "within"), [("bfloat16", 0.05), ("float16", 0.01)])
def test_half_precision_keeps_c(dtype: str, within: float, tmp_path: Path) -> None:
    """The readings are so small in the stream that float16 needs another scale."""
    adapter = fitted("llama_untied", tmp_path)
    out = tmp_path / "out"
    export_model(tmp_path / "none", adapter, str(tmp_path / "base"), out, dtype=dtype)
    reference = TransformersEngine.load(tmp_path / "base", adapter=adapter)
    exported = TransformersEngine.load(out, dtype="float32")
    said = next(one.token_ids for one in answers(reference) if is_whole(one))
    ours = reference.confidences(PROMPTS, [said] * len(PROMPTS))
    theirs = exported.confidences(PROMPTS, [said] * len(PROMPTS))
    assert len(set(ours)) == len(PROMPTS)
    assert ours == pytest.approx(theirs, abs=within)


def test_in_a_float16_gguf_only_the_layer_that_carries_it_stays_float32(tmp_path: Path) -> None:
    """Its numbers are too small for float16. Others may be small as well."""
    adapter, out = fitted("llama_untied", tmp_path), tmp_path / "out"
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    with torch.no_grad():
        base.model.layers[1].mlp.up_proj.weight[3] *= 1e-6
    base.save_pretrained(tmp_path / "base")
    export_model(tmp_path / "none", adapter, str(tmp_path / "base"), out, form="gguf")
    tensors = gguf.GGUFReader(out / "model.gguf").tensors
    exact = {t.name for t in tensors if len(t.shape) > 1 and t.tensor_type.name == "F32"}
    assert exact == {"blk.0.ffn_down.weight"}


@pytest.mark.parametrize("name", ["llama_tied", "llama_untied"])
def test_a_gguf_base_is_widened_as_it_is_stored(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its matrices stay quantized, but for the one that carries the layer and the head."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model, tokenizer = tiny_models.model(name), tiny_models.tokenizer()
    base = tiny_gguf.write(tmp_path / "b.gguf", model, tokenizer, quantize=True)
    adapter, out = fitted_on(base, tmp_path, 2), tmp_path / "out"
    export_model(adapter, adapter, str(base), out, form="gguf")
    before, after = (
        {t.name: t.tensor_type.name for t in gguf.GGUFReader(file).tensors}
        for file in (base, out / "model.gguf")
    )
    head = "output.weight" if "output.weight" in before else "token_embd.weight"
    changed = {name for name in before if before[name] != after[name]} - {"token_embd.weight"}
    assert changed <= {head, "blk.1.ffn_down.weight"}
    assert "Q8_0" in after.values()
    assert (after[head], after["blk.1.ffn_down.weight"]) == ("F16", "F32")
    ours = answers(TransformersEngine.load(resolve_model(str(base)), adapter=adapter))
    plain = transformers.AutoModelForCausalLM.from_pretrained(
        out, gguf_file="model.gguf", dtype=torch.float32
    )
    theirs = answers(
        TransformersEngine(plain.eval(), load_tokenizer(out), evidence=Evidence.none())
    )
    assert any(one.confidence is not None for one in ours)
    for one, other in zip(ours, theirs, strict=True):
        assert one.token_ids == other.token_ids
        assert one.confidence == pytest.approx(other.confidence, abs=2e-3)


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q5_1", "Q2_K", "Q4_K", "Q6_K", "IQ4_XS", "BF16"])
def test_zero_bytes_are_zeros_in_every_type(name: str) -> None:
    kind = gguf.GGMLQuantizationType[name]
    numbers, size = gguf.GGML_QUANT_SIZES[kind]
    assert not gguf.dequantize(np.zeros((2, size), dtype=np.uint8), kind).any()
    assert 256 % numbers == 0


def test_heads_keep_the_size_that_a_gguf_base_gives_them(tmp_path: Path) -> None:
    """It may leave out how many of their dimensions are rotated: all of them."""
    model, tokenizer = tiny_models.model("llama_tied"), tiny_models.tokenizer()
    rows_EH = np.zeros((4, 48), dtype=np.float32)
    for extra, size in (({}, 8), ({"llama.attention.key_length": 16}, 16)):
        base = tiny_gguf.write(tmp_path / "b.gguf", model, tokenizer, extra=extra)
        made = gguf_widening.widening(
            gguf.GGUFReader(base), 1, rows_EH, (5, 6, 7, 8), "output.weight"
        )
        assert made.head_sizes()["llama.rope.dimension_count"] == size


def test_a_gguf_base_that_cannot_get_wider_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model, tokenizer = tiny_models.model("llama_tied"), tiny_models.tokenizer()
    base = tiny_gguf.write(tmp_path / "b.gguf", model, tokenizer)
    adapter = fitted_on(base, tmp_path)
    monkeypatch.setattr(gguf_widening, "ARCHITECTURES", ("qwen3",))
    with pytest.raises(ModelError, match=r"is of type llama, which cannot carry .* grace\.layer=0"):
        export_model(adapter, adapter, str(base), tmp_path / "out", form="gguf")


def test_the_logits_of_all_other_tokens_stay(tiny: Any) -> None:
    model, tokenizer = tiny
    readout = add_cnf(model, tokenizer, head="linear").readout
    rows = torch.randn(4, mlp_output(model, 1).in_features)
    ids = torch.tensor([PROMPTS[0]])
    with torch.inference_mode():
        before = model(input_ids=ids).logits
    for reading_scale, within in ((None, 1e-4), (READINGS_SCALE_HALF, 5e-2)):
        other = tiny_models.model("llama_untied")
        add_cnf(other, tiny_models.tokenizer(), head="linear")
        widen(other, LayerRows(1, rows), readout.ids, *([reading_scale] if reading_scale else []))
        with torch.inference_mode():
            after = other(input_ids=ids).logits
        kept = [i for i in range(before.shape[-1]) if i not in readout.ids]
        assert after[..., kept] == pytest.approx(before[..., kept], abs=within)


def test_large_readings_do_not_disturb_the_norm_after_an_mlp() -> None:
    """In Gemma 3 270M they are 700 times what that norm gives, and it averages over both."""
    ids, given = torch.tensor([PROMPTS[0]]), []
    for size in (0.0, 1000.0):
        model = tiny_models.model("gemma3")
        widen(model, LayerRows(1, size * torch.ones(1, 48)), (5,))
        norm = model.model.layers[0].post_feedforward_layernorm
        norm.register_forward_hook(lambda *call: given.append(call[2][..., :33]))
        with torch.inference_mode():
            model(input_ids=ids)
    without, read = given
    assert read[..., 32].abs().max() > 0.1
    assert read[..., :32] == pytest.approx(without[..., :32], rel=1e-5, abs=1e-7)


@pytest.mark.parametrize(("size", "heads", "more"), [(576, 9, 72), (4096, 32, 64), (32, 4, 8)])
def test_the_added_dimensions_are_few_and_divide_among_the_heads(
    size: int, heads: int, more: int
) -> None:
    """transformers refuses a hidden size that is not a multiple of the number of heads."""
    assert _more(transformers.LlamaConfig(hidden_size=size, num_attention_heads=heads)) == more
    assert (size + more) % heads == 0


@pytest.mark.parametrize(("heads", "part"), [(32, 1.0), (24, 0.75)])  # Phi 3.5 mini, Phi 4 mini
def test_a_wider_phi_3_keeps_its_rotary_factors(heads: int, part: float) -> None:
    """transformers compares their number with the hidden size divided by the number of heads."""
    rotary = {"rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": part}
    rotary |= {"short_factor": [1.0] * 48, "long_factor": [2.0] * 48}
    sizes = {"num_attention_heads": heads, "rope_parameters": rotary}
    base = transformers.Phi3Config(hidden_size=3072, **sizes)
    transformers.Phi3Config(hidden_size=3072 + _more(base), head_dim=3072 // heads, **sizes)


def test_biases_are_carried_along(tmp_path: Path) -> None:
    config = tiny_models.model("llama_untied").config
    config.attention_bias = config.mlp_bias = True
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
    ids = torch.tensor([PROMPTS[0]])
    with torch.inference_mode():
        before = model(input_ids=ids).logits
        after = widen(model, LayerRows(1, torch.zeros(1, 48)), (5,)).model(input_ids=ids).logits
    assert after == pytest.approx(before, abs=1e-4)


def test_a_qwen_2_with_a_sliding_window_is_refused() -> None:
    """It becomes a Llama, which has none."""
    model = tiny_models.model("qwen2")
    model.config.sliding_window = 16
    with pytest.raises(ModelError, match="qwen2 with a sliding window cannot"):
        widen(model, LayerRows(1, torch.zeros(1, 48)), (5,))


def test_a_model_that_cannot_carry_the_layer_is_refused(tmp_path: Path) -> None:
    adapter = fitted("gemma2", tmp_path)
    for form, reason in (("merged", "only llama, mistral"), ("vllm-lora", "cannot carry")):
        with pytest.raises(ModelError, match=reason):
            export_model(
                tmp_path / "none", adapter, str(tmp_path / "base"), tmp_path / form, form=form
            )
    export_model(
        tmp_path / "none", adapter, str(tmp_path / "base"), tmp_path / "slim", form="adapter"
    )
    assert read_card(tmp_path / "slim")["layer"] == 1
