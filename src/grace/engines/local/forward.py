"""Call the model on padded batches, and return float32 logits or hidden states.

A prefix that all sequences of a batch share, such as instructions and few-shot examples, is
computed once: its keys and values are computed for one row, and copied to every row at the columns
where left padding would put them. Every row then has the same number of columns left to compute,
the last ones, and masks, positions and the distances of sliding windows are those of the batch
without a shared prefix.

Shapes: B sequences in a batch, L padded length, P shared tokens, C columns left, K kept ones of
them, N kept positions of a batch, V vocabulary, E tokens that are read, D hidden size (of a head in
the cache).
"""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from grace.cnf import HeadShape
from grace.engines import Ids
from grace.engines.local.layers import LayerRows, PromptEnds, Taps
from grace.errors import ComputeError, ModelError

SHORTEST = 16  # shared tokens that are worth a call of their own
PROBED = 8  # tokens on which an output head is measured
NEAR = 64  # products of its rows and their states that are measured, the smallest
CLOSE = 0.01  # relative difference up to which two of its measures are the same
SAME = 1e-3  # relative difference up to which logits are those of the whole model


def cache_argument(model: Any) -> str:
    """Return what `forward` calls its KV cache (renamed in transformers 5.24); empty if nothing."""
    accepted = inspect.signature(model.forward).parameters
    names = ("cache", "past_key_values") if "attention_mask" in accepted else ()
    return next((name for name in names if name in accepted), "")


