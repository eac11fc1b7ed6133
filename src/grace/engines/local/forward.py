"""Calling the model: padded batches in, float32 logits or hidden states out.

The tokens that all sequences of a batch begin with are read once for all of them. Few-shot examples
and instructions are the longest part of most prompts. Their keys and values are computed for one
row and laid out for every row of the batch just as left padding would have them: a shorter sequence
has its padding in front, then its part of the prefix. What is left to compute is the same number of
columns for every row, the last ones. So masks, positions and the distances that sliding windows
count are those of the batch without a shared prefix.

Shapes: B sequences in a batch, L padded length, P shared tokens, C columns left, D hidden size (of
a head in the cache).
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

SHORTEST = 16  # shared tokens for which it is worth while
Ids = Sequence[int]


class Forward:
    """Calls the model with the arguments that it knows; returns (float32 logits, cache)."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._base = model.get_base_model() if hasattr(model, "get_base_model") else model
        decoder = self._base.base_model
        self._decoder = self._base.model if decoder is self._base else decoder  # Llama 4 names none
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
        states_BLD: Tensor = self._decoder(
            input_ids=ids_BL, attention_mask=mask_BL, use_cache=cache is not None, **extra
        ).last_hidden_state
        return states_BLD

    def empty_cache(self) -> Any:
        """Return a cache of keys and values alone, which keeps every position.

        None where the model keeps something else as well, a state that runs along the sequence
        say, which cannot be moved from one place in a batch to another.
        """
        from transformers.cache_utils import (
            Cache,
            DynamicCache,
            DynamicLayer,
            DynamicSlidingWindowLayer,
        )

        from grace.engines.local.cache import RoomyLayer

        if not self._rearranges or getattr(self._base, "_is_stateful", False):
            return None
        own = DynamicCache(config=self._base.config).layers
        plain = {type(layer) for layer in own} <= {DynamicLayer, DynamicSlidingWindowLayer}
        return Cache(layer_class_to_replicate=RoomyLayer) if plain else None


def left_pad(
    sequences: Sequence[Sequence[int]], device: torch.device, pad: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids, mask and positions, each (B, L), padded on the left."""
    length = max(map(len, sequences))
    ids = torch.tensor([[pad] * (length - len(s)) + list(s) for s in sequences], device=device)
    padding = torch.tensor([length - len(s) for s in sequences], device=device)
    positions = torch.arange(length, device=device) - padding[:, None]
    return ids, (positions >= 0).long(), positions.clamp_min(0)


class Unread(NamedTuple):
    """What the model has left to read of a padded batch.

    `ids_BC` and `positions_BC` are of the last columns, `mask_BL` of all, None where nothing is
    padded; `cache` holds what stands before the columns, None where nothing does.
    """

    ids_BC: Tensor
    mask_BL: Tensor | None
    positions_BC: Tensor
    cache: Any = None


@torch.inference_mode()
def begin(forward: Forward, sequences: Sequence[Ids], device: torch.device, keep: int) -> Unread:
    """Return a batch of which the shared prefix, if it is long enough, has been read.

    Args:
        forward: the model.
        sequences: token ids.
        device: the model's.
        keep: columns at the end that the model must still read, for their outputs are wanted.
    """
    return read(forward, *left_pad(sequences, device, pad=0), shared(sequences), keep)


def read(
    forward: Forward, ids_BL: Tensor, mask_BL: Tensor, positions_BL: Tensor, length: int, keep: int
) -> Unread:
    """Return a left-padded batch of which the first `length` tokens of every sequence are read.

    Fewer, so that `keep` columns are left, or none, where that is not worth while. A gradient
    goes through what was read.
    """
    count_B1, width = mask_BL.sum(1, keepdim=True), ids_BL.shape[1]
    ragged = bool((count_B1 != width).any())
    whole = Unread(ids_BL, mask_BL if ragged else None, positions_BL)
    length = min(length, width - keep)
    if len(ids_BL) == 1 or length < SHORTEST:
        return whole
    cache = forward.empty_cache()
    if cache is None:
        return whole
    at_P = torch.arange(length, device=ids_BL.device)
    prefix_1P = ids_BL[:1, width - int(count_B1[0]) :][:, :length]
    forward.states(prefix_1P, None, at_P[None], cache)
    places_BP = (at_P - (width - count_B1)).clamp_min(0)
    return Unread(
        ids_BL[:, length:], whole.mask_BL, positions_BL[:, length:], _laid_out(cache, places_BP)
    )


def shared(sequences: Sequence[Ids]) -> int:
    """Return how many tokens all sequences begin with, 0 where that is not worth while."""
    first, last = min(sequences, key=tuple), max(sequences, key=tuple)
    alike = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    length = sum(1 for _ in alike)
    return length if length >= SHORTEST else 0


def _laid_out(cache: Any, places_BP: Tensor) -> Any:
    """Return the cache with a row per sequence: each column from its place in the prefix."""
    for layer in cache.layers:
        for name in ("keys", "values"):
            states_PHD = getattr(layer, name)[0].transpose(0, 1)
            setattr(layer, name, states_PHD[places_BP].transpose(1, 2).contiguous())
    return cache
