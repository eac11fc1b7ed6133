"""The hidden states that the read-out is fitted to, of the last layer and of layers before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grace import plugins
from grace.config import RunSettings
from grace.engines import LAST, Features, LayerStates, StepStates
from grace.engines.gguf import resolve_model
from grace.errors import RunError
from grace.store import RunDir, read_json

CHOOSE = -1  # the value of `grace.layer` with which the fit chooses
NAMES = ("mean", "last", "first", "at_step", "to_step")


def layers_to_read(settings: RunSettings, engine: Any) -> list[int]:
    """Return the blocks whose MLPs are read beside the last hidden state."""
    from grace.engines.local.layers import candidates, mlp_output

    layer = settings.grace.layer if settings.method == "grace" else LAST
    if layer == CHOOSE:
        return candidates(engine.model)
    if layer != LAST:
        mlp_output(engine.model, layer)  # raises an error if there is none
    return [layer] if layer != LAST else []


def check_layer(settings: RunSettings) -> None:
    """Refuse a block that the model does not have; no weights are loaded."""
    from grace.engines.local.layers import mlp_output, skeleton
    from grace.engines.local.loading import read_config

    layer, model = settings.grace.layer, settings.model
    code = model.trust_remote_code or plugins.trusts(model.path)
    if layer > 0 and settings.method == "grace":
        config = read_config(
            resolve_model(model.path, model.dtype, model.device), trust_remote_code=code
        )
        mlp_output(skeleton(config, trust_remote_code=code), layer)


def layer_read(directory: RunDir) -> int:
    """Return the block that the confidence of a run reads, `LAST` for the last hidden state."""
    stored = read_json(directory.readout) if directory.readout.exists() else {}
    layer: int = stored.get("layer", LAST)
    return layer


def to_arrays(read: Mapping[int, LayerStates]) -> dict[str, Any]:
    """Return the states as arrays by name, such as `mean` and, of block 18, `mean.18`."""
    return {
        f"{name}.{layer}" if layer else name: array
        for layer, pooled in read.items()
        for name, array in zip(NAMES, (*pooled.features, *pooled.at_steps), strict=True)
    }


def stored_layers(file: Path) -> list[int]:
    """Return the layers whose states a file holds, the last hidden state first."""
    from safetensors import safe_open

    with safe_open(file, "np") as stored:
        names = [name.partition(".")[2] for name in stored.keys() if name.startswith(NAMES[0])]  # noqa: SIM118
    return sorted(int(layer or LAST) for layer in names)


def stores(file: Path, layer: int) -> bool:
    """Return whether a file holds the states of a layer."""
    from safetensors import safe_open

    with safe_open(file, "np") as stored:
        return f"{NAMES[0]}.{layer}" in stored.keys() if layer else True  # noqa: SIM118


def read_layer(file: Path, layer: int, rows: Sequence[int]) -> LayerStates:
    """Return the states of some responses that were stored as `to_arrays` names them."""
    end = f".{layer}" if layer else ""
    arrays = [read_array(file, f"{name}{end}")[rows] for name in NAMES]
    return LayerStates(Features(*arrays[:3]), StepStates(*arrays[3:]))


def read_array(file: Path, name: str) -> Any:
    """Return one array of a safetensors file; the others stay on disk."""
    from safetensors import safe_open

    with safe_open(file, "np") as stored:
        if name not in stored.keys():  # noqa: SIM118
            raise RunError(
                f"{file} lacks the states {name}, which other settings do not need; do the stage "
                "again that stores them: --redo features"
            )
        return stored.get_tensor(name)
