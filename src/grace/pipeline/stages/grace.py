"""Stage `fit` of our method: the convex fit of c to the grades of the training responses.

It takes seconds, and writes the rows of the tokens that are read and the weights of the token
probabilities: an adapter without LoRA, which gives the backbone's own answers a confidence.
`grace.pipeline.stages.graded` fits the same to graded answers of any origin, for `grace fit`.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from grace.config import to_dict
from grace.engines import LAST, Features, LayerStates, StepStates
from grace.evidence import Evidence
from grace.evidence import features as likelihoods
from grace.methods.grace.fields import FieldColumns
from grace.methods.grace.fit import Fit, Steps, choose_layer, fit_readout, knowing_prompts, read_by
from grace.methods.grace.prompts import Prompts
from grace.methods.grace.trace import STEPS, fit_trace
from grace.pipeline.context import Context
from grace.pipeline.stages.features import STEP, layers_to_read, read_array, read_layer
from grace.pipeline.stages.metadata import adapter_metadata
from grace.probe.rows import assign_folds, labels_of, sourced, sources_in
from grace.progress import say
from grace.records import is_whole
from grace.store import write_json

FIT = "fit"  # the unit under which the seconds of the fit are kept


class FitData(NamedTuple):
    """The inputs of a fit: graded responses that ended with an end-of-sequence token."""

    logprobs: list[tuple[Sequence[float], float]]  # of the tokens, and of the end
    labels_N: Any
    groups: Sequence[Hashable]  # questions
    names: Sequence[str | None] = ()  # of fields of structured answers; None: a whole one

    @property
    def features_NF(self) -> Any:
        """The evidence's features of each response."""
        return np.array([likelihoods(tokens, end) for tokens, end in self.logprobs])

    def steps(self, features: Features, states: StepStates, step_NB: Any) -> Steps:
        """Return some steps of each response, with the states and log-probabilities there."""
        tokens = [tokens for tokens, _ in self.logprobs]
        return Steps(*states, features.first_ND, step_NB, tokens)


def fit_run(context: Context) -> None:
    """Fit the rows and the weights of the token probabilities on the training responses."""
    directory, split = context.directory, context.directory.split("train")
    start = time.perf_counter()
    responses, grades = split.responses.read(), split.grades.read()
    question_of = {question.id: question for question in split.questions.read()}
    rows = [row for row, response in enumerate(responses) if is_whole(response)]
    ended = [responses[row] for row in rows]
    asked = [question_of[one.question_id] for one in ended]
    what, cut = "training responses", len(responses) - len(rows)
    if rows and cut:
        longest = context.settings.sample.max_new_tokens
        what += f" that end within sample.max_new_tokens={longest} with a text ({cut} do not)"
    data = FitData(
        [(one.logprobs, cast(float, one.end_logprob)) for one in ended],
        labels_of([grades[row].correct for row in rows], what),
        sourced([one.source for one in asked], [one.cluster for one in asked]),
    )
    layers = layers_to_read(context.settings, context.engines.base)
    read = functools.partial(read_layer, [split.features], rows=rows)
    step_NB = read_array(split.features, STEP)[rows]
    readout = fit_rows(context, layers, read, data, step_NB)
    write_rows_adapter(
        context.engines.base,
        readout.rows_ED,
        readout.evidence,
        directory.adapter,
        adapter_metadata(context, split.questions.read()),
        readout.layer_rows,
        readout.prompts,
    )
    if directory.seconds_in(FIT) is None:
        directory.add_time("fit", f"{FIT}/1", time.perf_counter() - start, 1)
    found = {  # on held-out folds
        "evidence": readout.evidence.to_dict(),
        "log_loss": float(readout.losses.mean()),
        "evidence_log_loss": float(readout.alone.mean()),
        "answers": len(readout.losses),
        "layer": readout.layer_rows[0] if readout.layer_rows else LAST,
    }
    write_json(directory.readout, found)
    inputs = [split.responses.path, split.grades.path, split.features]
    outputs = sorted(path for path in directory.adapter.iterdir() if path.is_file())
    settings = {"method": "grace", "grace": to_dict(context.settings.grace)}
    directory.finish("fit", settings, inputs, [directory.readout, *outputs])


def fit_rows(
    context: Context,
    layers: Sequence[int],
    read: Callable[[int], LayerStates],
    data: FitData,
    step_NB: Any = None,
) -> Fit:
    """Fit rows and evidence on pooled states that `read` returns, of the best of `layers`."""
    from grace.engines.local.forward import head_shape

    method, base, seed = context.settings.grace, context.engines.base, context.settings.seed
    phi_NF, graded = data.features_NF, (data.labels_N, data.groups)
    columns = None
    if any(name is not None for name in data.names):
        columns = FieldColumns(
            phi_NF, data.names, data.labels_N, assign_folds(data.groups, seed=seed)
        )
        phi_NF = columns.matrix_NX
    compared = list(layers) if method.layer > LAST else [LAST, *layers]

    def features(layer: int) -> Features:
        return read(layer).features

    def tell(layer: int, loss: float) -> None:
        say(f"read-out of {_named(layer)}: held-out log loss {loss:.3f}")

    every = read_by(features, phi_NF)
    chosen = choose_layer(every, compared, *graded, free=True, seed=seed, tell=tell)
    along = data.steps(*read(chosen.layer), step_NB) if method.trace else None
    head = head_shape(base.model, len(base.tokenizer))
    readout = fit_readout(features, phi_NF, *graded, head, layer=chosen, along=along, seed=seed)
    say(
        f"the confidence reads {_named(chosen.layer)}, fitted on {len(readout.losses)} answers: "
        f"held-out log loss {readout.losses.mean():.3f} (evidence alone {readout.alone.mean():.3f})"
    )
    sources = set(sources_in(data.groups))
    if layers and sources:
        block = min(layers)
        prompts_N = np.array([name is None for name in data.names or [None] * len(phi_NF)])
        first_NH = features(block).first_ND
        readout = knowing_prompts(readout, block, first_NH, phi_NF, *graded, prompts_N)
        say(f"prompts like those of {len(sources)} sources are known by the MLP of block {block}")
    if columns is not None:
        readout = readout._replace(evidence=columns.split(readout.evidence))
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
    prompts: tuple[int, Prompts] | None = None,
) -> None:
    """Write rows as an adapter; `layer_rows` (E, H) read the MLP of a block."""
    from grace.cnf import CnfTokens, count_rows, name_readout
    from grace.engines.local.adapters import PROMPT_ENDS
    from grace.methods.adapter import adapter_record, save_rows

    tokenizer, readout = name_readout(engine.tokenizer, "linear")
    rows, needed = count_rows(engine.model), max(readout.ids) + 1
    cnf = CnfTokens(readout, spare_row=needed <= rows)
    layer, middle_EH = layer_rows or (LAST, None)
    record = adapter_record(
        engine.model, max(rows, needed), cnf, metadata, evidence=evidence, method="grace"
    )
    record |= {"layer": layer}
    if prompts is None:
        save_rows(rows_ED, tokenizer, out, record, middle_EH)
        return
    record["prompt_layer"], known = prompts
    ends = dict(zip(PROMPT_ENDS, (known.mean_SH, known.spread_SH), strict=True))
    arrays = {name: array.astype(np.float32) for name, array in ends.items()}
    save_rows(rows_ED, tokenizer, out, record, middle_EH, arrays)
