"""The tokens that all sequences of a batch begin with, read once for all of them.

Few-shot examples and instructions are the longest part of most prompts. Their keys and values are
computed for one row and laid out for every row of the batch just as left padding would have them:
a shorter sequence has its padding in front, then its part of the prefix. What is left to compute
is the same number of columns for every row, the last ones. So masks, positions and the distances
that sliding windows count are those of the batch without a shared prefix.

Shapes: B sequences, L padded length, P shared tokens, C columns left, D size of a head.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from grace.engines.local.forward import Forward, left_pad

SHORTEST = 16  # shared tokens for which it is worth while
Ids = Sequence[int]


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
