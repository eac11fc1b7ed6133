"""A layer in the middle: the activations inside its MLP, from which c can be read in this process.

They are read with a model's own forward pass, so they cost nothing. Each is divided by the root
mean square of what the last block passes on, as the final norm divides the last hidden state, and
where a norm follows the MLP, as in Gemma 3, by that of the MLP's output, as this norm divides it.

Shapes: B sequences, L positions, D hidden size, H width of the MLP, E tokens that are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from grace.errors import ModelError

CARRIED = ("llama", "mistral", "qwen2", "qwen3", "phi3", "smollm3", "gemma3_text")
"""Types of models whose blocks add to a residual stream that only RMS norms read, so that an export
can carry a layer in the middle to the end (`grace.export.widening`). Gemma 2 caps its logits."""
DEPTHS = (0.4, 0.5, 0.6, 0.75)
"""Depths of the blocks among which `grace.layer=-1` chooses; 1 is the last block."""
SMALLEST = torch.finfo(torch.float32).tiny  # a padding token alone has a state of zero


class LayerRows(NamedTuple):
    """What the logits of the tokens that are read gain from the MLP of a block, counted from 1."""

    layer: int
    rows_EH: Tensor


class PromptEnds(NamedTuple):
    """The MLP of a block, counted from 1, at the end of the prompts of S sources of training."""

    layer: int
    mean_SH: Tensor
    spread_SH: Tensor
    own: tuple[tuple[int, Tensor], ...] = ()  # blocks, and rows (S, Q, H) of sources' own there

    def nearest(self, seen_BH: Tensor) -> tuple[Tensor, Tensor]:
        """Return distance and place of the nearest source (B,) (`grace.methods.grace.prompts`)."""
        sources = zip(self.mean_SH, self.spread_SH, strict=True)
        away = [((seen_BH - mean) / spread).square().mean(-1) for mean, spread in sources]
        distance_B, source_B = torch.stack(away).min(0)
        return distance_B, source_B

    def read(self, taps: Taps, source_B: Tensor, keep: int) -> Tensor:
        """Return what the rows of the nearest source's own read at the last positions (B, K, Q)."""
        read = [  # of one block after the other: what is seen in each may take gigabytes
            taps(layer, keep) @ rows_SQH[source_B.to(rows_SQH.device)].mT
            for layer, rows_SQH in self.own
        ]
        return torch.stack([one_BKQ.to(source_B.device) for one_BKQ in read]).sum(0)


def blocks(model: Any) -> nn.ModuleList:
    """Return the blocks that text passes: the longest list of modules of the decoder."""
    lists = [one for one in model.get_decoder().modules() if isinstance(one, nn.ModuleList)]
    if not lists:
        raise ModelError(f"a {type(model).__name__} has no list of blocks; use grace.layer=0")
    return max(lists, key=len)


def skeleton(config: Any, *, trust_remote_code: bool = False) -> Any:
    """Return a model without weights, on the device `meta`, to look at its blocks."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    with torch.device("meta"):
        try:
            return AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
        except ValueError:  # it also takes images
            return AutoModelForImageTextToText.from_config(config)


def mlp_output(model: Any, layer: int) -> nn.Linear:
    """Return the linear layer with which the MLP of a block, counted from 1, writes its output."""
    every = blocks(model)
    if not 1 <= layer <= len(every):
        raise ModelError(
            f"grace.layer is {layer}, but {type(model).__name__} has {len(every)} blocks; "
            f"use 1 to {len(every)}"
        )
    size = model.config.get_text_config().hidden_size
    writing = [
        module
        for name, module in every[layer - 1].named_modules()
        if isinstance(module, nn.Linear) and module.out_features == size and _in_mlp(name)
    ]
    if not writing:
        raise ModelError(
            f"the MLP of block {layer} of a {type(model).__name__} does not end in one linear "
            "layer, as in a mixture of experts; use grace.layer=0"
        )
    return writing[-1]


def _in_mlp(name: str) -> bool:
    parents = name.split(".")[:-1]
    return not {"mlp", "feed_forward", "ffn"}.isdisjoint(parents) and "expert" not in name


def can_carry(model: Any) -> bool:
    """Return whether an export can carry a block to the end: of these types, with plain weights."""
    quantized = getattr(model.config, "quantization_config", None) is not None
    return model.config.model_type in CARRIED and not quantized


def candidates(model: Any) -> list[int]:
    """Return the blocks among which `grace.layer=-1` chooses: those that every export can carry."""
    if not can_carry(model):
        return []
    count = len(blocks(model))
    return sorted({min(max(round(depth * count), 1), count) for depth in DEPTHS})


def post_norm_epsilon(block: nn.Module) -> float | None:
    """Return the epsilon of the norm between the MLP of a block and the residual stream, if any."""
    norm = getattr(block, "post_feedforward_layernorm", None)
    if norm is None:
        return None
    return float(getattr(norm, "eps", None) or norm.variance_epsilon)


class Taps:
    """Keeps the activations inside the MLPs of some blocks whenever the model is called."""

    def __init__(self, model: Any, layers: Sequence[int]) -> None:
        self._seen: dict[int, Tensor] = {}
        self._last_BLD = torch.ones(1, 1, 1)
        self._handles = [
            mlp_output(model, layer).register_forward_hook(
                self._keep(layer, epsilon=post_norm_epsilon(blocks(model)[layer - 1]))
            )
            for layer in layers
        ]
        self._handles.append(blocks(model)[-1].register_forward_hook(self._keep_last))

    def __call__(self, layer: int, keep: int = 0) -> Tensor:
        """Return the activations at the last `keep` positions of the last call, 0 for all."""
        state_BKD = self._last_BLD[:, -keep:].float()
        rms_BK1 = state_BKD.square().mean(-1, keepdim=True).sqrt()
        return self._seen[layer][:, -keep:].float() / rms_BK1.clamp(min=SMALLEST)

    def remove(self) -> None:
        """Leave the model as it was."""
        for handle in self._handles:
            handle.remove()

    def _keep(self, layer: int, epsilon: float | None) -> Any:
        def keep(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            seen = inputs[0]
            if epsilon is not None:
                mean_square = output.float().square().mean(-1, keepdim=True)
                seen = seen.float() * (mean_square + epsilon).rsqrt()
            self._seen[layer] = seen

        return keep

    def _keep_last(self, _: nn.Module, inputs: Any, output: Any) -> None:
        self._last_BLD = output[0] if isinstance(output, tuple) else output


@contextmanager
def tapped(model: Any, layers: Sequence[int]) -> Iterator[Taps]:
    """Yield what keeps the activations of some blocks, and remove it at the end."""
    taps = Taps(model, layers)
    try:
        yield taps
    finally:
        taps.remove()
