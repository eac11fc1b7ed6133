"""Stage `fit`: the convex fit of c to the grades of the training responses, in seconds.

It writes the evidence and, with `train.head = linear`, the rows of the tokens that are read: an
adapter without LoRA in the folder `rows`, which gives the backbone's own answers a confidence.
`fit_graded` fits the same to graded answers of any origin, for `grace fit`.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from grace.chat import encode_chat, encode_response
from grace.cnf import head_shape
from grace.config import RunSettings, absolute_model, to_dict
from grace.engines import Features, StepStates
from grace.engines.base import check_contexts
from grace.errors import DataError, GraceError
from grace.evidence import Evidence
from grace.evidence import features as likelihoods
from grace.grading import is_number, labels_of, short_answer
from grace.pipeline.context import Context
from grace.probe.readout import Fit, fit_evidence, fit_readout
from grace.probe.steps import STEPS, Steps, draw_steps, fit_trace
from grace.progress import progress, say
from grace.records import Message, Question, to_json
from grace.store import RunDir, write_json
from grace.tasks import title_of
from grace.tasks.prompts import conversation

FIT = "fit"  # the unit under which the seconds of the fit are kept
AT_ONCE = 64  # graded answers that are read together


class FitData(NamedTuple):
    """The inputs of a fit: graded responses that ended with an end-of-sequence token.

    `logprobs` are those of the tokens, and that of the end; `groups` are the questions.
    """

    logprobs: list[tuple[Sequence[float], float]]
    labels_N: Any
    groups: list[str]

    @property
    def features_NF(self) -> Any:
        """The evidence's features of each response."""
        return np.array([likelihoods(tokens, end) for tokens, end in self.logprobs])

    def steps(self, features: Features, states: StepStates, step_NB: Any) -> Steps:
        """Return some steps of each response, with the states and log-probabilities there."""
        tokens = [tokens for tokens, _ in self.logprobs]
        return Steps(*states, features.first_ND, step_NB, tokens)


def fit(context: Context) -> None:
    """Fit the evidence and the rows on the graded training responses.

    Raises:
        DataError: all that were not cut are right, or all are wrong, or there is none.
    """
    directory, split = context.directory, context.directory.split("train")
    start = time.perf_counter()
    train = context.settings.train
    responses, grades = split.responses.read(), split.grades.read()
    # a response that was cut has no c
    rows = [row for row, response in enumerate(responses) if response.finish_reason == "stop"]
    ended = [responses[row] for row in rows]
    what, cut = "training responses", len(responses) - len(rows)
    if rows and cut:
        longest = context.settings.sample.max_new_tokens
        what += f" that end within sample.max_new_tokens={longest} ({cut} do not)"
    data = FitData(
        [(one.logprobs, cast(float, one.end_logprob)) for one in ended],
        labels_of([grades[row].correct for row in rows], what),
        [one.question_id for one in ended],
    )
    outputs = [directory.readout]
    summary: dict[str, float] = {}
    if train.head == "linear":
        from safetensors.numpy import load_file

        stored = {name: value[rows] for name, value in load_file(split.features).items()}
        states = Features(stored["mean"], stored["last"], stored["first"])
        steps = None
        if train.trace:
            at_steps = StepStates(stored["at_step"], stored["to_step"])
            steps = data.steps(states, at_steps, stored["step"])
        readout = fit_rows(context, states, data, steps)
        evidence = readout.evidence
        summary = {  # on held-out folds
            "log_loss": float(readout.losses.mean()),
            "evidence_log_loss": float(readout.alone.mean()),
            "answers": len(readout.losses),
        }
        write_rows_adapter(
            context.engines.base,
            readout.rows_ED,
            evidence,
            directory.rows,
            adapter_metadata(context, split.questions.read()),
        )
        outputs += sorted(path for path in directory.rows.iterdir() if path.is_file())
    else:
        evidence = fit_evidence(data.features_NF, data.labels_N, data.groups)
    if directory.seconds_in(FIT) is None:
        directory.add_time("fit", f"{FIT}/1", time.perf_counter() - start, 1)
    write_json(directory.readout, {"evidence": evidence.to_dict(), **summary})
    inputs = [split.responses.path, split.grades.path, split.features]
    directory.finish("fit", {"head": train.head, "trace": train.trace}, inputs, outputs)


def fit_rows(context: Context, states: Features, data: FitData, steps: Steps | None = None) -> Fit:
    """Fit the rows and the evidence on pooled states (see `fit_readout`), and show the log loss.

    With steps of the responses, the trace is fitted too: c before the end.
    """
    base, seed = context.engines.base, context.settings.seed
    graded = (data.labels_N, data.groups)
    readout = fit_readout(
        states,
        data.features_NF,
        *graded,
        head_shape(base.model, len(base.tokenizer)),
        along=steps,
        seed=seed,
    )
    say(
        f"read-out fitted on {len(readout.losses)} answers: held-out log loss "
        f"{readout.losses.mean():.3f} (evidence alone {readout.alone.mean():.3f})"
    )
    if steps is None:
        return readout
    traced = fit_trace(readout, steps, *graded, seed=seed)
    rate = float(np.mean(data.labels_N))
    entropy = -rate * np.log(rate) - (1 - rate) * np.log1p(-rate)
    say(
        f"trace fitted at {STEPS} steps of each answer: held-out log loss "
        f"{traced.losses.mean():.3f} (their accuracy alone {entropy:.3f})"
    )
    return readout._replace(evidence=dataclasses.replace(readout.evidence, trace=traced.trace))


