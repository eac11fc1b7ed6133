"""A GGUF file of a Gemma 3 gets wider as the model itself does."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

import tiny_models
from grace.engines.local.layers import LayerRows
from grace.errors import ModelError
from grace.export.gguf_widening import LARGE_GEMMA, widening
from grace.export.widening import widen

NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "model.layers": "blk",
}
IDS, LAYER = (5, 6, 7, 8), 2


def tensors(model: torch.nn.Module) -> dict[str, np.ndarray]:
    """Return tensors as llama.cpp has them, whose norms multiply by their weights, not 1 + them."""
    found = {}
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        plus = "norm" in name
        for ours, theirs in NAMES.items():
            name = name.replace(ours, theirs)
        found[name] = weight.numpy() + np.float32(plus)
    return found


def written(file: Path, model: torch.nn.Module, blocks: int = 2) -> gguf.GGUFReader:
    writer = gguf.GGUFWriter(file, "gemma3")
    for name, value in (
        ("block_count", blocks),
        ("embedding_length", 32),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
        ("attention.key_length", 8),
    ):
        writer.add_uint32(f"gemma3.{name}", value)
    for name, weight in tensors(model).items():
        writer.add_tensor(name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return gguf.GGUFReader(file)


def test_a_file_gets_wider_as_the_model_does(tmp_path: Path) -> None:
    model = tiny_models.model("gemma3")
    rows = torch.randn(len(IDS), 48, generator=torch.Generator().manual_seed(0))
    reader = written(tmp_path / "base.gguf", model)
    made = widening(reader, LAYER, rows.numpy(), IDS, "token_embd.weight")
    widen(model, LayerRows(LAYER, rows), IDS, more=made.more)
    assert made.entry("gemma3.embedding_length", 32)[1] == model.config.hidden_size
    epsilon = made.entry("gemma3.attention.layer_norm_rms_epsilon", 1e-6)[1]
    assert epsilon == pytest.approx(model.config.rms_norm_eps)
    expected = tensors(model)
    assert {tensor.name for tensor in reader.tensors} == set(expected)
    for tensor in reader.tensors:
        data, _ = made.tensor(tensor.name, tensor.data, tensor.tensor_type)
        wanted = expected[tensor.name]
        if tensor.name.endswith((".attn_norm.weight", ".ffn_norm.weight")):
            data, wanted = data[:32], wanted[:32]  # nothing reads the added numbers
        if tensor.name == "output_norm.weight":
            data, wanted = data[: 32 + len(IDS)], wanted[: 32 + len(IDS)]
        assert data == pytest.approx(wanted, rel=1e-6), tensor.name


def test_a_gemma_whose_attention_depends_on_its_hidden_size_is_refused(tmp_path: Path) -> None:
    reader = written(tmp_path / "base.gguf", tiny_models.model("gemma3"), LARGE_GEMMA)
    with pytest.raises(ModelError, match="attention depends on its hidden size, which cannot"):
        widening(reader, LAYER, np.zeros((4, 48)), IDS, "token_embd.weight")
