"""Stage `features`: the hidden states of the training responses, to which both methods fit."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from grace.estimators import Samples
from grace.methods.grace.trace import draw_steps
from grace.pipeline.context import Context
from grace.pipeline.stages.depth import layers_to_read, read_array, to_arrays
from grace.progress import progress
from grace.store import read_json, write_bytes, write_json, writing
from grace.store.files import sync

SHARD_ROWS = 256
STEP = "step"  # the steps of each response whose states are stored, too


def features(context: Context) -> None:
    """Pool hidden states over each training response (paper eq. 6), and at steps for a trace."""
    from safetensors.numpy import save

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
            arrays = to_arrays(read) | {STEP: step_NB}
            # safetensors writes the memory of an array, whatever its strides
            write_bytes(path, save({k: np.ascontiguousarray(v) for k, v in arrays.items()}))
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
    merged = {name: np.concatenate([read_array(path, name) for path in paths]) for name in names}
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
