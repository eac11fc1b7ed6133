"""Stage `fit`: the convex read-out of c, from the graded training responses, in seconds.

It writes the evidence, and for `train.head = pair` the rows of `<CNF>` and `<NOC>`, as an adapter
without LoRA in the folder `rows`: the backbone's own answers with a confidence. `fit_graded` fits
the same to graded answers that came from anywhere: what `grace fit` does.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from grace.chat import encode_chat, encode_response
from grace.cnf import head_shape
from grace.config import RunSettings, to_dict
from grace.engines import Features, StepStates
from grace.errors import RunError
from grace.evidence import Evidence
from grace.evidence import features as likelihoods
from grace.grading import labels_of
from grace.pipeline.context import Context
from grace.probe.readout import Fit, fit_evidence, fit_readout, step_states
from grace.probe.steps import STEPS, Steps, draw_steps, fit_trace
from grace.progress import progress
from grace.records import Message, Question, to_json
from grace.store import RunDir, write_json
from grace.tasks import title_of
from grace.tasks.prompts import conversation

if TYPE_CHECKING:
    from grace.records import Response


FIT = "fit"  # the unit under which the seconds of the fit are kept
AT_ONCE = 64  # graded answers that are read together


class FitData(NamedTuple):
    """Graded responses that came to their own end, with what a read-out is fitted on.

    `logprobs` are those of the tokens, and that of the end; `rows` the places among all responses.
    """

    logprobs: list[tuple[Sequence[float], float]]
    labels_N: Any
    groups: list[str]
    rows: list[int]

    @property
    def features_NF(self) -> Any:
        """The evidence's features of each response."""
        return np.array([likelihoods(tokens, end) for tokens, end in self.logprobs])

    def steps(self, states: StepStates, step_NB: Any) -> Steps:
        """Return some steps of each response, with what is known there."""
        return Steps(*states, step_NB, [tokens for tokens, _ in self.logprobs])


def fit(context: Context) -> None:
    """Fit the evidence and the rows on the graded training responses."""
    directory, split = context.directory, context.directory.split("train")
    start = time.perf_counter()
    responses = split.responses.read()
    known = _known(responses, [grade.correct for grade in split.grades.read()])
    outputs, shown = [directory.readout], {}
    if context.settings.train.head == "pair":
        stored = _states(directory, known.rows)
        counts = [len(responses[row].token_ids) for row in known.rows]
        states = step_states(stored["mean"], stored["last"], stored["first"], counts)
        at_steps = None
        if context.settings.train.trace:
            at_steps = known.steps(StepStates(stored["at_step"], stored["to_step"]), stored["step"])
        made = fit_rows(context, states, known, at_steps)
        shown = _summary(made)
        evidence = made.evidence
        write_rows(context, made, directory.rows)
        outputs += sorted(path for path in directory.rows.iterdir() if path.is_file())
    else:
        evidence = fit_evidence(known.features_NF, known.labels_N, known.groups)
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
    ended = [responses[row] for row in rows]
    return FitData(
        [(one.logprobs, cast(float, one.end_logprob)) for one in ended],
        labels_of([correct[row] for row in rows]),
        [one.question_id for one in ended],
        rows,
    )


def fit_rows(
    context: Context, states: Mapping[str, Any], known: FitData, along: Steps | None = None
) -> Fit:
    """Fit the rows and the evidence on pooled states (see `fit_readout`), and say how well.

    With steps, c along the way too.
    """
    base, seed = context.engines.base, context.settings.seed
    graded = (known.labels_N, known.groups)
    made = fit_readout(
        states,
        known.features_NF,
        *graded,
        head_shape(base.model, len(base.tokenizer)),
        along=along,
        seed=seed,
    )
    context.say(
        f"read-out fitted on {len(made.losses)} answers: held-out log loss "
        f"{made.losses.mean():.3f} (evidence alone {made.alone.mean():.3f})"
    )
    if along is None:
        return made
    found = fit_trace(made, along, *graded, seed=seed)
    rate = float(np.mean(known.labels_N))
    guess = -rate * np.log(rate) - (1 - rate) * np.log1p(-rate)
    context.say(
        f"trace fitted at {STEPS} steps of each answer: held-out log loss "
        f"{found.losses.mean():.3f} (their accuracy alone {guess:.3f})"
    )
    return made._replace(evidence=dataclasses.replace(made.evidence, trace=found.trace))


