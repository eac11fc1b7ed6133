"""Stage `fit`: the convex fit of c to the grades of the training responses, in seconds.

It writes the evidence and, with `train.head = linear`, the rows of the tokens that are read: an
adapter without LoRA in the folder `rows`, which gives the backbone's own answers a confidence.
`grace.pipeline.stages.graded` fits the same to graded answers of any origin, for `grace fit`.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from grace.config import to_dict
from grace.engines import LAST, Features, LayerStates, StepStates
from grace.evidence import Evidence
from grace.evidence import features as likelihoods
from grace.methods.grace.fit import Fit, choose_layer, fit_evidence, fit_readout, read_by
from grace.methods.grace.trace import STEPS, Steps, fit_trace
from grace.pipeline.context import Context
from grace.pipeline.paths import absolute_model
from grace.pipeline.stages.depth import layers_to_read, read_array, read_layer
from grace.pipeline.stages.targets import STEP
from grace.probe.rows import labels_of
from grace.progress import say
from grace.records import Question, is_whole, to_json
from grace.store import write_json
from grace.tasks import title_of

if TYPE_CHECKING:
    from grace.pipeline.stages.graded import Graded

FIT = "fit"  # the unit under which the seconds of the fit are kept


class FitData(NamedTuple):
    """The inputs of a fit: graded responses that ended with an end-of-sequence token.

    `logprobs` are those of the tokens, and that of the end; `groups` are the questions.
    """

    logprobs: list[tuple[Sequence[float], float]]
    labels_N: Any
    groups: Sequence[Hashable]

    @property
    def features_NF(self) -> Any:
        """The evidence's features of each response."""
        return np.array([likelihoods(tokens, end) for tokens, end in self.logprobs])

    def steps(self, features: Features, states: StepStates, step_NB: Any) -> Steps:
        """Return some steps of each response, with the states and log-probabilities there."""
        tokens = [tokens for tokens, _ in self.logprobs]
        return Steps(*states, features.first_ND, step_NB, tokens)


def fit(context: Context) -> None:
    """Fit the evidence and the rows on the graded training responses."""
    directory, split = context.directory, context.directory.split("train")
    start = time.perf_counter()
    train = context.settings.train
    responses, grades = split.responses.read(), split.grades.read()
    cluster_of = {question.id: question.cluster for question in split.questions.read()}
    rows = [row for row, response in enumerate(responses) if is_whole(response)]
    ended = [responses[row] for row in rows]
    what, cut = "training responses", len(responses) - len(rows)
    if rows and cut:
        longest = context.settings.sample.max_new_tokens
        what += f" that end within sample.max_new_tokens={longest}, not empty ({cut} are not so)"
    data = FitData(
        [(one.logprobs, cast(float, one.end_logprob)) for one in ended],
        labels_of([grades[row].correct for row in rows], what),
        [cluster_of[one.question_id] for one in ended],
    )
    outputs = [directory.readout]
    summary: dict[str, float] = {}
    if train.head == "linear":
        layers = layers_to_read(train, context.engines.base)
        read = functools.partial(read_layer, split.features, rows=rows)
        step_NB = read_array(split.features, STEP)[rows]
        readout = fit_rows(context, layers, read, data, step_NB)
        evidence = readout.evidence
        summary = {  # on held-out folds
            "log_loss": float(readout.losses.mean()),
            "evidence_log_loss": float(readout.alone.mean()),
            "answers": len(readout.losses),
            "layer": readout.layer_rows[0] if readout.layer_rows else LAST,
        }
        metadata = adapter_metadata(context, split.questions.read())
        write_rows_adapter(
            context.engines.base,
            readout.rows_ED,
            evidence,
            directory.rows,
            metadata,
            readout.layer_rows,
        )
        outputs += sorted(path for path in directory.rows.iterdir() if path.is_file())
    else:
        evidence = fit_evidence(data.features_NF, data.labels_N, data.groups)
    if directory.seconds_in(FIT) is None:
        directory.add_time("fit", f"{FIT}/1", time.perf_counter() - start, 1)
    write_json(directory.readout, {"evidence": evidence.to_dict(), **summary})
    inputs = [split.responses.path, split.grades.path, split.features]
    directory.finish(
        "fit", {"head": train.head, "trace": train.trace, "layer": train.layer}, inputs, outputs
    )


