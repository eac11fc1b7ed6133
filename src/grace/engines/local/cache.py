"""A KV cache with spare room for the next tokens, whose rows can be exchanged.

The usual cache of transformers is copied whole at every step, which after a long prompt takes
longer than the model's own arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer

SPARE = 8  # one spare column for every 8 in use, so that copies become rare
BLOCK = {"cuda": 64}  # rooms have a multiple of so many: the same sizes need no new memory


class RoomyLayer(DynamicLayer):  # type: ignore[misc]  # transformers has no types
    """A layer whose keys and values (B, H, L, D) are the first L columns of larger tensors.

    If they have been replaced, for example by fewer rows, the next step makes new room. With
    gradients, nothing is written in place.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.keys: Tensor
        self.values: Tensor
        self._rooms: dict[str, Tensor] = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append columns and return all keys and values (see `DynamicLayer`)."""
        if torch.is_grad_enabled() or self.get_seq_length() == 0:
            super().update(key_states, value_states, *args, **kwargs)
            return self.keys, self.values
        self.keys = self._appended("keys", self.keys, key_states)
        self.values = self._appended("values", self.values, value_states)
        return self.keys, self.values

    def regroup(self, rows_of: Sequence[tuple[RoomyLayer, Tensor]], width: int) -> None:
        """Take some rows of some layers, this one among them, and the last `width` columns."""
        for name in ("keys", "values"):
            parts = [getattr(layer, name)[rows] for layer, rows in rows_of]
            rows, (_, heads, _, size) = sum(map(len, parts)), parts[0].shape
            room = parts[0].new_empty(rows, heads, _roomy(width, parts[0].device), size)
            start = 0
            for part in parts:
                part = part[:, :, -width:]
                place, padding = room[start : start + len(part)], width - part.shape[2]
                place[:, :, :padding] = 0  # what is masked must be a number, too
                place[:, :, padding:width] = part
                start += len(part)
            self._rooms[name] = room
            setattr(self, name, room[:, :, :width])

    def _appended(self, name: str, held: Tensor, new: Tensor) -> Tensor:
        start, end = held.shape[-2], held.shape[-2] + new.shape[-2]
        room = self._rooms.get(name)
        if (
            room is None
            or room.data_ptr() != held.data_ptr()
            or room.shape[:2] != held.shape[:2]
            or room.shape[-2] < end
        ):
            room = held.new_empty(*held.shape[:2], _roomy(end, held.device), held.shape[-1])
            room[:, :, :start] = held
            self._rooms[name] = room
        room[:, :, start:end] = new
        return room[:, :, :end]


def _roomy(columns: int, device: torch.device) -> int:
    """Return the columns of a room that holds so many, with spare ones."""
    block = BLOCK.get(device.type, 1)
    return (columns + columns // SPARE) // block * block + block


def regroup(cache: Any, kept: Tensor, others: Any, added: Tensor, width: int) -> bool:
    """Keep some rows of a cache and add some of another, in `width` columns; False if it cannot."""
    if all(isinstance(layer, RoomyLayer) for layer in cache.layers):
        for at, layer in enumerate(cache.layers):
            more = [(others.layers[at], added)] if others else []
            layer.regroup([(layer, kept), *more], width)
        return True
    cache.reorder_cache(kept)
    return False
