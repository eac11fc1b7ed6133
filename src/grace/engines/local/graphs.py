"""Steps of many rows on a GPU, where each is a CUDA graph that is replayed.

A step of a model of 28 blocks is some 1,300 kernels, and a host thread takes longer to start them
than a GPU to compute them. A graph starts them all at once, but has fixed addresses: so every row
has a place of its own in the KV cache, which it keeps until it ends, with its tokens from the first
column on. Kernels read the places and columns in use, in steps (`_size`, COLUMNS), so that a few
graphs serve all steps.

Shapes: R rows, S places in use, L columns in use, N new rows, P columns of their prompts, H heads,
D size of a head, V vocabulary, X numbers on where a prompt is among those of training.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from grace.engines.local.forward import Forward, Unread

COLUMNS = 128  # the columns in use are a multiple of so many
FEWEST = 16  # places in use
TRIED = 8  # tokens after which a step by places is compared with a usual one
CLOSE = 0.02  # relative difference up to which their logits are the same, in any number format
CAPTURED = "cuda"  # type of the devices that have graphs
LARGE = 1e3  # what a key or value may not be where it counts
log = logging.getLogger(__name__)


class PlacedLayer(DynamicLayer):  # type: ignore[misc]  # transformers has no types
    """The places and columns in use of a layer, into which a step writes at `column_S`."""

    def __init__(self, keys: Tensor, values: Tensor, column_S: Tensor) -> None:
        super().__init__()
        self.keys, self.values, self.is_initialized = keys, values, True
        self._at = (torch.arange(len(keys), device=keys.device), slice(None), column_S)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the states (S, H, 1, D) of a step, and return those of all columns in use."""
        self.keys[self._at], self.values[self._at] = key_states[:, :, 0], value_states[:, :, 0]
        return self.keys, self.values