def _states(directory: RunDir, rows: Sequence[int]) -> dict[str, Any]:
    """Return what stage `features` has stored of some responses."""
    from safetensors.numpy import load_file

    stored = load_file(directory.split("train").features)
    if "first" not in stored:
        raise RunError(
            f"{directory.split('train').features} is of an earlier version, without the states of "
            f"the prompts; make it again: grace run {directory.path} --redo features"
        )
    return {name: value[list(rows)] for name, value in stored.items()}


def _summary(made: Fit) -> dict[str, float]:
    """Return the held-out log loss of the rows with the evidence, and of the evidence alone."""
    return {
        "log_loss": float(made.losses.mean()),
        "evidence_log_loss": float(made.alone.mean()),
        "answers": len(made.losses),
    }


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
    from grace.training.adapter import adapter_record, save_rows

    tokenizer, readout = name_readout(engine.tokenizer, "pair")
    have = count_rows(engine.model)
    cnf = CnfTokens(readout, spare_row=max(readout.ids) < have, init="fit")
    rows, settings = max(have, max(readout.ids) + 1), TrainSettings(lora="never")
    record = adapter_record(engine.model, rows, cnf, settings, metadata, evidence)
    save_rows(rows_2D, tokenizer, out, record)


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


class Graded(NamedTuple):
    """An answer with its grade; `asked` is a question, or the conversation before the answer."""

    asked: str | Sequence[Message]
    choices: tuple[str, ...]
    response: str
    correct: bool


def fit_graded(settings: RunSettings, answers: Sequence[Graded], out: Path) -> Fit:
    """Fit a read-out on graded answers and write it as an adapter directory.

    Questions are asked as `settings.data` says. Answers to one question fall into one fold.

    Raises:
        DataError: all answers are right, or all are wrong.
        ModelError: the model cannot be loaded, or an answer is too long for it.
    """
    label_N = labels_of([answer.correct for answer in answers], "graded answers")
    task = settings.data.task or "jsonl"
    data = dataclasses.replace(settings.data, task=task, shots=0)
    context = Context(RunDir(out), dataclasses.replace(settings, data=data))
    engine = context.engines.base
    chats = [_chat(context, answer) for answer in answers]
    prompts = [encode_chat(engine.tokenizer, chat) for chat in chats]
    pairs = zip(chats, answers, strict=True)
    given = [encode_response(engine.tokenizer, chat, answer.response) for chat, answer in pairs]
    counts = [len(row) for row in given]
    steps = draw_steps(counts, settings.seed) if settings.train.trace else np.zeros((len(given), 0))
    states, at_steps, logprobs = _read(engine, prompts, given, steps.astype(int))
    known = FitData(logprobs, label_N, [str(chat) for chat in chats], list(range(len(given))))
    along = known.steps(at_steps, steps) if settings.train.trace else None
    made = fit_rows(context, step_states(*states, counts), known, along)
    write_rows(context, made, out)
    return made


def _chat(context: Context, answer: Graded) -> Sequence[Message]:
    if not isinstance(answer.asked, str):
        return answer.asked
    question = Question("0", context.task.name, answer.asked, (), answer.choices)
    return conversation(context.task, question, context.data, ())


def _read(
    engine: Any,
    prompts: Sequence[Sequence[int]],
    given: Sequence[Sequence[int]],
    steps_NB: Any,
) -> tuple[Features, StepStates, list[tuple[Sequence[float], float]]]:
    """Return the states and the log-probabilities of answers and their ends, a part at a time."""
    parts: list[tuple[Features, StepStates]] = []
    logprobs: list[tuple[Sequence[float], float]] = []
    with progress("read answers", len(given), unit="answers") as advance:
        for start in range(0, len(given), AT_ONCE):
            rows = slice(start, start + AT_ONCE)
            parts.append(engine.states(prompts[rows], given[rows], steps_NB[rows].tolist()))
            logprobs += engine.logprobs(prompts[rows], given[rows])
            advance(len(given[rows]))
    features, at_steps = zip(*parts, strict=True)
    return (
        Features(*map(np.concatenate, zip(*features, strict=True))),
        StepStates(*map(np.concatenate, zip(*at_steps, strict=True))),
        logprobs,
    )
