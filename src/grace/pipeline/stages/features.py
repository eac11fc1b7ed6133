"""Stage `features`: the hidden states of the training responses, to which both methods fit.

They are those of the last layer and, where c may read them, of the MLPs of blocks before it.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from grace import plugins
from grace.config import RunSettings
from grace.engines import LAST, Features, LayerStates, StepStates
from grace.errors import RunError
from grace.estimators import Samples
from grace.methods.grace.trace import draw_steps
from grace.pipeline.context import Context
from grace.pipeline.settings import model_folder
from grace.progress import progress
from grace.store import RunDir, read_json, write_bytes, write_json, writing
from grace.store.files import sync

SHARD_ROWS = 256
STEP = "step"  # the steps of each response whose states are stored, too
CHOOSE = -1  # the value of `grace.layer` with which the fit chooses
NAMES = ("mean", "last", "first", "at_step", "to_step")


def features(context: Context) -> None:
    """Pool hidden states over each training response (paper eq. 6), and at steps for a trace."""
    split = context.directory.split("train")
    samples = context.samples(split)
    layers, trace = layers_to_read(context.settings, context.engine("base")), traces(context)
    folder = _shards(split.path, {"trace": trace, "layers": layers})
    total = len(samples.responses)
    starts = range(0, total, SHARD_ROWS)
    paths = [folder / f"{number:05d}.safetensors" for number in range(len(starts))]
    done = min(sum(path.exists() for path in paths) * SHARD_ROWS, total)
    steps_NB = _steps(context, samples)
    with progress("features", total, done=done, unit="responses") as advance:
        for path, start in zip(paths, starts, strict=True):
            if path.exists():
                continue
            rows = slice(start, start + SHARD_ROWS)
            responses = [response.token_ids for response in samples.responses[rows]]
            read = context.engine("base").states(
                samples.prompts[rows], responses, steps_NB[rows], layers
            )
            step_NB = np.array(steps_NB[rows], dtype=np.int32).reshape(len(responses), -1)
            write_states(path, read, {STEP: step_NB})
            advance(len(responses))
    _merge(paths, split.features)
    shutil.rmtree(folder)
    settings = {"trace": trace, "layers": layers}
    inputs = [split.questions.path, split.responses.path]
    context.directory.finish("features", settings, inputs, [split.features])


def traces(context: Context) -> bool:
    """Return whether the confidence before the end of an answer is fitted, too."""
    return context.settings.method == "grace" and context.settings.grace.trace


def _merge(paths: Sequence[Path], file: Path) -> None:
    """Write the arrays of all shards to one file, and hold each number once meanwhile."""
    from safetensors import safe_open
    from safetensors.numpy import save_file

    with safe_open(paths[0], "np") as first:
        names = list(first.keys())
    merged = {name: _joined(paths, name) for name in names}
    partial = file.with_name(file.name + ".partial")
    with writing(file):
        save_file(merged, partial)  # without a copy of the arrays as bytes
        partial.chmod(paths[0].stat().st_mode)  # safetensors lets nobody else read it
        sync(partial)
        partial.replace(file)


def _shards(split: Path, content: dict[str, Any]) -> Path:
    """Return the folder of the shards, without those that other settings have left there."""
    folder = split / "features.partial"
    record = folder / "content.json"
    if folder.exists() and not (record.exists() and read_json(record) == content):
        shutil.rmtree(folder)
    write_json(record, content)
    return folder


def _steps(context: Context, samples: Samples) -> list[list[int]]:
    """Return the steps of each response whose states the trace is fitted on, [] without one."""
    if not traces(context):
        return []
    counts = [len(response.token_ids) for response in samples.responses]
    steps: list[list[int]] = draw_steps(counts, context.settings.seed).tolist()
    return steps


# --- which layers, and their states by name


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
        config = read_config(model_folder(model), trust_remote_code=code)
        mlp_output(skeleton(config, trust_remote_code=code), layer)


def layer_read(directory: RunDir) -> int:
    """Return the block that the confidence of a run reads, `LAST` for the last hidden state."""
    stored = read_json(directory.readout) if directory.readout.exists() else {}
    layer: int = stored.get("layer", LAST)
    return layer


def write_states(file: Path, read: Mapping[int, LayerStates], others: Mapping[str, Any]) -> None:
    """Write the states of responses by name, such as `mean` and, of block 18, `mean.18`."""
    from safetensors.numpy import save

    arrays = {
        f"{name}.{layer}" if layer else name: array
        for layer, pooled in read.items()
        for name, array in zip(NAMES, (*pooled.features, *pooled.at_steps), strict=True)
    }
    # safetensors writes the memory of an array, whatever its strides
    named = {name: np.ascontiguousarray(array) for name, array in (arrays | {**others}).items()}
    write_bytes(file, save(named))


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


def read_layer(files: Sequence[Path], layer: int, rows: Any = slice(None)) -> LayerStates:
    """Return the states of some responses of all files, one file after the other, in a layer."""
    end = f".{layer}" if layer else ""
    arrays = [_joined(files, f"{name}{end}")[rows] for name in NAMES]
    return LayerStates(Features(*arrays[:3]), StepStates(*arrays[3:]))


def _joined(files: Sequence[Path], name: str) -> Any:
    first, *others = (read_array(file, name) for file in files)
    return np.concatenate([first, *others]) if others else first


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
