"""The hidden states that the read-out is fitted to, of the last layer and of layers before it.

Shapes: N responses, B steps of each, D hidden size, H width of an MLP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from grace.config import TrainSettings
from grace.engines import Features, StepStates

LAST = 0  # the last hidden state, as `train.layer` names it
CHOOSE = -1
NAMES = ("mean", "last", "first", "at_step", "to_step")


class LayerStates(NamedTuple):
    """The pooled states of N responses, and those at some steps of each."""

    features: Features
    at_steps: StepStates


def layers_to_read(train: TrainSettings, engine: Any) -> list[int]:
    """Return the blocks whose MLPs are read beside the last hidden state."""
    from grace.engines.local.layers import candidates, mlp_output

    if train.layer == CHOOSE:
        return candidates(engine.model)
    if train.layer != LAST:
        mlp_output(engine.model, train.layer)  # raises an error if there is none
    return [train.layer] if train.layer else []


def layers_to_fit(train: TrainSettings, read: Sequence[int]) -> list[int]:
    """Return the layers that a read-out is fitted to, of those that were read."""
    return [LAST, *read] if train.layer == CHOOSE else [train.layer]


def read_pooled(
    engine: Any,
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    steps_NB: Sequence[Sequence[int]],
    layers: Sequence[int],
) -> dict[int, LayerStates]:
    """Return the states of the last layer, and the activations of `layers`, by layer."""
    if not layers:
        return {LAST: LayerStates(*engine.states(prompts, responses, steps_NB))}
    features, at_steps = engine.states(prompts, responses, steps_NB, layers)
    size = engine.model.config.get_text_config().hidden_size
    width = (features.last_ND.shape[-1] - size) // len(layers)
    places = [size + width * number for number in range(len(layers))]
    split = [np.split(array, places, axis=-1) for array in (*features, *at_steps)]
    parts = zip(*split, strict=True)
    return {
        layer: LayerStates(Features(*part[:3]), StepStates(*part[3:]))
        for layer, part in zip([LAST, *layers], parts, strict=True)
    }


def joined(parts: Sequence[Mapping[int, LayerStates]]) -> dict[int, LayerStates]:
    """Return the states of several lists of responses as those of one list."""

    def concatenated(kind: Any, each: Sequence[Any]) -> Any:
        return kind(*map(np.concatenate, zip(*each, strict=True)))

    return {
        layer: LayerStates(
            concatenated(Features, [part[layer].features for part in parts]),
            concatenated(StepStates, [part[layer].at_steps for part in parts]),
        )
        for layer in parts[0]
    }


def to_arrays(read: Mapping[int, LayerStates]) -> dict[str, Any]:
    """Return the states as arrays by name, such as `mean` and, of block 18, `mean.18`."""
    return {
        f"{name}.{layer}" if layer else name: array
        for layer, pooled in read.items()
        for name, array in zip(NAMES, (*pooled.features, *pooled.at_steps), strict=True)
    }


def from_arrays(stored: Mapping[str, Any], layer: int) -> LayerStates:
    """Return the states of a layer among arrays that `to_arrays` made."""
    end = f".{layer}" if layer else ""
    arrays = [stored[name + end] for name in ("mean", "last", "first", "at_step", "to_step")]
    return LayerStates(Features(*arrays[:3]), StepStates(*arrays[3:]))
