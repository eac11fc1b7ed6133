"""Stage `grade`: grade the stored responses; grading again samples nothing again."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from grace.answers import short_answer
from grace.chat import encode_chat
from grace.config import to_dict
from grace.engines import Sampling
from grace.engines.base import ModelEngine
from grace.grading import Grader, grader_of
from grace.pipeline.context import Context
from grace.progress import say
from grace.records import Grade, Message, Question
from grace.store import SPLITS, Split

SHOWN = 3  # right answers, and as many wrong ones
LINES = 12  # first and last lines of a prompt that are shown
WIDTH = 100  # characters of a question or an answer that are shown


def grade(context: Context) -> None:
    """Grade the backbone's responses of every split."""
    inputs, outputs = [], []
    for name in SPLITS:
        split = context.directory.split(name)
        grade_split(context, split)
        inputs += [split.questions.path, split.responses.path]
        outputs.append(split.grades.path)
    _show(context.directory.split("train"))
    settings = {"grade": to_dict(context.settings.grade)}
    context.directory.finish("grade", settings, inputs, outputs)


def check_grader(context: Context) -> None:
    """Refuse a grader that cannot grade the questions of a run, as far as they are drawn."""
    settings = context.settings.grade
    grader = grader_of(settings, context.task.grader)
    if ":" in (settings.grader or context.task.grader):
        return
    for name in SPLITS:
        questions = context.directory.split(name).questions
        for question in questions.read() if questions.path.exists() else ():
            grader("", question)


def _show(split: Split) -> None:
    """Show the first few right and wrong answers, so that a bad prompt or grader is noticed."""
    questions = {question.id: question for question in split.questions.read()}
    pairs = list(zip(split.responses.read(), split.grades.read(), strict=True))
    for correct, verdict in ((True, "right"), (False, "wrong")):
        for response in [row for row, grade in pairs if grade.correct is correct][:SHOWN]:
            question = questions[response.question_id]
            answer = one_line(short_answer(response.text)) or "(nothing)"
            say(
                f"{verdict}: {one_line(question.text)} -> {answer} "
                f"(accepted: {_accepted(question)})"
            )


def _accepted(question: Question) -> str:
    return one_line(" / ".join(question.answers[:3]))


def one_line(text: str) -> str:
    """Return a text on one line; of a long one the end, which holds the question itself."""
    line = " ".join(text.split())
    return line if len(line) <= WIDTH else f"...{line[3 - WIDTH :]}"


def show_first(
    engine: ModelEngine,
    question: Question,
    chat: Sequence[Message],
    sampling: Sampling,
    grader: Grader,
) -> None:
    """Show the first prompt, its answer and the grade, before thousands of answers are sampled."""
    prompts = [encode_chat(engine.tokenizer, chat)]
    once = dataclasses.replace(sampling, num_samples=1)
    ((_, (generation,)),) = engine.generate(prompts, once)
    lines = "\n".join(f"{turn['role']}: {turn['content']}" for turn in chat).splitlines()
    if len(lines) > 2 * LINES:
        lines = [*lines[:LINES], "...", *lines[-LINES:]]
    say("\n  | ".join(["first prompt:", *lines]))
    cut = ""
    if generation.finish_reason == "length":
        cut = f", cut after {len(generation.token_ids)} tokens"
    verdict = "no known answer"
    if question.answers:
        verdict = "right" if grader(generation.text, question) else "wrong"
        verdict += f"; accepted: {_accepted(question)}"
    say(f"first answer{cut}: {one_line(generation.text) or '(nothing)'} ({verdict})")


def grade_split(context: Context, split: Split) -> None:
    """Write one grade per response of a split, all at once."""
    grader = grader_of(context.settings.grade, context.task.grader)
    by_id = {question.id: question for question in split.questions.read()}
    grades = []
    for response in split.responses.read():
        question, text = by_id[response.question_id], response.text
        answer = context.task.answer(text, question.choices)
        grades.append(Grade(response.id, response.question_id, grader(text, question), answer))
    split.grades.write(grades)