def write_rows_adapter(
    engine: Any, rows_ED: Any, evidence: Evidence, out: Path, metadata: Mapping[str, Any]
) -> None:
    """Write rows and their evidence as an adapter directory; the engine is not changed."""
    from grace.cnf import CnfTokens, count_rows, name_readout
    from grace.config import TrainSettings
    from grace.training.adapter import adapter_record, save_rows

    tokenizer, readout = name_readout(engine.tokenizer, "linear")
    rows, needed = count_rows(engine.model), max(readout.ids) + 1
    cnf = CnfTokens(readout, spare_row=needed <= rows, init="fit")
    settings = TrainSettings(lora="never")
    record = adapter_record(engine.model, max(rows, needed), cnf, settings, metadata, evidence)
    save_rows(rows_ED, tokenizer, out, record)


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


class Graded(NamedTuple):
    """An answer with its grade.

    `asked` is a question, or the conversation before the answer; `where` is named in errors.
    """

    asked: str | Sequence[Message]
    choices: tuple[str, ...]
    response: str
    correct: bool
    where: str = ""


def fit_graded(settings: RunSettings, answers: Sequence[Graded], out: Path) -> Fit:
    """Fit a read-out on graded answers and write it as an adapter directory.

    The prompts are made as `settings.data` says. Answers to one question are in one fold. If all
    right answers are numbers, the adapter votes by number.

    Raises:
        DataError: all answers are right, or all are wrong; there is only one question; or an
            answer cannot be read, because it is too long for the model, for example.
        ModelError: the model cannot be loaded.
    """
    labels_N = labels_of([answer.correct for answer in answers], "graded answers")
    task = settings.data.task or "jsonl"
    data = dataclasses.replace(settings.data, task=task, shots=0)
    grade = settings.grade
    if task == "jsonl" and _are_numbers(answers):
        say("every right answer is a number, so numbers are compared in votes")
        grade = dataclasses.replace(grade, grader="number")
    context = Context(RunDir(out), dataclasses.replace(settings, data=data, grade=grade))
    engine = context.engines.base
    encoded = [_encoded(context, answer) for answer in answers]
    chats, prompts, responses = zip(*encoded, strict=True)
    if len(set(chats)) == 1:
        raise DataError(
            "all graded answers are to one question, so nothing shows how good the confidence of "
            "another one is; grade answers to more questions"
        )
    step_NB = np.zeros((len(responses), 0), dtype=int)
    if settings.train.trace:
        step_NB = draw_steps([*map(len, responses)], settings.seed)
    features, at_steps, logprobs = _read(engine, prompts, responses, step_NB)
    graded = FitData(logprobs, labels_N, list(chats))
    steps = graded.steps(features, at_steps, step_NB) if settings.train.trace else None
    readout = fit_rows(context, features, graded, steps)
    metadata = adapter_metadata(context, answers)
    write_rows_adapter(engine, readout.rows_ED, readout.evidence, out, metadata)
    return readout


def _are_numbers(answers: Sequence[Graded]) -> bool:
    """Return whether the right answers, which are all that is known to be accepted, are numbers."""
    return all(
        not answer.choices and (not answer.correct or is_number(short_answer(answer.response)))
        for answer in answers
    )


def _encoded(context: Context, answer: Graded) -> tuple[str, list[int], list[int]]:
    """Return the conversation as a text, and the token ids of its prompt and of the answer.

    Raises:
        DataError: names the place of the answer, and what is wrong with it.
    """
    engine, chat = context.engines.base, answer.asked
    try:
        if isinstance(chat, str):
            question = Question("0", context.task.name, chat, (), answer.choices)
            chat = conversation(context.task, question, context.data, ())
        prompt = encode_chat(engine.tokenizer, chat, context=engine.limit)
        response = encode_response(engine.tokenizer, chat, answer.response, context=engine.limit)
        check_contexts([[*prompt, *response]], engine.limit)
    except GraceError as error:
        raise DataError(f"{answer.where}: {error}") from error
    return str(chat), prompt, response


def _read(
    engine: Any,
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    step_NB: Any,
) -> tuple[Features, StepStates, list[tuple[Sequence[float], float]]]:
    """Return hidden states and log-probabilities of answers and their ends, a part at a time."""
    parts: list[tuple[Features, StepStates]] = []
    logprobs: list[tuple[Sequence[float], float]] = []
    with progress("read answers", len(responses), unit="answers") as advance:
        for start in range(0, len(responses), AT_ONCE):
            rows = slice(start, start + AT_ONCE)
            parts.append(engine.states(prompts[rows], responses[rows], step_NB[rows].tolist()))
            logprobs += engine.logprobs(prompts[rows], responses[rows])
            advance(len(responses[rows]))
    features, at_steps = zip(*parts, strict=True)
    return (
        Features(*map(np.concatenate, zip(*features, strict=True))),
        StepStates(*map(np.concatenate, zip(*at_steps, strict=True))),
        logprobs,
    )
