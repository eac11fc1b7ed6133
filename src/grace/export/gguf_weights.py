"""Write a Llama, Qwen 2 or Qwen 3 with a byte-level vocabulary as a GGUF file, from its weights.

The tokenizer must split text into words by a rule that llama.cpp has a name for. Another is
refused, because llama.cpp would read other tokens than those that the model was trained on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from grace.cnf import find_readout
from grace.engines.gguf.unpacking import ENDS, llama_3_divisors
from grace.errors import ModelError

ARCHITECTURES = ("llama", "qwen2", "qwen3")  # types of models; llama.cpp calls them the same
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
GPT_2 = {"type": "ByteLevel", "use_regex": True}
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_2 = LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}")


def _split_by(rule: str) -> list[dict[str, Any]]:
    split = {"type": "Split", "pattern": {"Regex": rule}, "behavior": "Isolated", "invert": False}
    return [split, {"type": "ByteLevel", "use_regex": False}]


PRE_TOKENIZERS = {  # by their names in llama.cpp
    "gpt-2": [GPT_2],
    "smollm": [{"type": "Digits", "individual_digits": True}, GPT_2],
    "llama-bpe": _split_by(LLAMA_3),
    "qwen2": _split_by(QWEN_2),
}
INSTEAD = (
    "export with --format merged and use llama.cpp's convert_hf_to_gguf.py, or train on the GGUF "
    "file of the base"
)


def write_weights(
    file: Path,
    model: Any,
    tokenizer: Any,
    kind: Any,
    ends: Sequence[int],
    carrier: str | None = None,
) -> None:
    """Write a model of one of `ARCHITECTURES` with a byte-level vocabulary."""
    import gguf

    config = model.config
    _check(config)
    writer = gguf.GGUFWriter(file, config.model_type)
    _add_shape(writer, config)
    _add_vocabulary(writer, tokenizer, config.vocab_size)
    readout = find_readout(tokenizer)
    others = [end for end in ends if readout is None or end not in readout.ids]
    for name, token in zip(ENDS[:2], others, strict=False):
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", token)
    if readout is not None and readout.ends:
        writer.add_uint32("tokenizer.ggml.eom_token_id", readout.ends[0])
    writer.add_file_type(
        gguf.LlamaFileType.MOSTLY_F16 if kind == np.float16 else gguf.LlamaFileType.ALL_F32
    )
    architecture = gguf.MODEL_ARCH[config.model_type.upper()]
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        weight, count = tensor.float().numpy(), heads.get(name.split(".")[-2])
        if config.model_type == "llama" and count is not None:
            weight = in_rotary_order(weight, count)
        if weight.ndim > 1 and name != f"{carrier}.weight":
            weight = cast(name, weight, kind)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), weight)
    if config.rope_parameters["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama_3_divisors(config).astype(np.float32))
    write_file(writer)


def _check(config: Any) -> None:
    kind = config.model_type
    biases = getattr(config, "mlp_bias", False) or (kind == "qwen3" and config.attention_bias)
    if kind not in ARCHITECTURES or biases or getattr(config, "sliding_window", None):
        raise ModelError(
            f"a model of type {kind} can be written as GGUF only with --dtype auto, from a GGUF "
            f"file as its base and without LoRA (method=grace); {INSTEAD}"
        )
    if (kind := config.rope_parameters["rope_type"]) not in ("default", "llama3"):
        raise ModelError(f"rotary positions of type {kind!r} are not supported; {INSTEAD}")


def _add_shape(writer: Any, config: Any) -> None:
    head_size = getattr(config, "head_dim", None) or (
        config.hidden_size // config.num_attention_heads
    )
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    writer.add_rope_dimension_count(head_size)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)


def _add_vocabulary(writer: Any, tokenizer: Any, rows: int) -> None:
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    model, rule = backend["model"], _pre_tokenizer(backend)
    # llama.cpp does not compose letters: a letter and its accent apart are other tokens there.
    composes = rule == "qwen2" and backend["normalizer"] == {"type": "NFC"}
    if rule is None or model["type"] != "BPE" or (backend["normalizer"] and not composes):
        raise ModelError(
            "the tokenizer splits words by another rule than "
            f"{', '.join(PRE_TOKENIZERS)}; {INSTEAD}"
        )
    names = {token: text for text, token in tokenizer.get_vocab().items()}
    added = tokenizer.added_tokens_decoder
    kinds = [UNUSED if i not in names else NORMAL for i in range(rows)]
    for token, entry in added.items():
        kinds[token] = CONTROL if entry.special else USER_DEFINED
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(rule)
    writer.add_token_list([names.get(i, f"[PAD{i}]") for i in range(rows)])
    writer.add_token_types(kinds)
    merges = (one if isinstance(one, str) else " ".join(one) for one in model["merges"])
    writer.add_token_merges(list(merges))
    adds_bos = tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id]
    writer.add_add_bos_token(adds_bos)
    if tokenizer.bos_token_id is not None:
        writer.add_bos_token_id(tokenizer.bos_token_id)
    if tokenizer.pad_token_id is not None:
        writer.add_pad_token_id(tokenizer.pad_token_id)
    if templates := tokenizer.chat_template:
        if isinstance(templates, dict):  # by name
            templates = [{"name": name, "template": text} for name, text in templates.items()]
        writer.add_chat_template(templates)


def _pre_tokenizer(backend: dict[str, Any]) -> str | None:
    """Return llama.cpp's name of the rule by which a tokenizer splits words, if it has one."""
    entry = backend["pre_tokenizer"] or {}
    parts = entry["pretokenizers"] if entry.get("type") == "Sequence" else [entry]
    if any(part.get("add_prefix_space") for part in parts):
        return None
    for name, rule in PRE_TOKENIZERS.items():
        if len(parts) == len(rule) and all(p | r == p for p, r in zip(parts, rule, strict=True)):
            return name
    return None


def in_rotary_order(weight: np.ndarray, heads: int) -> np.ndarray:
    """Return the rows of queries or keys in the rotary order of llama.cpp's Llama."""
    split = weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1)
    return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(weight.shape)


def cast(name: str, weight: np.ndarray, kind: Any) -> np.ndarray:
    """Return a matrix in another NumPy type."""
    with np.errstate(over="ignore"):
        converted: np.ndarray = weight.astype(kind)
    if not np.isfinite(converted).all():
        raise ModelError(
            f"{name} has numbers beyond the range of float16; export with --dtype float32"
        )
    return converted


def write_file(writer: Any) -> None:
    """Write everything that was added to a GGUF writer, and close the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
