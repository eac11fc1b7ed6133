"""The choice of prompt, examples and answer length where the settings leave them open.

The prompts are tried on training questions; the one with most right answers is kept for the run, in
`train/asking.json`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from grace.chat import encode_chat, encode_text, has_chat_template
from grace.config import DataSettings, RunSettings
from grace.engines import Sampling
from grace.grading import grader_of
from grace.records import Question
from grace.store import RunDir, read_json, write_json
from grace.tasks.prompts import conversation, draw_training

if TYPE_CHECKING:
    from grace.pipeline.context import Context

TRIED = 48  # training questions
SHOTS = 5  # examples of a few-shot prompt
EXPLAINED = 512  # tokens of an explanation with a letter
THOUGHT = 2048  # tokens before an answer that is thought over


def settled(settings: RunSettings, directory: RunDir) -> RunSettings:
    """Return settings that leave nothing open, with what the run has chosen if it has."""
    found = read_json(directory.asking) if directory.asking.exists() else {}
    data, sample = settings.data, settings.sample
    prompt = found.get("prompt", "paper") if data.prompt == "auto" else data.prompt
    shots = found.get("shots", 0) if data.shots < 0 else data.shots
    longest = sample.max_new_tokens or found.get("max_new_tokens", sample.longest)
    return dataclasses.replace(
        settings,
        data=dataclasses.replace(data, prompt=prompt, shots=shots),
        sample=dataclasses.replace(sample, max_new_tokens=longest),
    )


def choose(context: Context) -> bool:
    """Choose what the settings leave open, once per run; return whether anything was."""
    path, given = context.directory.asking, context.given
    if path.exists() or (given.data.prompt != "auto" and given.sample.max_new_tokens):
        return False
    data = dataclasses.replace(given.data, shots=max(given.data.shots, 0))
    shots, training = draw_training(context.task, data, given.seed)
    engine = context.engines.base
    usual = longest_answer(engine.tokenizer, training, thinking=given.model.thinking)
    longest = given.sample.max_new_tokens or usual
    longest = longest if engine.limit is None else min(longest, engine.limit // 2)
    asking: dict[str, Any] = {"max_new_tokens": longest}
    if given.data.prompt == "auto":
        if not shots:
            shots, training = training[:SHOTS], training[SHOTS:]
        ways = _ways(context, given.data, shots, training[:TRIED])
        asking |= _tried(context, ways, shots, training[:TRIED], longest)
    write_json(path, asking)
    return True


def longest_answer(tokenizer: Any, questions: Sequence[Question], *, thinking: bool) -> int:
    """Return for how many tokens an answer to such questions has room."""
    thought = THOUGHT if thinking else 0
    if any(question.choices for question in questions):
        return thought + EXPLAINED
    accepted = [len(encode_text(tokenizer, question.answers[0])) for question in questions]
    return thought + max(50, 2 * max(accepted, default=0))


def _ways(
    context: Context, given: DataSettings, shots: Sequence[Question], asked: Sequence[Question]
) -> list[DataSettings]:
    """Return the ways of asking that differ, simple ones first."""
    if has_chat_template(context.engines.base.tokenizer):
        pairs = [("paper", 0), ("short", 0), ("text", len(shots))]
    else:
        pairs = [("text", 0), ("text", len(shots))]
    ways: dict[str, DataSettings] = {}
    for prompt, count in pairs:
        count = count if given.shots < 0 else given.shots
        way = dataclasses.replace(given, prompt=prompt, shots=count)
        chats = [conversation(context.task, q, way, shots[:count]) for q in asked]
        ways.setdefault(str(chats), way)
    return list(ways.values())


def _tried(
    context: Context,
    ways: Sequence[DataSettings],
    shots: Sequence[Question],
    asked: Sequence[Question],
    longest: int,
) -> dict[str, Any]:
    """Return the way of asking with most right answers, the first of equals, and how all did."""
    rows: list[dict[str, Any]] = [{"prompt": w.prompt, "shots": w.shots} for w in ways]
    if len(ways) > 1:
        for row, way in zip(rows, ways, strict=True):
            row["right"] = _right(context, way, shots, asked, longest)
    best = max(rows, key=lambda row: row.get("right", 0))
    if len(ways) > 1:
        told = ", ".join(f"{_named(row)} {row['right']}" for row in rows)
        context.say(
            f"prompts tried on {len(asked)} training questions, right answers: {told}; the run "
            f"uses data.prompt={best['prompt']} data.shots={best['shots']}"
        )
    return {"prompt": best["prompt"], "shots": best["shots"], "tried": rows, "of": len(asked)}


def _named(row: dict[str, Any]) -> str:
    return f"{row['prompt']} with {row['shots']} examples" if row["shots"] else str(row["prompt"])


def _right(
    context: Context,
    way: DataSettings,
    shots: Sequence[Question],
    asked: Sequence[Question],
    longest: int,
) -> int:
    """Return the number of questions that the backbone answers correctly when asked this way."""
    grader = grader_of(context.settings.grade, context.task.grader)
    engine = context.engines.asked(way)
    chats = [conversation(context.task, q, way, shots[: way.shots]) for q in asked]
    prompts = [encode_chat(engine.tokenizer, chat) for chat in chats]
    if engine.limit is not None and max(map(len, prompts)) + longest > engine.limit:
        return 0
    made = engine.generate(prompts, Sampling(max_new_tokens=longest))
    return sum(grader(answers[0].text, asked[place]) for place, answers in made)
