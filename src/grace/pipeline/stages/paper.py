"""Stage `fit` of the paper's method: a target for every response, then LoRA and `<CNF>`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from grace.config import to_dict
from grace.estimators import Samples
from grace.pipeline.context import Context
from grace.pipeline.stages.fit import adapter_metadata, read_array
from grace.probe.rows import labels_of
from grace.progress import Advance, progress, say
from grace.records import Target, is_whole
from grace.store import RunDir, write_json

if TYPE_CHECKING:
    from grace.methods.paper.examples import Example
    from grace.methods.paper.loop import OnStep
    from grace.methods.paper.targets import Targets

STEPS = "steps"  # the unit under which the seconds of optimizer steps are kept


def fit_run(context: Context) -> None:
    """Make the targets (paper section 3.2.2), and train LoRA and `<CNF>` on them (eq. 7)."""
    directory, split = context.directory, context.directory.split("train")
    scores, made = make_run_targets(context)
    for warning in made.warnings:
        say(f"warning: {warning}")
    rows = zip(split.responses.read(), scores, made.bins, made.targets, strict=True)
    split.targets.write([Target(r.id, float(s), int(b), float(t)) for r, s, b, t in rows])
    bins = [row._asdict() for row in made.table]
    write_json(directory.target_table, {"bins": bins, "warnings": list(made.warnings)})
    with _watched_steps(directory) as on_step:
        train_on(context, made.targets.tolist(), on_step)
    validation = directory.split("validation")
    inputs = [split.responses.path, split.grades.path, split.features]
    inputs += [validation.responses.path, validation.grades.path]
    outputs = sorted(path for path in directory.adapter.iterdir() if path.is_file())
    outputs += [split.targets.path, directory.target_table]
    settings = {"method": "paper", "paper": to_dict(context.settings.paper)}
    directory.finish("fit", settings, inputs, outputs)


def make_run_targets(context: Context) -> tuple[Any, Targets]:
    """Return the probe's scores of the training responses, out of fold, and their targets."""
    from grace.methods.paper.probe import kfold_scores
    from grace.methods.paper.targets import make_targets

    paper, split = context.settings.paper, context.directory.split("train")
    cluster_of = {question.id: question.cluster for question in split.questions.read()}
    labels = labels_of([grade.correct for grade in split.grades.read()])
    scores = kfold_scores(
        read_array(split.features, "mean"),
        labels,
        [cluster_of[response.question_id] for response in split.responses.read()],
        folds=paper.folds,
        seed=context.settings.seed,
    )
    kind: Any = "scores" if paper.variant == "disc" else "bins"
    return scores, make_targets(scores, labels, kind=kind, bins=paper.bins)


def train_on(context: Context, targets: Sequence[float], on_step: OnStep | None = None) -> None:
    """Train a run's adapter on a target per training response; the first process writes it."""
    from grace.cnf import add_cnf
    from grace.methods.paper.trainer import train_adapter

    settings, directory = context.settings, context.directory
    given = context.samples(directory.split("train"))
    held_out = context.samples(directory.split("validation"))
    metadata = adapter_metadata(context, directory.split("train").questions.read())
    context.engines.forget_base()
    loaded = context.engines.load_trainable()
    cnf = add_cnf(loaded.model, loaded.tokenizer, head=settings.paper.head, seed=settings.seed)
    train_adapter(
        loaded.model,
        loaded.tokenizer,
        cnf,
        _examples(given, targets),
        _examples(held_out, [float(correct) for correct in held_out.correct]),
        settings.paper,
        seed=settings.seed,
        output_dir=directory.adapter,
        checkpoint_dir=directory.checkpoints,
        metadata=metadata,
        on_step=on_step,
    )


@contextlib.contextmanager
def _watched_steps(directory: RunDir) -> Iterator[OnStep]:
    """Yield an `on_step` that shows progress and records the seconds of every step."""
    last = time.perf_counter()
    advance: Advance | None = None
    with contextlib.ExitStack() as stack:

        def on_step(step: int, steps: int, values: dict[str, float]) -> None:
            nonlocal last, advance
            before, last = last, time.perf_counter()
            directory.add_time("fit", f"{STEPS}/{step}", last - before, 1)
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