class Forward:
    """Calls a model with those of the arguments that its `forward` accepts."""

    def __init__(
        self,
        model: Any,
        read: Ids = (),
        rows: LayerRows | None = None,
        ends: PromptEnds | None = None,
    ) -> None:
        self.model, self.ends = model, ends
        self._rows = rows
        layers = {part.layer for part in (rows, ends) if part is not None}
        layers |= {layer for layer, _ in ends.own} if ends else set()
        self._taps = Taps(model, sorted(layers)) if layers else None
        self._base = model.get_base_model() if hasattr(model, "get_base_model") else model
        head = self._base.get_output_embeddings() or self._base.get_input_embeddings()
        self._read = torch.tensor(read, dtype=torch.long, device=head.weight.device)
        decoder = self._base.base_model
        # Llama 4 names no base model.
        self._decoder = self._base.model if decoder is self._base else decoder
        accepted = inspect.signature(self._base.forward).parameters
        self._keeps = "logits_to_keep" in accepted
        self._positions = "position_ids" in accepted
        self._cache = cache_argument(self._base)

    def __call__(
        self, unread: Unread, *, keep: int = 1, use_cache: bool = False
    ) -> tuple[Tensor, Any]:
        """Return the float32 logits of the last `keep` positions, and the cache if it is used."""
        use_cache = use_cache or unread.cache is not None
        given = self._given(unread)
        if self._keeps:
            given["logits_to_keep"] = keep
        out = self.model(use_cache=use_cache, **given)
        logits_BKV = out.logits[:, -keep:].float()
        gains_BKE = self._gains(keep)
        if gains_BKE is not None:
            logits_BKV[..., self._read] += gains_BKE.to(logits_BKV.device)
        return logits_BKV, out[self._cache] if use_cache else None

    def near(self, back: Sequence[int]) -> Tensor:
        """Return where the prompts of the last call are that ended so many positions ago (B, K, X).

        The distance from the nearest source and, if it has rows of its own, its place and what
        these read at the last K positions; X is 0 without `ends`.
        """
        if self.ends is None or self._taps is None:
            return torch.empty(len(back), max(back), 0, device=self._read.device)
        ended = (range(len(back)), [-place for place in back])
        ended_BH = self._taps(self.ends.layer, max(back))[ended]
        near_BX = torch.stack(self.ends.nearest(ended_BH), dim=1)
        return self.still_near(near_BX[:, : 1 + bool(self.ends.own)], max(back))

    def still_near(self, near_BX: Tensor, keep: int = 1) -> Tensor:
        """Return the same after a further call, of prompts whose distance and source are known."""
        near_BKX = near_BX[:, None, :2].expand(-1, keep, -1)
        if self.ends is None or self._taps is None or not self.ends.own:
            return near_BKX
        own_BKQ = self.ends.read(self._taps, near_BX[:, 1].long(), keep)
        return torch.cat([near_BKX, own_BKQ], dim=2)

    def logits(
        self, unread: Unread, kept_BK: Tensor, at_once: int, *, few: bool = False
    ) -> Iterator[Tensor]:
        """Yield float32 logits (N, V) of the marked ones of the last K columns; `few`: (N, E)."""
        if few or self.apart:
            yield from self._headed(self._decoded(unread), kept_BK, at_once, few=few)
            return
        logits_BKV, _ = self(unread, keep=kept_BK.shape[1])
        for logits_KV, kept_K in zip(logits_BKV, kept_BK, strict=True):
            yield from logits_KV[kept_K].split(at_once)

    def _headed(self, output: Any, kept_BK: Tensor, at_once: int, *, few: bool) -> Iterator[Tensor]:
        """Yield the logits of what the decoder has just returned (see `logits`)."""
        keep = kept_BK.shape[1]
        states_ND = output.last_hidden_state[:, -keep:][kept_BK]
        gains_BKE, head = self._gains(keep), self._after(type(output), few=few)
        gains_NE = states_ND[:, :0] if gains_BKE is None else gains_BKE[kept_BK]
        for some_ND, gain_NE in zip(states_ND.split(at_once), gains_NE.split(at_once), strict=True):
            logits_NV = head(some_ND)
            if gains_BKE is not None:
                logits_NV[:, slice(None) if few else self._read] += gain_NE.to(logits_NV.device)
            yield logits_NV

    @functools.cached_property
    def apart(self) -> bool:
        """Whether what follows the decoder can be called on states alone, as tried on a few."""
        return self._works(few=False)

    @functools.cached_property
    def reads_few(self) -> bool:
        """Whether it can be called so for the tokens that are read alone, with a few rows."""
        return len(self._read) > 0 and self._works(few=True)

    @torch.inference_mode()
    def _works(self, *, few: bool) -> bool:
        probe = self._probe()
        wanted_1LV, _ = self(probe, keep=PROBED)
        all_1L = torch.ones_like(probe.ids_BC, dtype=torch.bool)
        output = self._decoded(probe)
        try:
            (logits_LV,) = self._headed(output, all_1L, PROBED, few=few)
        except Exception:  # code of a model's own may need anything
            return False
        wanted_LV = wanted_1LV[0, :, self._read] if few else wanted_1LV[0]
        if logits_LV.shape != wanted_LV.shape:
            return False
        wanted_LV = wanted_LV.to(logits_LV.device)
        return bool((logits_LV - wanted_LV).norm() <= SAME * wanted_LV.norm())

    def _after(self, kind: type, *, few: bool) -> Callable[[Tensor], Tensor]:
        """Return the model's own code after its decoder, which turns states (N, D) into logits."""
        decoder, model = copy.copy(self._decoder), copy.copy(self._base)
        vars(model).pop("forward", None)  # one that an instance has would call the real decoder
        others = {self._decoder: decoder}
        if few:
            whole = self._base.get_output_embeddings()
            others[whole] = head = copy.copy(whole)
            head._parameters = {
                name: None if rows is None else rows[self._read]
                for name, rows in whole._parameters.items()
            }
        model._modules = {
            name: others.get(module, module) for name, module in self._base._modules.items()
        }

        def logits(states_ND: Tensor) -> Tensor:
            decoder.forward = lambda *_, **__: kind(last_hidden_state=states_ND[None])
            no_ids_1N = torch.zeros(1, len(states_ND), dtype=torch.long, device=states_ND.device)
            logits_NV: Tensor = model(input_ids=no_ids_1N, use_cache=False).logits[0].float()
            return logits_NV

        return logits

    def _gains(self, keep: int) -> Tensor | None:
        """Return what the logits of the tokens that are read gain after a call, (B, K, E)."""
        if self._rows is None or self._taps is None:
            return None
        return self._taps(self._rows.layer, keep) @ self._rows.rows_EH.T

    def states(self, unread: Unread) -> Tensor:
        """Return the last hidden states after the final norm (B, C, D), and extend the cache."""
        states_BCD: Tensor = self._decoded(unread).last_hidden_state
        return states_BCD

    def _decoded(self, unread: Unread) -> Any:
        return self._decoder(use_cache=unread.cache is not None, **self._given(unread))

    def _given(self, unread: Unread) -> dict[str, Any]:
        given = {"input_ids": unread.ids_BC, "attention_mask": unread.mask_BL}
        if self._positions:
            given["position_ids"] = unread.positions_BC
        return given if unread.cache is None else {**given, self._cache: unread.cache}

    def _probe(self, cache: Any = None) -> Unread:
        ids_1L = torch.arange(PROBED, device=self._base.get_input_embeddings().weight.device)[None]
        return Unread(ids_1L, None, ids_1L, cache)

    @functools.cached_property
    @torch.inference_mode()
    def bytes_per_token(self) -> int:
        """The bytes that a token takes in the KV cache; 0 if the model has a memory of its own."""
        cache = self.empty_cache()
        if cache is None:
            return 0
        self.states(self._probe(cache))
        sizes = [layer.keys.nbytes + layer.values.nbytes for layer in cache.layers]
        return int(sum(sizes)) // PROBED

    def empty_cache(self) -> Any:
        """Return an empty KV cache; None if the model keeps anything else, as a hybrid does."""
        from transformers.cache_utils import Cache, DynamicLayer, DynamicSlidingWindowLayer

        from grace.engines.local.cache import RoomyLayer

        if not self._positions or getattr(self._base, "_is_stateful", False):
            return None
        plain = self._layers <= {DynamicLayer, DynamicSlidingWindowLayer}
        return Cache(layer_class_to_replicate=RoomyLayer) if plain else None

    @property
    def slides(self) -> bool:
        """Whether a layer sees the last positions only."""
        return any(layer.is_sliding for layer in self._layers)

    @property
    def _layers(self) -> set[Any]:
        """The kinds of layers of the usual KV cache."""
        from transformers.cache_utils import DynamicCache

        return {type(layer) for layer in DynamicCache(config=self._base.config).layers}


