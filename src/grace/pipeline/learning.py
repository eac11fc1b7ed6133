"""Stages `features`, `targets` and `train`: from graded responses to a trained adapter."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from grace.config import to_dict
from grace.estimators import Samples
from grace.evidence import Evidence
from grace.grading import labels_of
from grace.pipeline.context import Context
from grace.pipeline.fitting import FIT
from grace.progress import Advance, progress
from grace.records import Target, to_json
from grace.store import ROWS, RunDir, read_json, write_bytes, write_json

if TYPE_CHECKING:
    from grace.training.examples import Example
    from grace.training.loop import OnStep
    from grace.training.targets import Targets
    from grace.training.trainer import TrainResult

SHARD_ROWS = 256
STATES = ("mean", "last", "first")
STEPS = "steps"  # the unit under which the seconds of optimizer steps are kept


def features(context: Context) -> None:
    """Pool the last layer's hidden states over each training response (paper eq. 6)."""
    from safetensors.numpy import load_file, save

    split = context.directory.split("train")
    samples = train_samples(context)
    folder = split.path / "features.partial"
    total = len(samples.responses)
    starts = range(0, total, SHARD_ROWS)
    paths = [folder / f"{number:05d}.safetensors" for number in range(len(starts))]
    done = min(sum(path.exists() for path in paths) * SHARD_ROWS, total)
    with progress("features", total, done=done, unit="responses") as advance:
        for path, start in zip(paths, starts, strict=True):
            if path.exists():
                continue
            rows = slice(start, start + SHARD_ROWS)
            responses = [response.token_ids for response in samples.responses[rows]]
            pooled = context.engine("base").features(samples.prompts[rows], responses)
            # safetensors writes the memory of an array, whatever its strides
            arrays = dict(zip(STATES, pooled, strict=True))
            write_bytes(path, save({k: np.ascontiguousarray(v) for k, v in arrays.items()}))
            advance(len(responses))
    shards = [load_file(path) for path in paths]
    merged = {name: np.concatenate([shard[name] for shard in shards]) for name in STATES}
    write_bytes(split.features, save(merged))
    shutil.rmtree(folder)
    settings = {"features": list(STATES)}
    inputs = [split.questions.path, split.responses.path]
    context.directory.finish("features", settings, inputs, [split.features])


def targets(context: Context) -> None:
    """Score every training response out of fold, bin the scores, take each bin's accuracy."""
    split = context.directory.split("train")
    responses = split.responses.read()
    scores, made = make_run_targets(context)
    for warning in made.warnings:
        context.say(f"warning: {warning}")
    rows = zip(responses, scores, made.bins, made.targets, strict=True)
    split.targets.write([Target(r.id, float(s), int(b), float(t)) for r, s, b, t in rows])
    table = {
        "bins": [row._asdict() for row in made.table],
        "warnings": list(made.warnings),
    }
    write_json(context.directory.target_table, table)
    context.directory.finish(
        "targets",
        {"target": to_dict(context.settings.target)},
        [split.responses.path, split.grades.path, split.features],
        [split.targets.path, context.directory.target_table],
    )


def make_run_targets(context: Context) -> tuple[Any, Targets]:
    """Return the probe's scores of the training responses, out of fold, and their targets.

    Raises:
        DataError: all responses are right, or all are wrong.
    """
    from safetensors.numpy import load_file

    from grace.probe import kfold_scores
    from grace.probe.features import feature_matrix
    from grace.training.targets import make_targets

    settings, split = context.settings.target, context.directory.split("train")
    responses = split.responses.read()
    labels = labels_of([grade.correct for grade in split.grades.read()])
    states = load_file(split.features)
    parts = [feature_matrix((part,), states, responses) for part in settings.features]
    scores = kfold_scores(
        np.concatenate(parts, axis=1),
        labels,
        [response.question_id for response in responses],
        folds=settings.folds,
        kind=settings.probe,
        blocks=[part.shape[1] for part in parts] if len(parts) > 1 else (),
        seed=context.settings.seed,
    )
    made = make_targets(
        scores, labels, kind=settings.kind, bins=settings.bins, min_count=settings.min_count
    )
    return scores, made


def train(context: Context) -> None:
    """Train LoRA and the rows on the targets (paper eq. 7), unless the rows alone will do."""
    from grace.pipeline.choosing import keep_better
    from grace.training.adapter import copy_adapter

    settings, directory = context.settings, context.directory
    split, validation = directory.split("train"), directory.split("validation")
    pair = settings.train.head == "pair"
    if pair and settings.train.lora == "never":
        copy_adapter(directory.rows, directory.adapter)
    else:
        with _training_progress() as on_step:
            train_run_adapter(context, _timed(directory, on_step))
    if pair and settings.train.lora == "auto":
        keep_better(context)
    directory.finish(
        "train",
        {"train": to_dict(settings.train)},
        [
            split.responses.path,
            split.targets.path,
            directory.target_table,
            validation.responses.path,
            validation.grades.path,
            directory.readout,
        ],
        sorted(path for path in directory.adapter.iterdir() if path.is_file()),
    )


