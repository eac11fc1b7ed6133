"""A read-out from graded answers that came from anywhere: what `grace fit` does."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from grace.chat import encode_chat, encode_response
from grace.cnf import head_shape
from grace.config import RunSettings
from grace.engines import Features, StepStates
from grace.evidence import features as likelihoods
from grace.grading import labels_of
from grace.pipeline.context import Context
from grace.pipeline.stages.fit import described_trace, traced, write_rows
from grace.probe.readout import Fit, draw_steps, fit_readout, fit_trace, step_states
from grace.progress import progress
from grace.records import Message, Question
from grace.store import RunDir
from grace.tasks.prompts import conversation

AT_ONCE = 64


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
    groups = [str(chat) for chat in chats]
    made = fit_readout(
        step_states(*states, counts),
        np.array([likelihoods(*row) for row in logprobs]),
        label_N,
        groups,
        head_shape(engine.model, len(engine.tokenizer)),
        seed=settings.seed,
    )
    if settings.train.trace:
        tokens = [row[0] for row in logprobs]
        found = fit_trace(made, *at_steps, steps, tokens, label_N, groups, seed=settings.seed)
        context.say(described_trace(found, label_N))
        made = traced(made, found)
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
) -> tuple[Features, StepStates, list[tuple[list[float], float]]]:
    """Return the states and the log-probabilities of answers and their ends, a part at a time."""
    parts: list[tuple[Features, StepStates]] = []
    logprobs: list[tuple[list[float], float]] = []
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