@torch.inference_mode()
def head_shape(model: Any, count: int) -> HeadShape:
    """Measure the properties of an output head, as models name them in many ways."""
    head, forward = model.get_output_embeddings(), Forward(model)
    place_1L = torch.arange(PROBED, device=head.weight.device)[None]
    read: list[tuple[Tensor, Tensor]] = []
    unread = Unread(place_1L + count // 2, None, place_1L)
    with head.register_forward_hook(lambda _, given, output: read.append((given[0], output))):
        logits_1LV, _ = forward(unread, keep=PROBED)
    states_1LD = forward.states(unread)
    scale = _scale(states_1LD, *read[-1], logits_1LV)
    if scale is None:
        raise ModelError(
            f"the output head of a {type(model).__name__} reads something other than the last "
            "hidden states, so no confidence can be fitted to these; use method=paper"
        )
    config = model.config.get_text_config()
    named = float(getattr(config, "logit_scale", None) or 1.0)
    named /= getattr(config, "logits_scaling", None) or 1.0
    capped = bool(getattr(config, "final_logit_softcapping", None))
    mean_D = head.weight[:count].float().mean(0).cpu().numpy()
    return HeadShape(mean_D, named if abs(scale / named - 1) < CLOSE else scale, capped)


def _scale(
    states_1LD: Tensor, read_1LD: Tensor, products_1LV: Tensor, logits_1LV: Tensor
) -> float | None:
    """Return the factor from product to logit, by the smallest ones, which no soft cap changes."""
    states, read = states_1LD.double(), read_1LD.double()
    before = (read * states).sum() / states.square().sum()
    if (read - before * states).norm() > CLOSE * read.norm():
        return None
    products, logits = products_1LV.flatten().double(), logits_1LV.flatten().double()
    size = products.abs().where(products != 0, torch.inf)
    near = size.topk(NEAR, largest=False).indices
    return float(before * (logits[near] / products[near]).median())


def numbers(values: Tensor) -> Tensor:
    """Return what a model has computed, after a check that it is made of numbers."""
    if bool(values.isnan().any()):
        raise ComputeError(
            "the model computes values that are not numbers (NaN): they exceed its number format, "
            "or its weights are damaged; use the dtype float32 or bfloat16, or download it again"
        )
    return values


def left_pad(
    sequences: Sequence[Ids], device: torch.device, pad: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids, mask and positions, each (B, L), padded on the left."""
    length = max(map(len, sequences))
    ids = torch.tensor([[pad] * (length - len(s)) + list(s) for s in sequences], device=device)
    padding = torch.tensor([length - len(s) for s in sequences], device=device)
    positions = torch.arange(length, device=device) - padding[:, None]
    return ids, (positions >= 0).long(), positions.clamp_min(0)


class Unread(NamedTuple):
    """The columns of a left-padded batch that the model has not read yet, the last C."""

    ids_BC: Tensor
    mask_BL: Tensor | None  # of all columns; None without padding
    positions_BC: Tensor
    cache: Any = None  # of the columns before, if any


@torch.inference_mode()
def begin(
    forward: Forward, sequences: Sequence[Ids], device: torch.device, keep: int, prefix: Any = None
) -> Unread:
    """Pad a batch and read its shared prefix, if it is long enough and not in `prefix` already."""
    length = shared(sequences) if prefix is None else prefix.get_seq_length()
    return read(forward, *left_pad(sequences, device, pad=0), length, keep, prefix)


def read(
    forward: Forward,
    ids_BL: Tensor,
    mask_BL: Tensor,
    positions_BL: Tensor,
    length: int,
    keep: int,
    prefix: Any = None,
) -> Unread:
    """Read the first `length` tokens, which all sequences of a left-padded batch share, once."""
    count_B1, width = mask_BL.sum(1, keepdim=True), ids_BL.shape[1]
    ragged = bool((count_B1 != width).any())
    whole = Unread(ids_BL, mask_BL if ragged else None, positions_BL)
    length = min(length, width - keep)
    if length < SHORTEST or (len(ids_BL) == 1 and prefix is None):
        return whole
    at_P = torch.arange(length, device=ids_BL.device)
    if prefix is None:
        prefix = _cached(forward, ids_BL[:1, width - int(count_B1[0]) :][:, :length])
        if prefix is None:
            return whole
    cache, places_BP = forward.empty_cache(), (at_P - (width - count_B1)).clamp_min(0)
    for at, layer in enumerate(prefix.layers):  # each column from its place in the prefix
        pair = (states[0].transpose(0, 1)[places_BP] for states in (layer.keys, layer.values))
        cache.update(*(states_BPHD.transpose(1, 2) for states_BPHD in pair), at)
    return Unread(ids_BL[:, length:], whole.mask_BL, positions_BL[:, length:], cache)


class Prefix:
    """What prompts that come a few at a time begin with, which is read once."""

    def __init__(self, forward: Forward, device: torch.device) -> None:
        self._forward, self._device = forward, device
        self._ids: list[int] = []
        self._cache: Any = None
        self._last: list[Ids] = []  # the prompt before, if any

    @torch.inference_mode()
    def of(self, prompts: Sequence[Ids], to_come: Sequence[Ids] = ()) -> Any:
        """Return a cache with what all these begin with, None if that is too little to pay."""
        length = len(self._ids)
        held = length if all([*prompt[:length]] == self._ids for prompt in prompts) else 0
        every = [*self._last, *prompts, *to_come]
        length = shared(every) if len(every) > 1 else 0
        if length > 2 * held:
            held, self._ids = length, [*prompts[0][:length]]
            self._cache = _cached(self._forward, torch.tensor([self._ids], device=self._device))
        self._last = [prompts[-1]]
        return self._cache if held else None


def _cached(forward: Forward, ids_1P: Tensor) -> Any:
    cache = forward.empty_cache()
    if cache is not None:
        at_1P = torch.arange(ids_1P.shape[1], device=ids_1P.device)[None]
        forward.states(Unread(ids_1P, None, at_1P, cache))
    return cache


def shared(sequences: Sequence[Ids]) -> int:
    """Return the length of the prefix that all sequences share, 0 if it is below `SHORTEST`."""
    # All sequences lie between the smallest and the largest, and share what those two share.
    first, last = min(sequences, key=tuple), max(sequences, key=tuple)
    alike = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    length = sum(1 for _ in alike)
    return length if length >= SHORTEST else 0