def train_run_adapter(context: Context, on_step: OnStep | None = None) -> None:
    """Train the adapter of a run; in several processes, the first one writes it."""
    directory = context.directory
    train_on(
        context,
        [row.target for row in directory.split("train").targets.read()],
        _evidence(context),
        output_dir=directory.adapter,
        checkpoint_dir=directory.checkpoints,
        metadata=adapter_metadata(context),
        on_step=on_step,
    )


def train_on(
    context: Context, targets: Sequence[float], evidence: Evidence | None, **options: Any
) -> TrainResult:
    """Train a fresh adapter on a target per training response, as the run's settings say.

    The validation responses are rated after every epoch. `options` go to `train_adapter`.
    """
    from safetensors.numpy import load_file

    from grace.cnf import add_cnf, set_rows
    from grace.training.trainer import train_adapter

    settings, directory = context.settings, context.directory
    held_out = context.samples(directory.split("validation"))
    end_ids = context.engines.base.end_ids
    loaded = context.engines.trainable()
    cnf = add_cnf(
        loaded.model,
        loaded.tokenizer,
        head=settings.train.head,
        init=settings.train.init,
        seed=settings.seed,
    )
    if settings.train.head == "pair":
        set_rows(loaded.model, cnf.readout, load_file(directory.rows / ROWS)["rows"])
    return train_adapter(
        loaded.model,
        loaded.tokenizer,
        cnf,
        _examples(train_samples(context), targets),
        _examples(held_out, [float(correct) for correct in held_out.correct]),
        settings.train,
        seed=settings.seed,
        evidence=evidence,
        end_ids=end_ids,
        **options,
    )


def training_seconds(directory: RunDir) -> float | None:
    """Return how long the fit and the training took, None where neither was recorded."""
    known = [
        seconds for unit in (FIT, STEPS) if (seconds := directory.seconds_in(unit)) is not None
    ]
    return sum(known) if known else None


def _timed(directory: RunDir, on_step: OnStep) -> OnStep:
    """Return an `on_step` that records how long every step took, with the validation after it."""
    last = time.perf_counter()

    def timed(step: int, steps: int, values: dict[str, float]) -> None:
        nonlocal last
        before, last = last, time.perf_counter()
        directory.add_time("train", f"{STEPS}/{step}", last - before, 1)
        on_step(step, steps, values)

    return timed


@contextlib.contextmanager
def _training_progress() -> Iterator[Callable[[int, int, dict[str, float]], None]]:
    """Yield an `on_step` that opens a bar at the first step, when the number of steps is known."""
    with contextlib.ExitStack() as stack:
        advance: Advance | None = None

        def on_step(step: int, steps: int, values: dict[str, float]) -> None:
            nonlocal advance
            if advance is None:
                advance = stack.enter_context(progress("train", steps, done=step - 1, unit="steps"))
            advance(1, f"loss {values['loss']:.4f}")

        yield on_step


def train_samples(context: Context) -> Samples:
    """Return the training responses with their questions, prompts and grades."""
    return context.samples(context.directory.split("train"))


def _examples(samples: Samples, targets: Sequence[float]) -> list[Example]:
    """Return a training example per response that came to its own end."""
    from grace.training.examples import Example

    return [
        Example(response.id, tuple(prompt), response.token_ids, target)
        for response, prompt, target in zip(
            samples.responses, samples.prompts, targets, strict=True
        )
        if response.finish_reason == "stop"
    ]


def _evidence(context: Context) -> Evidence | None:
    """Return the evidence of stage `fit`, None where the settings want none."""
    if context.settings.train.evidence == "none":
        return None
    return Evidence.from_dict(read_json(context.directory.readout)["evidence"])


def adapter_metadata(context: Context) -> dict[str, Any]:
    """Return what `grace.load` needs to ask questions the way the model was trained to."""
    from grace.engines.stops import stop_ids

    model, stop = context.settings.model.path, context.engines.asking.stop
    asked, sample = to_dict(context.data), to_dict(context.settings.sample)
    shots = context.shots.read() if context.data.shots else []
    return {
        "base_model": str(Path(model).resolve()) if Path(model).exists() else model,
        "data": {key: asked[key] for key in ("task", "prompt", "template", "shots", "system")},
        "shots": [to_json(shot) for shot in shots],
        "sample": sample | {"stop": list(stop)},
        "stop_ids": list(stop_ids(context.engines.base.tokenizer, stop)),
    }
