"""A widened residual stream, in which c reads a layer in the middle in any engine.

A stock engine gives the products of the last state with rows of the vocabulary, and nothing of the
layers before. So the MLP of the block that c reads writes the readings into a few more dimensions
of the residual stream. No other matrix writes there or reads from there, and only the rows of the
tokens that are read see them in the last state. The rest of the model computes what it did.

Norms average over more dimensions, so what they give grows. The weights of those that read from the
stream make up for that. In Gemma 3 norms write to it, too, and the embedding is scaled by the root
of the hidden size: there the whole stream grows by as much, and they stay as they are. All share an
epsilon, which is made right for the smallest numbers: what a Llama's norms read, or Gemma's write.

Shapes: D hidden size, W wider hidden size, E tokens that are read, H width of an MLP.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from grace.engines.local.layers import CARRIED, LayerRows, blocks, can_carry, mlp_output
from grace.engines.local.loading import no_progress_bar
from grace.errors import ModelError

READINGS_SCALE, READINGS_SCALE_HALF = 2.0**-12, 2.0**-6
"""Factors on the readings in the stream, so that they hardly change the norms of the rest. The
second is for float16, which has no smaller numbers for their weights. Where a norm stands between
the MLP and the stream, they are as much smaller again before it."""
READING = ("q_proj", "k_proj", "v_proj", "qkv_proj", "gate_proj", "up_proj", "gate_up_proj")
WRITING = ("o_proj", "down_proj")
WRITING_NORMS = ("post_attention_layernorm", "post_feedforward_layernorm")  # of Gemma 3


class Carried(NamedTuple):
    """A model whose end contains what c reads in its middle."""

    model: Any
    carrier: str | None = None  # linear layer that writes it into the residual stream, if any


def widen(
    model: Any,
    rows: LayerRows,
    ids: tuple[int, ...],
    reading_scale: float = READINGS_SCALE,
    more: int = 0,
) -> Carried:
    """Let a model's own logits of some tokens contain the readings of a layer in the middle."""
    kind = model.config.model_type
    if not can_carry(model):
        raise ModelError(
            f"the confidence reads the MLP of block {rows.layer}, and a model of type {kind} "
            f"cannot carry that to its end (only {', '.join(CARRIED)} can, if they are not "
            "quantized); use --format adapter with grace serve, or fit with grace.layer=0"
        )
    if kind == "qwen2":
        model = _as_llama(model)
    config, output, gemma = model.config, mlp_output(model, rows.layer), kind == "gemma3_text"
    size, count, more = config.hidden_size, len(ids), more or _more(config)
    shrink = scale = (size / (size + more)) ** 0.5
    with torch.no_grad():
        _widen_blocks(model, more, gemma)
        if gemma:  # its norm averages over the readings before they are in the stream
            block: Any = blocks(model)[rows.layer - 1]
            block.post_feedforward_layernorm.weight[size : size + count] = 1 / reading_scale - 1
            scale *= reading_scale
        output.weight[size : size + count] = reading_scale * scale * rows.rows_EH
        _widen_norm(model.model.norm, more, gemma)
        model.model.norm.weight[size : size + count] = 1 / reading_scale - gemma
        embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
        tied = head.weight is embedding.weight
        embedding.weight = _padded(embedding.weight, (0, more))
        embedding.embedding_dim += more
        if gemma:
            embedding.embed_scale /= shrink
        head.weight = embedding.weight if tied else _padded(head.weight, (0, more))
        head.in_features += more
        places = range(size, size + count)
        head.weight[list(ids), list(places)] = 1.0
    config.head_dim = getattr(config, "head_dim", None) or size // config.num_attention_heads
    config.hidden_size, config.rms_norm_eps = size + more, config.rms_norm_eps * shrink**2
    return Carried(model, next(name for name, one in model.named_modules() if one is output))


def _more(config: Any) -> int:
    """Return how many dimensions to add.

    A Llama must have a multiple of its number of heads, and a Phi 3 checks its rotary factors
    against the hidden size divided by the number of heads, which must stay.
    """
    size, heads = config.hidden_size, config.num_attention_heads
    if config.model_type == "phi3":
        return 8
    even = math.lcm(heads, 64)  # which matrix products on a GPU like
    return even if even <= size // 8 else math.lcm(heads, 8)


def _as_llama(model: Any) -> Any:
    """Return a Qwen 2 as the same Llama with biases, whose heads vLLM lets have their own size."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config, state = model.config, model.state_dict()
    if config.sliding_window is not None:
        raise ModelError(
            "the confidence reads the MLP of a block, and a qwen2 with a sliding window cannot "
            "carry that to its end; use --format adapter with grace serve, or fit with "
            "grace.layer=0"
        )
    own = ("model_type", "architectures")
    settings = {key: value for key, value in config.to_dict().items() if key not in own}
    for layer in range(config.num_hidden_layers):
        state[f"model.layers.{layer}.self_attn.o_proj.bias"] = torch.zeros(config.hidden_size)
    with no_progress_bar():
        made = LlamaForCausalLM.from_pretrained(
            None,
            config=LlamaConfig(**settings, attention_bias=True),
            state_dict=state,
            dtype=model.dtype,
        )
    made.generation_config = model.generation_config
    return made.eval()


def _widen_blocks(model: Any, more: int, gemma: bool) -> None:
    """Add dimensions to the residual stream that no block reads and that all leave at 0."""
    for name, module in blocks(model).named_modules():
        leaf = name.rpartition(".")[2]
        if leaf in READING:
            module.weight = _padded(module.weight, (0, more))
            module.in_features += more
        elif leaf in WRITING:
            module.weight = _padded(module.weight, (0, 0, 0, more))
            if module.bias is not None:
                module.bias = _padded(module.bias, (0, more))
            module.out_features += more
        elif leaf.endswith("layernorm"):
            _widen_norm(module, more, gemma, reads=not gemma or leaf not in WRITING_NORMS)


def _padded(weight: Tensor, more: tuple[int, ...]) -> nn.Parameter:
    return nn.Parameter(nn.functional.pad(weight, more), requires_grad=False)


def _widen_norm(norm: Any, more: int, gemma: bool, reads: bool = True) -> None:
    """Let a norm average over more dimensions, which are 0; if it `reads`, it gives the same.

    That of a Gemma multiplies by 1 + its weight.
    """
    size = len(norm.weight)
    mean_square = size / (size + more)
    scale, plus = mean_square**0.5 if reads else 1.0, float(gemma)
    norm.weight = _padded((norm.weight + plus) * scale - plus, (0, more))
    epsilon = "eps" if gemma else "variance_epsilon"
    setattr(norm, epsilon, getattr(norm, epsilon) * mean_square)
