"""Stages `features` and `targets`: hidden states of graded responses, and a target for each."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from grace.config import to_dict
from grace.estimators import Samples
from grace.methods.grace.trace import draw_steps
from grace.pipeline.context import Context
from grace.pipeline.stages.depth import layers_to_read, read_array, to_arrays
from grace.probe.rows import labels_of
from grace.progress import progress, say
from grace.records import Target
from grace.store import read_json, write_bytes, write_json, writing
from grace.store.files import sync

if TYPE_CHECKING:
    from grace.methods.paper.targets import Targets

SHARD_ROWS = 256
STEP = "step"  # the steps of each response whose states are stored, too


def features(context: Context) -> None:
    """Pool the last layer's hidden states over each training response (paper eq. 6).

    With `train.trace` the states at some steps of each response are kept, too, with `train.layer`
    the activations of layers in the middle.
    """
    from safetensors.numpy import save

    split = context.directory.split("train")
    samples = context.samples(split)
    layers = layers_to_read(context.settings.train, context.engine("base"))
    folder = _shards(split.path, {"trace": context.settings.train.trace, "layers": layers})
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
    train = context.settings.train
    settings = {"trace": train.trace, "layer": train.layer}
    inputs = [split.questions.path, split.responses.path]
    context.directory.finish("features", settings, inputs, [split.features])


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
    if not context.settings.train.trace:
        return []
    counts = [len(response.token_ids) for response in samples.responses]
    steps: list[list[int]] = draw_steps(counts, context.settings.seed).tolist()
    return steps


def targets(context: Context) -> None:
    """Score every training response out of fold, bin the scores, take each bin's accuracy."""
    split = context.directory.split("train")
    responses = split.responses.read()
    scores, binned = make_run_targets(context)
    for warning in binned.warnings:
        say(f"warning: {warning}")
    rows = zip(responses, scores, binned.bins, binned.targets, strict=True)
    split.targets.write([Target(r.id, float(s), int(b), float(t)) for r, s, b, t in rows])
    bins = [row._asdict() for row in binned.table]
    write_json(context.directory.target_table, {"bins": bins, "warnings": list(binned.warnings)})
    context.directory.finish(
        "targets",
        {"target": to_dict(context.settings.target)},
        [split.responses.path, split.grades.path, split.features],
        [split.targets.path, context.directory.target_table],
    )


def make_run_targets(context: Context) -> tuple[Any, Targets]:
    """Return the probe's scores of the training responses, out of fold, and their targets."""
    from grace.methods.paper.targets import make_targets
    from grace.probe import kfold_scores
    from grace.probe.features import feature_parts

    settings, split = context.settings.target, context.directory.split("train")
    responses = split.responses.read()
    labels = labels_of([grade.correct for grade in split.grades.read()])
    states = {name: read_array(split.features, name) for name in ("mean", "last", "first")}
    parts = feature_parts(settings.features, states, responses)
    cluster_of = {question.id: question.cluster for question in split.questions.read()}
    questions = [cluster_of[response.question_id] for response in responses]
    scores = kfold_scores(
        np.concatenate(parts, axis=1),
        labels,
        questions,
        folds=settings.folds,
        blocks=[part.shape[1] for part in parts],
        seed=context.settings.seed,
    )
    return scores, make_targets(
        scores, labels, kind=settings.kind, bins=settings.bins, min_count=settings.min_count
    )
