"""Training a small Llama on packed rows, fast on a CPU, and on a GPU where the model is on one.

The forward is written out in a few lines over the parameters of `LlamaForCausalLM`, because one
graph without masks compiles to something several times faster than the general model; a test
checks that both give the same logits. Shapes: B rows, T tokens, D width, H heads, V vocabulary.
"""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rich.progress import track
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

_SAVED_EVERY = 100


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """The settings of the training.

    Attributes:
        row_length: Tokens in a row.
        rows_per_step: Rows in a step.
        passes: How many times the corpus is read.
        learning_rate: Peak of AdamW's learning rate; cosine decay to 2% of it.
        weight_decay: AdamW's weight decay, on matrices only.
        warmup: Share of the steps with a rising learning rate.
        compile: Whether to try `torch.compile`, several times faster where a compiler is present.
    """

    row_length: int = 256
    rows_per_step: int = 8
    passes: int = 1
    learning_rate: float = 3e-3
    weight_decay: float = 0.05
    warmup: float = 0.03
    compile: bool = True


def causal_logits(model: LlamaForCausalLM, ids_BT: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the logits (B, T, V) in float32, with the matrix products in `dtype`."""
    num_heads = model.config.num_attention_heads
    cos_TE, sin_TE = _rotary(ids_BT.shape[1], model.config.head_dim, model.config)
    cos_TE, sin_TE = cos_TE.to(ids_BT.device, dtype), sin_TE.to(ids_BT.device, dtype)

    def linear(x: Tensor, layer: Any) -> Tensor:
        return F.linear(x, layer.weight.to(dtype))

    def norm(x: Tensor, layer: Any) -> Tensor:
        x = x.float()
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + model.config.rms_norm_eps)
        scaled: Tensor = x * scale * layer.weight
        return scaled.to(dtype)

    def heads(x_BTD: Tensor) -> Tensor:
        return x_BTD.reshape(*x_BTD.shape[:2], num_heads, -1).transpose(1, 2)

    def rotate(x: Tensor) -> Tensor:
        left, right = x.chunk(2, -1)
        return x * cos_TE + torch.cat([-right, left], -1) * sin_TE

    hidden_BTD = model.model.embed_tokens(ids_BT)
    for layer in model.model.layers:
        x, attention, mlp = norm(hidden_BTD, layer.input_layernorm), layer.self_attn, layer.mlp
        q, k, v = (
            heads(linear(x, p)) for p in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        mixed = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
        hidden_BTD = hidden_BTD + linear(mixed.transpose(1, 2).flatten(2), attention.o_proj)
        x = norm(hidden_BTD, layer.post_attention_layernorm)
        gated = F.silu(linear(x, mlp.gate_proj)) * linear(x, mlp.up_proj)
        hidden_BTD = hidden_BTD + linear(gated, mlp.down_proj)
    return linear(norm(hidden_BTD, model.model.norm), model.lm_head).float()


def _rotary(length: int, head_dim: int, config: LlamaConfig) -> tuple[Tensor, Tensor]:
    theta = config.rope_parameters["rope_theta"]
    speeds = theta ** (-torch.arange(0, head_dim, 2) / head_dim)
    angles = torch.outer(torch.arange(length), speeds)
    angles = torch.cat([angles, angles], -1)
    return angles.cos(), angles.sin()


def weighted_loss(logits_BTV: Tensor, ids_BT: Tensor, weights_BT: Tensor) -> Tensor:
    """Return the weighted mean cross-entropy of the next tokens."""
    losses = F.cross_entropy(
        logits_BTV[:, :-1].flatten(0, 1), ids_BT[:, 1:].flatten(), reduction="none"
    )
    weights = weights_BT[:, 1:].flatten()
    return (losses * weights).sum() / weights.sum().clamp(min=1)


def train(
    model: LlamaForCausalLM,
    ids_RT: np.ndarray,
    weights_RT: np.ndarray,
    settings: TrainSettings,
    saved: Path,
) -> str:
    """Train in place, from where an interrupted training on the same rows stopped.

    Args:
        model: The decoder, on the device to train on.
        ids_RT: Token ids of shape (rows, row length).
        weights_RT: Each token's weight in the loss, of the same shape.
        settings: How to train.
        saved: File that holds the state while the training is unfinished.

    Returns:
        What the steps ran on, such as `compiled bfloat16 on cpu`.
    """
    device = model.device
    dtype = fastest_dtype() if device.type == "cpu" else torch.bfloat16
    order = np.tile(np.arange(len(ids_RT)), settings.passes)
    num_steps = len(order) // settings.rows_per_step
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    groups: list[dict[str, Any]] = [{"params": decay}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(
        groups,
        lr=settings.learning_rate,
        betas=(0.9, 0.98),
        weight_decay=settings.weight_decay,
        fused=True,
    )

    def loss_of(ids_BT: Tensor, weights_BT: Tensor) -> Tensor:
        return weighted_loss(causal_logits(model, ids_BT, dtype), ids_BT, weights_BT)

    def rows_of(rows: Any) -> tuple[Tensor, Tensor]:
        ids_BT, weights_BT = torch.from_numpy(ids_RT[rows]), torch.from_numpy(weights_RT[rows])
        return ids_BT.to(device), weights_BT.to(device)

    first = rows_of(slice(0, settings.rows_per_step))
    step_loss, how = _compiled(loss_of, first) if settings.compile else (loss_of, "eager")
    rows_key = zlib.crc32(ids_RT.tobytes())
    done = _resume(saved, rows_key, model, optimizer)
    for step in track(range(done, num_steps), "training", total=num_steps, completed=done):
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * _schedule(step, num_steps, settings.warmup)
        rows = order[step * settings.rows_per_step : (step + 1) * settings.rows_per_step]
        loss = step_loss(*rows_of(rows))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % _SAVED_EVERY == 0:
            _save(saved, rows_key, step + 1, model, optimizer)
    saved.unlink(missing_ok=True)
    return f"{how} {str(dtype).removeprefix('torch.')} on {device.type}"


def _save(
    saved: Path, rows_key: int, step: int, model: LlamaForCausalLM, optimizer: torch.optim.AdamW
) -> None:
    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    saved.parent.mkdir(parents=True, exist_ok=True)
    part = saved.with_suffix(".part")
    torch.save({"rows": rows_key, "step": step, **states}, part)
    part.replace(saved)


def _resume(
    saved: Path, rows_key: int, model: LlamaForCausalLM, optimizer: torch.optim.AdamW
) -> int:
    """Restore a state that was saved on the same rows; return the number of steps done."""
    if not saved.exists():
        return 0
    found = torch.load(saved, map_location=model.device, weights_only=True)
    if found["rows"] != rows_key:
        return 0
    model.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
    return int(found["step"])


def _compiled(
    loss_of: Callable[[Tensor, Tensor], Tensor], first: tuple[Tensor, Tensor]
) -> tuple[Callable[[Tensor, Tensor], Tensor], str]:
    """Compile the loss and tries it once; without a working compiler it stays eager."""
    compiled = torch.compile(loss_of, dynamic=False)
    try:
        torch.autograd.backward(compiled(*first))
    except Exception:  # any compiler trouble at all: eager gives the same numbers, only later
        return loss_of, "eager"
    return compiled, "compiled"


def _schedule(step: int, num_steps: int, warmup: float) -> float:
    done = (step + 1) / num_steps
    if done < warmup:
        return done / warmup
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (done - warmup) / (1 - warmup)))


def fastest_dtype() -> torch.dtype:
    """Return bfloat16 where this processor multiplies it faster than float32."""
    return min((torch.float32, torch.bfloat16), key=_seconds_per_product)


def _seconds_per_product(dtype: torch.dtype) -> float:
    a, b = torch.ones(2048, 192, dtype=dtype), torch.ones(192, 512, dtype=dtype)
    a @ b
    start_s = time.perf_counter()
    for _ in range(5):
        a @ b
    return time.perf_counter() - start_s