def fit_rows(
    context: Context,
    layers: Sequence[int],
    read: Callable[[int], LayerStates],
    data: FitData,
    step_NB: Any = None,
) -> Fit:
    """Fit the rows and the evidence on pooled states (see `fit_readout`), and show the log loss.

    Several layers are compared by fits with one penalty, and the one with the smallest log loss is
    fitted. With `train.trace` c before the end is fitted, too.

    Args:
        context: the run, or the settings of a fit.
        layers: the blocks that were read beside the last hidden state.
        read: returns the pooled states of a layer.
        data: the responses.
        step_NB: the steps of each response whose states are pooled.
    """
    from grace.engines.local.forward import head_shape

    train, base, seed = context.settings.train, context.engines.base, context.settings.seed
    phi_NF, graded = data.features_NF, (data.labels_N, data.groups)
    compared = list(layers) if train.layer > LAST else [LAST, *layers]

    def features(layer: int) -> Features:
        return read(layer).features

    def tell(layer: int, loss: float) -> None:
        say(f"read-out of {_named(layer)}: held-out log loss {loss:.3f}")

    every = read_by(features, phi_NF)
    chosen = choose_layer(every, compared, *graded, free=True, seed=seed, tell=tell)
    along = data.steps(*read(chosen.layer), step_NB) if train.trace else None
    head = head_shape(base.model, len(base.tokenizer))
    readout = fit_readout(features, phi_NF, *graded, head, layer=chosen, along=along, seed=seed)
    say(
        f"the confidence reads {_named(chosen.layer)}, fitted on {len(readout.losses)} answers: "
        f"held-out log loss {readout.losses.mean():.3f} (evidence alone {readout.alone.mean():.3f})"
    )
    if along is None:
        return readout
    traced = fit_trace(readout, along, *graded, seed=seed)
    rate = float(np.mean(data.labels_N))
    entropy = -rate * np.log(rate) - (1 - rate) * np.log1p(-rate)
    say(
        f"trace fitted at {STEPS} steps of each answer: held-out log loss "
        f"{traced.losses.mean():.3f} (their accuracy alone {entropy:.3f})"
    )
    return readout._replace(evidence=dataclasses.replace(readout.evidence, trace=traced.trace))


def _named(layer: int) -> str:
    return f"the MLP of block {layer}" if layer else "the last state"


def write_rows_adapter(
    engine: Any,
    rows_ED: Any,
    evidence: Evidence,
    out: Path,
    metadata: Mapping[str, Any],
    layer_rows: tuple[int, Any] | None = None,
) -> None:
    """Write rows and their evidence as an adapter directory; the engine is not changed.

    `layer_rows` are a block and the rows (E, H) that read its MLP, if c reads one.
    """
    from grace.cnf import CnfTokens, count_rows, name_readout
    from grace.config import TrainSettings
    from grace.methods.adapter import adapter_record, save_rows

    tokenizer, readout = name_readout(engine.tokenizer, "linear")
    rows, needed = count_rows(engine.model), max(readout.ids) + 1
    cnf = CnfTokens(readout, spare_row=needed <= rows, init="fit")
    settings = TrainSettings(lora="never")
    layer, middle_EH = layer_rows or (LAST, None)
    record = adapter_record(engine.model, max(rows, needed), cnf, settings, metadata, evidence)
    save_rows(rows_ED, tokenizer, out, {**record, "layer": layer}, middle_EH)


def adapter_metadata(context: Context, asked: Iterable[Question | Graded]) -> dict[str, Any]:
    """Return the entries of grace.json with which `grace.load` makes the prompts of training.

    "kind" is `choice` if every question asked in training had choices, else that of the task.
    """
    from grace.engines.stops import stop_ids

    model, stop = context.settings.model.path, context.engines.prompt_settings.stop
    data, sample = to_dict(context.data), to_dict(context.settings.sample)
    shots = context.shots.read() if context.data.shots else []
    return {
        "questions": title_of(context.settings.data),
        "kind": "choice" if all(question.choices for question in asked) else context.task.kind,
        "base_model": absolute_model(model),
        "data": {key: data[key] for key in ("task", "prompt", "template", "shots", "system")},
        "shots": [to_json(shot) for shot in shots],
        "sample": sample | {"stop": list(stop)},
        "stop_ids": list(stop_ids(context.engines.base.tokenizer, stop)),
    }
