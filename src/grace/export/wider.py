"""A wider residual stream, in which c reads a layer in the middle in any engine.

A stock engine gives the products of the last state with rows of the vocabulary, and nothing of the
layers before. So the MLP of the block that c reads writes the readings into a few more dimensions
of the residual stream. No other matrix writes there or reads from there, and only the rows of the
tokens that are read see them in the last state. The rest of the model computes what it did.

Shapes: D hidden size, W wider hidden size, E tokens that are read, H width of an MLP.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from grace.engines.local.layers import CARRIED, LayerRows, blocks, mlp_output
from grace.errors import ModelError

FAINT, FAINT_HALF = 2.0**-12, 2.0**-6
"""Scale of the readings in the stream, so that they hardly change the norms of the rest. The second
is for float16, which has no smaller numbers for their weights."""
READING = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
WRITING = ("o_proj", "down_proj")


def widen(model: Any, rows: LayerRows, ids: tuple[int, ...], faint: float = FAINT) -> str:
    """Let a model's own logits of some tokens contain the readings of a layer in the middle.

    Return the name of the linear layer that writes them into the residual stream.

    Args:
        model: a model in float32; it is changed.
        rows: what the logits of the tokens gain from the MLP of a block.
        ids: the tokens.
        faint: scale of the readings in the residual stream.

    Raises:
        ModelError: the model is of another family than `CARRIED`.
    """
    config = model.config
    if config.model_type not in CARRIED:
        raise ModelError(
            f"c reads the MLP of block {rows.layer}, and a model of type {config.model_type} "
            f"cannot carry that to its end (only {', '.join(CARRIED)} can); use --format "
            "adapter with grace serve, or fit with train.layer=0"
        )
    size, count = config.hidden_size, len(ids)
    wider = size + _more(size, config.num_attention_heads)
    shrink = (size / wider) ** 0.5  # the mean square is over more dimensions
    output = mlp_output(model, rows.layer)
    with torch.no_grad():
        _widen_blocks(model, wider - size)
        output.weight[size : size + count] = faint * rows.rows_EH
        _widen_norm(model.model.norm, wider - size)
        model.model.norm.weight[size : size + count] = 1.0
        embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
        tied = head.weight is embedding.weight
        embedding.weight = _padded(embedding.weight, (0, wider - size))
        embedding.embedding_dim = wider
        head.weight = embedding.weight if tied else _padded(head.weight, (0, wider - size))
        head.in_features = wider
        places = range(size, size + count)
        head.weight[list(ids), list(places)] = shrink / faint
    config.head_dim = getattr(config, "head_dim", None) or size // config.num_attention_heads
    config.hidden_size, config.rms_norm_eps = wider, config.rms_norm_eps * shrink**2
    name: str = next(name for name, module in model.named_modules() if module is output)
    return name


def _more(size: int, heads: int) -> int:
    """Return how many dimensions to add: transformers wants a multiple of the number of heads."""
    even = math.lcm(heads, 64)  # which matrix products on a GPU like
    return even if even <= size // 8 else math.lcm(heads, 8)


def _widen_blocks(model: Any, more: int) -> None:
    """Add dimensions to the residual stream that no block reads and that all leave at 0."""
    for name, module in blocks(model).named_modules():
        leaf = name.rpartition(".")[2]
        if leaf in READING:
            module.weight = _padded(module.weight, (0, more))
            module.in_features += more
        elif leaf in WRITING:
            module.weight = _padded(module.weight, (0, 0, 0, more))
            module.out_features += more
        elif leaf.endswith("layernorm"):
            _widen_norm(module, more)


def _padded(weight: Tensor, more: tuple[int, ...]) -> nn.Parameter:
    return nn.Parameter(nn.functional.pad(weight, more), requires_grad=False)


def _widen_norm(norm: Any, more: int) -> None:
    """Let a norm average over more dimensions, which are 0, and give the same."""
    size = len(norm.weight)
    mean_square = size / (size + more)
    norm.weight = _padded(norm.weight * mean_square**0.5, (0, more))
    norm.variance_epsilon *= mean_square