def rounded(width: int) -> int:
    """Return the columns in use for rows of so many tokens."""
    return -(-width // COLUMNS) * COLUMNS


class Places:
    """The KV cache of up to `count` rows of up to `width` tokens, each in a place of its own."""

    def __init__(self, forward: Forward, count: int, width: int, device: torch.device) -> None:
        self.count, self.width, self._forward = count, rounded(width), forward
        # keys and values (count, H, width, D) by layer
        self._rooms: list[tuple[Tensor, Tensor]] = []
        self._ids_S = torch.zeros(count, dtype=torch.long, device=device)
        self._column_S = torch.zeros_like(self._ids_S)
        self._logits_SV, self._near_SX = torch.empty(0, device=device), torch.empty(0, 0)
        self._place_R = self._ids_S[:0]
        self._size = count  # places in use
        self._graphs: dict[tuple[int, int], Any] = {}  # by places and columns in use
        self.captures = device.type == CAPTURED
        self._pool: Any = None  # memory that the graphs share

    def exchange(self, kept: Tensor, cache: Any, prompt_N: Tensor, length_N: Tensor) -> None:
        """Keep some rows, and add N: the places of their prompts in a left-padded cache."""
        self._place_R = self._place_R[kept]
        self._column_S.zero_()  # those that are free read nothing beyond the columns in use
        if len(length_N):
            new_N = self._free(len(length_N))
            self._copy(cache, new_N, prompt_N, length_N)
            self._place_R = torch.cat((self._place_R, new_N))
        self._size = self.count
        while self._size // 2 >= max(len(self._place_R), FEWEST):
            self._size //= 2
        far_R = self._place_R >= self._size
        from_M = self._place_R[far_R]
        if not len(from_M):
            return
        to_M = self._free(len(from_M))
        for room in (room for rooms in self._rooms for room in rooms):
            room[to_M] = room[from_M]
        self._place_R[far_R] = to_M

    def spoil(self, width: int) -> None:
        """Put large numbers where rows of so many tokens read nothing."""
        for room in (room for rooms in self._rooms for room in rooms):
            room[:, :, width:] = LARGE

    def _free(self, count: int) -> Tensor:
        taken = set(self._place_R.tolist())
        free = [place for place in range(self.count) if place not in taken]
        return torch.tensor(free[:count], dtype=torch.long, device=self._place_R.device)

    def _copy(self, cache: Any, new_N: Tensor, prompt_N: Tensor, length_N: Tensor) -> None:
        """Copy the keys and values of prompts to places, without their padding."""
        if not self._rooms:
            self._prepare(cache)
        columns = cache.layers[0].keys.shape[2]
        at_P = torch.arange(columns, device=length_N.device)
        from_NP = (at_P + columns - length_N[:, None]).clamp(max=columns - 1)
        for layer, rooms in zip(cache.layers, self._rooms, strict=True):
            for held, room in zip((layer.keys, layer.values), rooms, strict=True):
                prompt_NPHD = held[prompt_N[:, None], :, from_NP]
                room[new_N, :, :columns] = prompt_NPHD.transpose(1, 2)

    def _prepare(self, cache: Any) -> None:
        for layer in cache.layers:
            held = layer.keys, layer.values
            shapes = [(self.count, one.shape[1], self.width, one.shape[3]) for one in held]
            # zeros, since what is masked must be a number, too
            keys, values = (one.new_zeros(*s) for one, s in zip(held, shapes, strict=True))
            self._rooms.append((keys, values))

    def step(
        self, token_R: Tensor, position_R: Tensor, near_RX: Tensor, width: int
    ) -> tuple[Tensor, Tensor]:
        """Feed a token of each row, and return logits (R, V) and where its prompt is (R, X).

        Positions are below `width`.
        """
        self._ids_S[self._place_R], self._column_S[self._place_R] = token_R, position_R
        if not len(self._near_SX):
            self._near_SX = near_RX.new_zeros(self.count, near_RX.shape[1])
        self._near_SX[self._place_R] = near_RX
        columns = min(rounded(width), self.width)
        used = (self._size, columns)
        if self.captures and used not in self._graphs:
            self._capture(*used)
        if not self.captures:
            logits_SV = self._run(*used)
            return logits_SV[self._place_R], self._near_SX[self._place_R]
        with torch.cuda.device(self._ids_S.device):
            self._graphs[used].replay()
        return self._logits_SV[self._place_R], self._near_SX[self._place_R]

    def _run(self, places: int, columns: int) -> Tensor:
        """Return the logits (S, V) of the tokens that are in the places now."""
        column_S = self._column_S[:places]
        layers = [
            PlacedLayer(keys[:places, :, :columns], values[:places, :, :columns], column_S)
            for keys, values in self._rooms
        ]
        at_L = torch.arange(columns, device=column_S.device)
        mask_S11L = (at_L <= column_S[:, None])[:, None, None]
        ids_S1, cache = self._ids_S[:places, None], Cache(layers=layers)
        logits_S1V, _ = self._forward(Unread(ids_S1, mask_S11L, column_S[:, None], cache))
        near_SX = self._near_SX[:places]
        near_SX[:] = self._forward.still_near(near_SX)[:, -1]
        return logits_S1V[:, -1]

    def _capture(self, places: int, columns: int) -> None:
        """Add the graph of a step; once there is no memory for one, there are none."""
        try:
            self._graphs[places, columns] = self._captured(places, columns)
        except torch.OutOfMemoryError as error:
            log.warning("steps are not captured as CUDA graphs: %s", error)
            self.captures = False
            self._graphs.clear()

    def _captured(self, places: int, columns: int) -> Any:
        with torch.cuda.device(self._ids_S.device):
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):  # what libraries set up at a first call stays outside
                vocabulary = self._run(places, columns).shape[1]
            torch.cuda.current_stream().wait_stream(stream)
            if not len(self._logits_SV):
                self._logits_SV = self._logits_SV.new_empty(self.count, vocabulary)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, stream=stream):
                self._logits_SV[:places] = self._run(places, columns)
        self._pool = graph.pool()
        return graph


@torch.inference_mode()
def works(forward: Forward, device: torch.device) -> bool:
    """Whether a model steps by places as it does otherwise, tried on a few tokens, captured too."""
    cache, ids_1L = forward.empty_cache(), torch.arange(TRIED, device=device)[None]
    if cache is None or forward.slides:
        return False
    _, cache = forward(Unread(ids_1L[:, :-1], None, ids_1L[:, :-1], cache))
    last_1, near_1X = ids_1L[0, -1:], forward.near([1])[:, -1].to(device)
    places = Places(forward, FEWEST, TRIED, device)
    captures = places.captures
    try:
        places.exchange(last_1[:0], cache, torch.zeros_like(last_1), last_1)
        places.spoil(TRIED)
        got_1V, _ = places.step(last_1, last_1, near_1X, TRIED)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # code of a model's own may need anything
        log.warning("steps are not captured as CUDA graphs: %s", error)
        return False
    if places.captures != captures:
        raise torch.OutOfMemoryError("no memory for a CUDA graph of a step")
    wanted_11V, _ = forward(Unread(last_1[None], None, last_1[None], cache))
    away = float((got_1V - wanted_11V[:, 0]).norm() / wanted_11V.norm())
    if not away <= CLOSE:
        log.warning(
            "steps are not captured as CUDA graphs: their logits differ by %.0f%%", 100 * away
        )
    return away <= CLOSE
