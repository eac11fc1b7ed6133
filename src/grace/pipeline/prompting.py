"""The choice of prompt, examples, answer length and grader where the settings leave them open.

Several prompts are tried on training questions; the one with most right answers is kept for the
run, in `train/asking.json`. So is the grader `number` for own questions that all accept numbers,
`yes_no` for those that accept yes or no, and the date that a chat template prints.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from grace.answers import Kind, kind_of
from grace.chat import encode_chat, frozen_date, has_chat_template
from grace.config import DataSettings
from grace.engines import Sampling
from grace.errors import DataError
from grace.grading import grader_of
from grace.pipeline.context import Context
from grace.pipeline.settings import at_most_half, longest_answer
from grace.progress import Advance, progress, say
from grace.records import Message, Question
from grace.store import write_json
from grace.tasks import KINDS, Split
from grace.tasks.prompts import conversation, draw_training

TRIED = 48  # training questions that every prompt is tried on
SHOTS = 5  # examples in a few-shot prompt
SAID = {"number": "a number", "yes_no": "yes or no"}
COMPARED = {"number": "numbers", "yes_no": "yes and no"}


def settle(context: Context) -> None:
    """Choose the prompt, answer length and grader, once per run, where the settings do not."""
    path, settings = context.directory.asking, context.open_settings
    asked = settings.data.prompt != "auto" and settings.sample.max_new_tokens > 0
    graded = settings.grade.grader or context.task.grader != "auto"
    if path.exists():
        return
    date = frozen_date(context.engines.tokenizer.chat_template)
    if asked and graded and not date:
        return
    data = dataclasses.replace(settings.data, shots=max(settings.data.shots, 0))
    shots, training = draw_training(context.task, data, settings.seed)
    chosen: dict[str, Any] = {"date": date} if date else {}
    kind = "open" if graded else _kind(context, training)
    if kind in KINDS:
        compared = f"{COMPARED[kind]} are compared (grade.grader={kind})"
        say(f"every accepted answer is {SAID[kind]}, so {compared}")
        chosen["grader"] = kind
    if not asked:
        chosen |= _way_to_ask(context, shots, training)
    if chosen:
        write_json(path, chosen)
        context.take_chosen()


def _kind(context: Context, training: Sequence[Question]) -> Kind:
    """Return the kind of all accepted answers; others than those of training are read if needed."""
    kind = _common_kind(training)
    data, seed = context.open_settings.data, context.open_settings.seed
    others: tuple[Split, ...] = ("validation", "test")
    for split in others if kind in KINDS else ():
        kind = kind if _common_kind(context.task.questions(split, data, seed)) == kind else "open"
    return kind


def _common_kind(questions: Sequence[Question]) -> Kind:
    return kind_of([text for question in questions for text in question.answers or ("",)])


def _way_to_ask(
    context: Context, shots: Sequence[Question], training: Sequence[Question]
) -> dict[str, Any]:
    """Return the answer length and, unless it is set, the prompt."""
    settings, engine = context.open_settings, context.engines.base

    def longest(questions: Sequence[Question]) -> int:
        needed = longest_answer(engine.tokenizer, questions, thinking=settings.model.thinking)
        return at_most_half(settings.sample.max_new_tokens or needed, engine.limit)

    chosen: dict[str, Any] = {"max_new_tokens": longest(training)}
    plain = [question for question in training if not question.choices]
    if 0 < len(plain) < len(training) and (apart := longest(plain)) < chosen["max_new_tokens"]:
        chosen["open_tokens"] = apart
    if settings.data.prompt == "auto":
        if not shots and _spares_examples(context):
            shots, training = training[:SHOTS], training[SHOTS:]
        chosen |= _best_prompt(context, shots, training[:TRIED], Sampling(**chosen))
    return chosen


def _spares_examples(context: Context) -> bool:
    """Return whether the pool holds examples for the prompt beside `data.train` questions."""
    data = dataclasses.replace(context.open_settings.data, shots=SHOTS)
    try:
        draw_training(context.task, data, context.open_settings.seed)
    except DataError:
        say("data.train leaves no question for examples, so no prompt with examples is tried")
        return False
    return True


def _best_prompt(
    context: Context, shots: Sequence[Question], questions: Sequence[Question], sampling: Sampling
) -> dict[str, Any]:
    """Return the prompt with most right answers, the first of equals, and the counts of all."""
    prompts = _candidates(context, shots, questions)
    rows: list[dict[str, Any]] = [{"prompt": p.prompt, "shots": p.shots} for p in prompts]
    best = rows[0]
    if len(prompts) > 1:
        with progress("try prompts", len(prompts) * len(questions), unit="answers") as advance:
            for row, data in zip(rows, prompts, strict=True):
                row["right"] = _count_right(context, data, shots, questions, sampling, advance)
        best = max(rows, key=lambda row: row["right"])
        counts = ", ".join(f"{_named(row)} {row['right']}" for row in rows)
        say(
            f"prompts tried on {len(questions)} training questions, right answers: {counts}; the "
            f"run uses data.prompt={best['prompt']} data.shots={best['shots']}"
        )
    return {"prompt": best["prompt"], "shots": best["shots"], "tried": rows, "of": len(questions)}


def _named(row: dict[str, Any]) -> str:
    return f"{row['prompt']} with {row['shots']} examples" if row["shots"] else str(row["prompt"])


def _candidates(
    context: Context, shots: Sequence[Question], questions: Sequence[Question]
) -> list[DataSettings]:
    """Return the prompts that differ on these questions, simple ones first."""
    settings = context.open_settings.data
    if has_chat_template(context.engines.base.tokenizer):
        pairs = [("paper", 0), ("short", 0), ("text", len(shots))]
    else:
        pairs = [("text", 0), ("text", len(shots))]
    candidates: dict[str, DataSettings] = {}
    for prompt, count in pairs:
        count = count if settings.shots < 0 else settings.shots
        data = dataclasses.replace(settings, prompt=prompt, shots=count)
        candidates.setdefault(str(_chats(context, data, shots, questions)), data)
    return list(candidates.values())


def _chats(
    context: Context,
    data: DataSettings,
    shots: Sequence[Question],
    questions: Sequence[Question],
) -> list[list[Message]]:
    return [conversation(context.task, q, data, shots[: data.shots]) for q in questions]


def _count_right(
    context: Context,
    data: DataSettings,
    shots: Sequence[Question],
    questions: Sequence[Question],
    sampling: Sampling,
    advance: Advance,
) -> int:
    """Return the number of questions that the backbone answers correctly with a prompt."""
    grader = grader_of(context.settings.grade, context.task.grader)
    engine = context.engines.asking(dataclasses.replace(context.settings, data=data))
    chats = _chats(context, data, shots, questions)
    prompts = [encode_chat(engine.tokenizer, chat) for chat in chats]
    if engine.limit is not None and max(map(len, prompts)) + sampling.max_new_tokens > engine.limit:
        return 0
    right = 0
    for one, rows in sampling.by_length(question.choices for question in questions).items():
        for at, generations in engine.generate([prompts[row] for row in rows], one):
            right += grader(generations[0].text, questions[rows[at]])
            advance(1)
    return right
