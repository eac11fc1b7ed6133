"""A tiny random Llama as a GGUF file, written as llama.cpp's converter writes one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers": "blk",
}
Q8 = gguf.GGMLQuantizationType.Q8_0
NORMAL, CONTROL = 1, 3


def write(
    path: Path,
    model: Any,
    tokenizer: Any,
    *,
    quantize: bool = False,
    leave_out: str = "",
    architecture: str = "llama",
    extra: dict[str, int | str | bool] | None = None,
) -> Path:
    """Write the file; `extra` sets metadata, an `output` head is left out where it is tied.

    With `quantize` the rows that Q8_0 can hold are stored so, and `model` gets what they stand for.
    """
    writer = gguf.GGUFWriter(path, architecture)
    _write_shape(writer, model.config)
    _write_vocabulary(writer, tokenizer)
    for key, value in (extra or {}).items():
        add = {int: writer.add_uint32, str: writer.add_string, bool: writer.add_bool}[type(value)]
        add(key, value)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name == "lm_head.weight" and model.config.tie_word_embeddings:
                continue
            theirs = _renamed(name)
            if theirs != leave_out:
                _write_tensor(writer, theirs, tensor, model.config, quantize)
    if model.config.rope_parameters["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", divisors(model.config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def divisors(config: Any) -> np.ndarray:
    """Return what llama.cpp's converter writes for Llama 3's scaled rotary positions."""
    rope, half = config.rope_parameters, config.head_dim // 2
    waves = 2 * np.pi * rope["rope_theta"] ** (np.arange(half) / half)
    slow, fast = rope["low_freq_factor"], rope["high_freq_factor"]
    turns = rope["original_max_position_embeddings"] / waves
    smooth = np.clip((turns - slow) / (fast - slow), 0, 1)
    found: np.ndarray = (1 / ((1 - smooth) / rope["factor"] + smooth)).astype(np.float32)
    return found


def _write_shape(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_license("apache-2.0")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)


def _write_vocabulary(writer: gguf.GGUFWriter, tokenizer: Any) -> None:
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    special = set(tokenizer.all_special_tokens) | {"<|im_start|>"}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([CONTROL if token in special else NORMAL for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
    writer.add_bos_token_id(tokenizer.bos_token_id)
    if tokenizer.eos_token_id is not None:
        writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_pad_token_id(tokenizer.pad_token_id)
    writer.add_add_bos_token(False)
    if tokenizer.chat_template:
        writer.add_chat_template(tokenizer.chat_template)


def _renamed(name: str) -> str:
    for ours, theirs in NAMES.items():
        name = name.replace(ours, theirs)
    return name


def _write_tensor(
    writer: gguf.GGUFWriter, name: str, tensor: torch.Tensor, config: Any, quantize: bool
) -> None:
    if quantize and tensor.ndim == 2 and tensor.shape[1] % 32 == 0:
        stored = gguf.quantize(tensor.numpy(), Q8)
        tensor.copy_(torch.from_numpy(gguf.dequantize(stored, Q8)))
        writer.add_tensor(name, gguf.quantize(_permuted(name, tensor, config), Q8), raw_dtype=Q8)
    else:
        writer.add_tensor(name, _permuted(name, tensor, config))


def _permuted(name: str, tensor: torch.Tensor, config: Any) -> np.ndarray:
    """Return a matrix with the rows of queries and keys in llama.cpp's rotary order."""
    weight = tensor.numpy().copy()
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for part, count in heads.items():
        if f".{part}." in name:
            split = weight.reshape(count, 2, weight.shape[0] // count // 2, -1)
            weight = np.ascontiguousarray(split.swapaxes(1, 2).reshape(weight.shape))
    return weight
