"""The same fit to graded answers of any origin, for `grace fit`."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from grace import answers as readers
from grace.chat import encode_chat, encode_response
from grace.config import RunSettings
from grace.engines import Ids
from grace.engines.base import check_contexts
from grace.engines.reading import Span, end_of, field_places
from grace.errors import DataError, GraceError
from grace.methods.grace.fit import Fit
from grace.methods.grace.trace import draw_steps
from grace.pipeline.context import Context
from grace.pipeline.prompting import COMPARED, SAID
from grace.pipeline.stages.fit import (
    FitData,
    adapter_metadata,
    fit_rows,
    layers_to_read,
    read_layer,
    store_states,
    write_rows_adapter,
)
from grace.probe.rows import Sourced, labels_of
from grace.progress import say
from grace.records import Question
from grace.store import RunDir
from grace.store.files import existing
from grace.tasks import KINDS
from grace.tasks.answered import Answered
from grace.tasks.draw import together
from grace.tasks.prompts import conversation

AT_ONCE = 64  # answers that are read together


class GradedRow(NamedTuple):
    """A row of a fit: an answer by its number, or a field of it (`place` are its tokens)."""

    answer: int
    right: bool
    name: str | None = None
    place: Span | None = None


class GradedFit(NamedTuple):
    """A fit, and its rows: first the answers, then the fields of structured ones."""

    fit: Fit
    rows: list[GradedRow]


def fit_graded(settings: RunSettings, answers: Sequence[Answered], out: Path) -> GradedFit:
    """Fit on graded answers, folded by question or group, and write an adapter directory."""
    labels_of([right for one in answers for right in _grades(one).values()], "graded answers")
    if settings.grace.trace and any(isinstance(one.grades, dict) for one in answers):
        raise DataError(
            "a confidence at every token (--trace) and one for each field are not fitted together; "
            "leave out --trace, or write correct: true or false for whole answers"
        )
    task = settings.data.task or "jsonl"
    data = dataclasses.replace(settings.data, task=task, shots=0)
    grade = settings.grade
    kind = readers.kind_of(_right_answers(answers)) if task == "jsonl" else "open"
    if kind in KINDS:
        say(f"every right answer is {SAID[kind]}, so {COMPARED[kind]} are compared in votes")
        grade = dataclasses.replace(grade, grader=kind)
    context = Context(RunDir(out), dataclasses.replace(settings, data=data, grade=grade))
    engine = context.engines.base
    groups = together(answer.keys for answer in answers)
    if len(set(groups)) == 1:
        raise DataError(
            "all graded answers are to one question or of one group, so nothing shows how good the "
            "confidence of another one is; grade answers to more questions or, if they are to "
            "several, tell these apart by a column question_id"
        )
    encoded = [_encoded(context, answer) for answer in answers]
    prompts, responses = zip(*encoded, strict=True)
    rows = [GradedRow(n, answer.correct is True) for n, answer in enumerate(answers)]
    for n, answer in enumerate(answers):
        rows += _field_rows(n, answer, engine.tokenizer, responses[n])
    step_NB = np.zeros((len(responses), 0), dtype=int)
    if settings.grace.trace:
        step_NB = draw_steps([*map(len, responses)], settings.seed)
    layers = layers_to_read(settings, engine)
    with tempfile.TemporaryDirectory(dir=existing(out.parent), prefix=f".{out.name}") as folder:
        store = partial(store_states, engine, layers=layers, size=AT_ONCE)
        logprobs: list[tuple[Sequence[float], float]] = []
        files = []  # so that the states of one layer are in memory at a time
        own, steps = Path(folder, "answers"), step_NB.tolist()
        for path, at in store(prompts, responses, own, steps, what="read answers", unit="answers"):
            files.append(path)
            logprobs += engine.logprobs(prompts[at], responses[at])
        before, values = [], []  # of fields, each read like an answer
        for row in rows[len(answers) :]:
            place, tokens = cast(Span, row.place), responses[row.answer]
            before.append([*prompts[row.answer], *tokens[: place.start]])
            values.append(tokens[place.start : place.end])
            known = logprobs[row.answer][0]
            logprobs.append((known[place.start : place.end], end_of(place, known)))
        fields = store(before, values, Path(folder, "fields"), what="read fields", unit="fields")
        files += [path for path, _ in fields]
        graded = FitData(
            logprobs,
            labels_of([row.right for row in rows], "graded answers"),
            [Sourced(answers[row.answer].source, groups[row.answer]) for row in rows],
            [row.name for row in rows],
        )
        readout = fit_rows(context, layers, partial(read_layer, files), graded, step_NB)
    metadata, found = adapter_metadata(context, answers), (readout.rows_ED, readout.evidence)
    write_rows_adapter(engine, *found, out, metadata, readout.layer_rows, readout.prompts)
    return GradedFit(readout, rows)


def _grades(answer: Answered) -> dict[str, bool]:
    """Return the grades of the fields of an answer, or that of the whole."""
    return answer.grades if isinstance(answer.grades, dict) else {"": answer.correct is True}


def _right_answers(answers: Sequence[Answered]) -> list[str]:
    """Return the right answers, which are all that is known to be accepted; [] with choices."""
    if any(answer.choices or isinstance(answer.grades, dict) for answer in answers):
        return []
    return [readers.short_answer(answer.response) for answer in answers if answer.correct]


def _encoded(context: Context, answer: Answered) -> tuple[list[int], list[int]]:
    engine, chat = context.engines.base, answer.asked
    try:
        if isinstance(chat, str):
            question = Question("0", context.task.name, chat, (), answer.choices)
            chat = conversation(context.task, question, context.data, ())
        prompt = encode_chat(engine.tokenizer, chat)
        response = encode_response(engine.tokenizer, chat, answer.response)
        check_contexts([[*prompt, *response]], engine.limit)
    except GraceError as error:
        raise DataError(f"{answer.where}: {error}") from error
    return prompt, response


def _field_rows(n: int, answer: Answered, tokenizer: Any, response: Ids) -> Iterator[GradedRow]:
    """Yield the graded fields that an answer has; a field that it lacks can only be wrong."""
    if not isinstance(answer.grades, dict):
        return
    places = field_places(tokenizer, response)
    for name, right in answer.grades.items():
        if name in places:
            yield GradedRow(n, right, name, places[name])
        elif right:
            has = ", ".join(map(repr, places)) or "no JSON object with fields"
            raise DataError(
                f"{answer.where}: correct says that the field {name!r} is right, but the response "
                f"has {has}; names of nested fields are joined by a dot"
            )
