"""Stages `features` and `fit`: hidden states of the training responses, and our fit of c to grades.

The states are those of the last layer and, where c may read them, of the MLPs of blocks before it;
the paper's method (`paper.py`) reads them, too. The fit is convex and takes seconds. It writes the
rows of the tokens that are read and the weights of the token probabilities: an adapter without
LoRA, which gives the backbone's own answers a confidence. `graded.py` does both with graded answers
of any origin, for `grace fit`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import shutil
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from grace import plugins
from grace.config import RunSettings, to_dict
from grace.engines import LAST, Features, LayerStates, StepStates
from grace.errors import RunError, UserInputError
from grace.estimators import Samples
from grace.evidence import Evidence
from grace.evidence import features as likelihoods
from grace.methods.grace.fields import FieldColumns
from grace.methods.grace.fit import (
    Fit,
    Steps,
    choose_layer,
    fit_readout,
    knowing_prompts,
    knowing_sources,
    read_by,
)
from grace.methods.grace.prompts import Prompts
from grace.methods.grace.trace import STEPS, draw_steps, fit_trace
from grace.pipeline.context import Context
from grace.pipeline.settings import absolute_model, model_folder
from grace.probe.rows import assign_folds, labels_of, sourced, sources_in
from grace.progress import progress, say
from grace.records import Message, Question, is_whole, to_json
from grace.store import RunDir, read_json, write_bytes, write_json, writing
from grace.store.files import sync
from grace.tasks import title_of
from grace.tasks.answered import Answered
from grace.tasks.conversations import MARK, forms_of, prompt_of
from grace.tasks.prompts import conversation

SHARD_ROWS = 256
STEP = "step"  # the steps of each response whose states are stored, too
CHOOSE = -1  # the value of `grace.layer` with which the fit chooses
NAMES = ("mean", "last", "first", "at_step", "to_step")
FIT = "fit"  # the unit under which the seconds of the fit are kept


def features(context: Context) -> None:
    """Pool hidden states over each training response (paper eq. 6), and at steps for a trace."""
    split = context.directory.split("train")
    samples = context.samples(split)
    layers, trace = layers_to_read(context.settings, context.engine("base")), traces(context)
    folder = _shards(split.path, {"trace": trace, "layers": layers})
    stored = store_states(
        context.engine("base"),
        samples.prompts,
        [response.token_ids for response in samples.responses],
        folder,
        _steps(context, samples),
        layers=layers,
        size=SHARD_ROWS,
        what="features",
        unit="responses",
    )
    _merge([path for path, _ in stored], split.features)
    shutil.rmtree(folder)
    settings = {"trace": trace, "layers": layers}
    inputs = [split.questions.path, split.responses.path]
    context.directory.finish("features", settings, inputs, [split.features])


def store_states(
    engine: Any,
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    folder: Path,
    steps_NB: Sequence[Sequence[int]] = (),
    *,
    layers: Sequence[int],
    size: int,
    what: str,
    unit: str,
) -> Iterator[tuple[Path, slice]]:
    """Yield a file with the states of each `size` responses; those that are there are kept."""
    total = len(responses)
    starts = range(0, total, size)
    paths = [folder / f"{number:05d}.safetensors" for number in range(len(starts))]
    done = min(sum(path.exists() for path in paths) * size, total)
    with progress(what, total, done=done, unit=unit) as advance:
        for path, start in zip(paths, starts, strict=True):
            rows = slice(start, start + size)
            new = not path.exists()
            if new:
                read = engine.states(prompts[rows], responses[rows], steps_NB[rows], layers)
                steps = np.array(steps_NB[rows], dtype=np.int32)
                write_states(path, read, {STEP: steps.reshape(len(responses[rows]), -1)})
            yield path, rows
            advance(len(responses[rows]) * new)


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


# --- the fit


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
    sources = sources_in(data.groups)
    if layers and sources:
        block = min(layers)
        prompts_N = np.array([name is None for name in data.names or [None] * len(phi_NF)])
        first_NH = features(block).first_ND
        readout = knowing_prompts(readout, block, first_NH, phi_NF, *graded, prompts_N)
        count = len(set(np.array(sources)[prompts_N]))
        say(f"prompts like those of {count} sources are known by the MLP of block {block}")
        readout, shares = knowing_sources(
            readout, features, layers, first_NH, phi_NF, *graded, head, prompts_N, seed
        )
        shown = ", ".join(f"{share:.0%} {source or 'others'}" for source, share in shares.items())
        own = f"share of each source's own fit: {shown}"
        say(own if shown else "no source has a fit of its own")
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
    from grace.engines.local.adapters import OWN_ROWS, PROMPT_ENDS
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
    if known.own:
        record["own_layers"], own = map(list, zip(*known.own, strict=True))
        ends[OWN_ROWS] = np.stack(own)
    arrays = {name: array.astype(np.float32) for name, array in ends.items()}
    save_rows(rows_ED, tokenizer, out, record, middle_EH, arrays)


# --- what an adapter says of its training: the prompts, the answers, their ends


def adapter_metadata(context: Context, asked: Sequence[Question | Answered]) -> dict[str, Any]:
    """Return the entries of grace.json with which `grace.load` makes the prompts of training."""
    from grace.engines.reading import stop_ids

    model, stop = context.settings.model.path, context.engines.prompt_settings.stop
    data, sample = to_dict(context.data), to_dict(context.settings.sample)
    shots = context.shots.read() if context.data.shots else []
    chats = [one.messages for one in asked if one.messages]
    forms = forms_of(chats)
    if chats and len(chats) == len(asked):  # questions are asked like the conversations
        data, shots = data | prompt_of(forms), []
    elif chats:
        forms += _own_form(context, shots)
    return {
        "questions": title_of(context.settings.data),
        "kind": "choice" if all(question.choices for question in asked) else context.task.kind,
        "base_model": absolute_model(model),
        "data": {key: data[key] for key in ("task", "prompt", "template", "shots", "system")},
        "shots": [to_json(shot) for shot in shots],
        "sample": sample | {"stop": list(stop)},
        "stop_ids": list(stop_ids(context.engines.base.tokenizer, stop)),
        **({"conversations": forms} if forms else {}),
    }


def _own_form(context: Context, shots: Sequence[Question]) -> list[list[Message]]:
    """Return the form of the run's own prompt, none if it needs choices."""
    question = Question("0", context.task.name, MARK, ())
    with contextlib.suppress(UserInputError):
        return [conversation(context.task, question, context.data, shots)]
    return []
