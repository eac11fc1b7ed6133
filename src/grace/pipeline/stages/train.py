"""Stage `train`: an adapter, trained on the training responses and their targets."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from grace.config import to_dict
from grace.engines import LAST
from grace.estimators import Samples
from grace.evidence import Evidence
from grace.pipeline.context import Context
from grace.pipeline.stages.fit import FIT, adapter_metadata
from grace.progress import Advance, progress, say
from grace.records import is_whole
from grace.store import CARD, ROWS, RunDir, read_json

if TYPE_CHECKING:
    from grace.methods.paper.examples import Example
    from grace.methods.paper.loop import OnStep
    from grace.methods.paper.trainer import TrainResult

STEPS = "steps"  # the unit under which the seconds of optimizer steps are kept


def train(context: Context) -> None:
    """Train LoRA and the rows on the targets (paper eq. 7), or only copy the rows."""
    from grace.methods.adapter import copy_adapter
    from grace.pipeline.stages.choosing import keep_better

    settings, directory = context.settings, context.directory
    split, validation = directory.split("train"), directory.split("validation")
    auto = settings.train.lora == "auto"
    if copies_rows(context):
        if auto and settings.train.trace:
            say("no LoRA is trained, since train.trace is set")
        elif auto:
            block = _layer(context)
            say(
                f"no LoRA is trained, since the confidence reads the MLP of block {block} "
                "(train.layer=0 trains it)"
            )
        copy_adapter(directory.rows, directory.adapter)
    else:
        with _watched_steps(directory) as on_step:
            train_run_adapter(context, on_step)
        if settings.train.head == "linear" and auto:
            keep_better(context)
    inputs = [
        split.responses.path,
        split.targets.path,
        directory.target_table,
        validation.responses.path,
        validation.grades.path,
        directory.readout,
    ]
    outputs = sorted(path for path in directory.adapter.iterdir() if path.is_file())
    directory.finish("train", {"train": to_dict(settings.train)}, inputs, outputs)


def copies_rows(context: Context) -> bool:
    """Return whether the stage copies the fitted rows, so that no process trains anything."""
    train = context.settings.train
    return not train.may_train or (train.head == "linear" and _layer(context) != LAST)


def _layer(context: Context) -> int:
    """Return the block that c reads; `LAST` is the last state."""
    layer: int = read_json(context.directory.readout).get("layer", LAST)
    return layer


def train_run_adapter(context: Context, on_step: OnStep | None = None) -> None:
    """Train the adapter of a run; in several processes, the first one writes it."""
    directory = context.directory
    train_on(
        context,
        [row.target for row in directory.split("train").targets.read()],
        run_evidence(context),
        output_dir=directory.adapter,
        checkpoint_dir=directory.checkpoints,
        metadata=adapter_metadata(context, directory.split("train").questions.read()),
        on_step=on_step,
    )


def train_on(
    context: Context, targets: Sequence[float], evidence: Evidence | None, **options: Any
) -> TrainResult:
    """Train a new adapter on a target per training response, with the run's settings.

    The validation responses are rated after every epoch. `options` go to `train_adapter`.
    """
    from safetensors.numpy import load_file

    from grace.cnf import add_cnf, set_rows
    from grace.methods.paper.trainer import train_adapter

    settings, directory = context.settings, context.directory
    given = context.samples(directory.split("train"))
    held_out = context.samples(directory.split("validation"))
    end_ids = context.engines.base.reader.stops
    context.engines.forget_base()
    loaded = context.engines.load_trainable()
    cnf = add_cnf(
        loaded.model,
        loaded.tokenizer,
        head=settings.train.head,
        init=settings.train.init,
        seed=settings.seed,
    )
    if settings.train.head == "linear":
        set_rows(loaded.model, cnf.readout, load_file(directory.rows / ROWS)["rows"])
    return train_adapter(
        loaded.model,
        loaded.tokenizer,
        cnf,
        _examples(given, targets),
        _examples(held_out, [float(correct) for correct in held_out.correct]),
        settings.train,
        seed=settings.seed,
        evidence=evidence,
        end_ids=end_ids,
        **options,
    )


def training_seconds(directory: RunDir) -> tuple[float | None, float]:
    """Return the seconds of fitting and training what is used, and of LoRA that was left out.

    The first is None if nothing was recorded.
    """
    fit, lora = directory.seconds_in(FIT), directory.seconds_in(STEPS)
    if not read_json(directory.adapter / CARD).get("lora", {"kept": True})["kept"]:
        return fit, lora or 0.0
    recorded = [seconds for seconds in (fit, lora) if seconds is not None]
    return (sum(recorded) if recorded else None), 0.0


@contextlib.contextmanager
def _watched_steps(directory: RunDir) -> Iterator[OnStep]:
    """Yield an `on_step` that shows progress and records the seconds of every step.

    They include the validation after a step. The number of all steps comes with the first one.
    """
    last = time.perf_counter()
    advance: Advance | None = None
    with contextlib.ExitStack() as stack:

        def on_step(step: int, steps: int, values: dict[str, float]) -> None:
            nonlocal last, advance
            before, last = last, time.perf_counter()
            directory.add_time("train", f"{STEPS}/{step}", last - before, 1)
            if advance is None:
                advance = stack.enter_context(progress("train", steps, done=step - 1, unit="steps"))
            advance(1, f"loss {values['loss']:.4f}")

        yield on_step


def _examples(samples: Samples, targets: Sequence[float]) -> list[Example]:
    """Return a training example per response that was not cut and says something."""
    from grace.methods.paper.examples import Example

    return [
        Example(response.id, tuple(prompt), response.token_ids, target)
        for response, prompt, target in zip(
            samples.responses, samples.prompts, targets, strict=True
        )
        if is_whole(response)
    ]


def run_evidence(context: Context) -> Evidence | None:
    """Return the evidence that stage `fit` has fitted, None with `train.evidence=none`."""
    if context.settings.train.evidence == "none":
        return None
    return Evidence.from_dict(read_json(context.directory.readout)["evidence"])
