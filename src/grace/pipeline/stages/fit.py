"""Stage `fit`: the convex read-out of c, from the graded training responses, in seconds.

It writes the evidence, and for `train.head = pair` the rows of `<CNF>` and `<NOC>`, as an adapter
without LoRA in the folder `rows`: the backbone's own answers with a confidence.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from grace.config import to_dict
from grace.errors import RunError
from grace.evidence import Evidence
from grace.evidence import features as likelihoods
from grace.grading import labels_of
from grace.pipeline.context import Context
from grace.probe.readout import (
    STEPS,
    Fit,
    TraceFit,
    fit_evidence,
    fit_readout,
    fit_trace,
    step_states,
)
from grace.records import to_json
from grace.store import RunDir, write_json
from grace.tasks import title_of

if TYPE_CHECKING:
    from grace.records import Response


FIT = "fit"  # the unit under which the seconds of the fit are kept


class FitData(NamedTuple):
    """Graded responses that came to their own end, with what a read-out is fitted on."""

    features_NF: Any
    labels_N: Any
    groups: list[str]
    rows: list[int]  # their places among all responses


def fit(context: Context) -> None:
    """Fit the evidence and the rows on the graded training responses."""
    directory, split = context.directory, context.directory.split("train")
    start = time.perf_counter()
    known = _known(split.responses.read(), [grade.correct for grade in split.grades.read()])
    outputs = [directory.readout]
    if context.settings.train.head == "pair":
        from grace.cnf import head_shape

        made = fit_readout(
            _states(directory, known.rows),
            known.features_NF,
            known.labels_N,
            known.groups,
            head_shape(context.engines.base.model, len(context.engines.base.tokenizer)),
            seed=context.settings.seed,
        )
        shown = summary(made)
        context.say(described(shown))
        if context.settings.train.trace:
            made = _traced(context, made, known)
        evidence = made.evidence
        write_rows(context, made, directory.rows)
        outputs += sorted(path for path in directory.rows.iterdir() if path.is_file())
    else:
        evidence = fit_evidence(known.features_NF, known.labels_N, known.groups)
        shown = {}
    if directory.seconds_in(FIT) is None:
        directory.add_time("fit", f"{FIT}/1", time.perf_counter() - start, 1)
    write_json(directory.readout, {"evidence": evidence.to_dict(), **shown})
    directory.finish(
        "fit",
        {"head": context.settings.train.head, "trace": context.settings.train.trace},
        [split.responses.path, split.grades.path, split.features],
        outputs,
    )


def _known(responses: Sequence[Response], correct: Sequence[bool]) -> FitData:
    """Return the inputs of the fit, from responses that ended by themselves; cut ones have no c.

    Raises:
        DataError: all of them are right, or all are wrong, or there is none.
    """
    rows = [row for row, response in enumerate(responses) if response.finish_reason == "stop"]
    label_N = labels_of([correct[row] for row in rows])
    known = [(responses[row].logprobs, responses[row].end_logprob) for row in rows]
    phi_NF = np.array([likelihoods(logprobs, cast(float, end)) for logprobs, end in known])
    return FitData(phi_NF, label_N, [responses[row].question_id for row in rows], rows)


def _traced(context: Context, made: Fit, known: FitData) -> Fit:
    """Return the fit with c along the way, too."""
    from safetensors.numpy import load_file

    split, rows = context.directory.split("train"), known.rows
    stored, responses = load_file(split.features), split.responses.read()
    found = fit_trace(
        made,
        stored["at_step"][rows],
        stored["to_step"][rows],
        stored["step"][rows],
        [responses[row].logprobs for row in rows],
        known.labels_N,
        known.groups,
        seed=context.settings.seed,
    )
    context.say(described_trace(found, known.labels_N))
    return traced(made, found)


def traced(made: Fit, found: TraceFit) -> Fit:
    """Return a fit whose evidence has the trace."""
    return made._replace(evidence=dataclasses.replace(made.evidence, trace=found.trace))


def described_trace(found: TraceFit, label_N: Any) -> str:
    """Return in a sentence how much the trace knows along the way."""
    rate = float(np.mean(label_N))
    guess = -rate * np.log(rate) - (1 - rate) * np.log1p(-rate)
    return (
        f"trace fitted at {STEPS} steps of each answer: held-out log loss "
        f"{found.losses.mean():.3f} (their accuracy alone {guess:.3f})"
    )


def _states(directory: RunDir, rows: Sequence[int]) -> dict[str, Any]:
    from safetensors.numpy import load_file

    split = directory.split("train")
    stored = load_file(split.features)
    if "first" not in stored:
        raise RunError(
            f"{split.features} is of an earlier version, without the states of the prompts; make "
            f"it again: grace run {directory.path} --redo features"
        )
    counts = [len(response.token_ids) for response in split.responses.read()]
    mean, last, first = (stored[name][list(rows)] for name in ("mean", "last", "first"))
    return step_states(mean, last, first, [counts[row] for row in rows])


def summary(made: Fit) -> dict[str, float]:
    """Return the held-out log loss of the rows with the evidence, and of the evidence alone."""
    return {
        "log_loss": float(made.losses.mean()),
        "evidence_log_loss": float(made.alone.mean()),
        "answers": len(made.losses),
    }


def described(shown: Mapping[str, float]) -> str:
    """Return in a sentence what the rows add to the evidence."""
    return (
        f"read-out fitted on {shown['answers']} answers: held-out log loss "
        f"{shown['log_loss']:.3f} (evidence alone {shown['evidence_log_loss']:.3f})"
    )


def write_rows(context: Context, made: Fit, out: Path) -> None:
    """Write the rows of a run as an adapter without LoRA."""
    write_rows_adapter(
        context.engines.base, made.rows_2D, made.evidence, out, adapter_metadata(context)
    )


def write_rows_adapter(
    engine: Any, rows_2D: Any, evidence: Evidence, out: Path, metadata: Mapping[str, Any]
) -> None:
    """Write two rows and their evidence as an adapter directory; the engine stays as it is."""
    from grace.cnf import CnfTokens, count_rows, name_readout
    from grace.config import TrainSettings
    from grace.training.adapter import rows_record, save_rows

    settings = TrainSettings(lora="never")

    tokenizer, readout = name_readout(engine.tokenizer, "pair")
    have = count_rows(engine.model)
    cnf = CnfTokens(readout, spare_row=max(readout.ids) < have, init="fit")
    rows = max(have, max(readout.ids) + 1)
    save_rows(
        rows_2D,
        tokenizer,
        out,
        rows_record(engine.model, rows, cnf, settings, metadata, evidence),
    )


def adapter_metadata(context: Context) -> dict[str, Any]:
    """Return the entries of grace.json that let `grace.load` ask questions as in training."""
    from grace.engines.stops import stop_ids

    model, stop = context.settings.model.path, context.engines.asking.stop
    asked, sample = to_dict(context.data), to_dict(context.settings.sample)
    shots = context.shots.read() if context.data.shots else []
    return {
        "questions": title_of(context.settings.data),
        "base_model": str(Path(model).resolve()) if Path(model).exists() else model,
        "data": {key: asked[key] for key in ("task", "prompt", "template", "shots", "system")},
        "shots": [to_json(shot) for shot in shots],
        "sample": sample | {"stop": list(stop)},
        "stop_ids": list(stop_ids(context.engines.base.tokenizer, stop)),
    }
