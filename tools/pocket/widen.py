"""The same decoder in wider shapes, which vLLM and llama.cpp take: the added weights are zeros.

Heads of 22 become heads of 32 with the same rotation per pair and the same scale of the scores;
the hidden state and the MLP grow to multiples of 32. What it says stays the same but for rounding.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

_MULTIPLE = 32


def widen(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """Return a decoder of the same function whose widths are multiples of 32."""
    old, config = model.config, _widened(model.config)
    wide = LlamaForCausalLM(config).to(model.device)
    rows = _head_rows(old, config)
    columns = torch.arange(old.hidden_size)
    norm_scale = math.sqrt(old.hidden_size / config.hidden_size)
    score_scale = math.sqrt(config.head_dim / old.head_dim)
    state = {name: torch.zeros_like(weight) for name, weight in wide.state_dict().items()}
    for name, weight in model.state_dict().items():
        kind = name.split(".")[-2]
        if "norm" in kind:
            state[name][columns] = weight * norm_scale
        elif kind in ("q_proj", "k_proj", "v_proj"):
            state[name][rows[:, None], columns] = weight * (score_scale if kind[0] == "q" else 1)
        elif kind == "o_proj":
            state[name][columns[:, None], rows] = weight
        else:
            state[name][: weight.shape[0], : weight.shape[1]] = weight
    wide.load_state_dict(state)
    return wide


def _widened(old: LlamaConfig) -> LlamaConfig:
    """Return the wider shapes, with the rotations and the norms' epsilon made up for."""
    wide = {
        name: math.ceil(getattr(old, name) / _MULTIPLE) * _MULTIPLE
        for name in ("hidden_size", "intermediate_size", "head_dim")
    }
    theta = old.rope_parameters["rope_theta"] ** (wide["head_dim"] / old.head_dim)
    return LlamaConfig.from_dict(
        {
            **old.to_dict(),
            **wide,
            "rms_norm_eps": old.rms_norm_eps * old.hidden_size / wide["hidden_size"],
            "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        }
    )


def _head_rows(old: LlamaConfig, wide: LlamaConfig) -> Tensor:
    """Return where the rows of the heads go: each half of a head begins a half of a wide one."""
    half, wide_half = old.head_dim // 2, wide.head_dim // 2
    row = torch.arange(half)
    head = torch.cat([row, wide_half + row])
    starts = wide.head_dim * torch.arange(old.num_attention_heads)
    return torch.flatten(starts[:, None] + head)
