"""Calling the model: padded batches in, float32 logits or hidden states out.

Shapes: B sequences in a batch, L padded length, D hidden size.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class Forward:
    """Calls the model with the arguments that it knows; returns (float32 logits, cache)."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._base = model.get_base_model() if hasattr(model, "get_base_model") else model
        known = inspect.signature(self._base.forward).parameters
        self._keeps = "logits_to_keep" in known
        self._positions = "position_ids" in known
        self._rearranges = self._positions and "past_key_values" in known

    def __call__(
        self,
        ids_BL: Tensor,
        mask_BL: Tensor | None,
        positions_BL: Tensor,
        *,
        keep: int = 1,
        cache: Any = None,
        use_cache: bool = False,
    ) -> tuple[Tensor, Any]:
        """Return the logits of the last `keep` positions, and the cache."""
        extra: dict[str, Any] = {"position_ids": positions_BL} if self._positions else {}
        if self._keeps:
            extra["logits_to_keep"] = keep
        out = self.model(
            input_ids=ids_BL,
            attention_mask=mask_BL,
            past_key_values=cache,
            use_cache=use_cache,
            **extra,
        )
        return out.logits[:, -keep:].float(), out.past_key_values if use_cache else None

    def states(
        self, ids_BL: Tensor, mask_BL: Tensor | None, positions_BL: Tensor, cache: Any = None
    ) -> Tensor:
        """Return the last layer's hidden states after the final norm, shape (B, L, D).

        A cache is gone on with, and has the new positions too afterwards.
        """
        extra: dict[str, Any] = {"position_ids": positions_BL} if self._positions else {}
        if cache is not None:
            extra["past_key_values"] = cache
        states_BLD: Tensor = self._base.base_model(
            input_ids=ids_BL, attention_mask=mask_BL, use_cache=cache is not None, **extra
        ).last_hidden_state
        return states_BLD

    def empty_cache(self) -> Any:
        """Return a cache of keys and values alone, which keeps every position.

        None where the model keeps something else as well, a state that runs along the sequence
        say, which cannot be moved from one place in a batch to another.
        """
        from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

        if not self._rearranges or getattr(self._base, "_is_stateful", False):
            return None
        own = DynamicCache(config=self._base.config).layers
        plain = {type(layer) for layer in own} <= {DynamicLayer, DynamicSlidingWindowLayer}
        return DynamicCache() if plain else None


def left_pad(
    sequences: Sequence[Sequence[int]], device: torch.device, pad: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids, mask and positions, each (B, L), padded on the left."""
    length = max(map(len, sequences))
    ids = torch.tensor([[pad] * (length - len(s)) + list(s) for s in sequences], device=device)
    padding = torch.tensor([length - len(s) for s in sequences], device=device)
    positions = torch.arange(length, device=device) - padding[:, None]
    return ids, (positions >= 0).long(), positions.clamp_min(0)
