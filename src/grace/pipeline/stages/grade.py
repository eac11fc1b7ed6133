"""Stage `grade`: judge the stored responses; re-grading never re-samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from grace.chat import encode_chat
from grace.config import to_dict
from grace.engines import ModelEngine, Sampling
from grace.grading import Grader, grader_of, short_answer
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
    _show(context, context.directory.split("train"))
    settings = {"grade": to_dict(context.settings.grade)}
    context.directory.finish("grade", settings, inputs, outputs)


def _show(context: Context, split: Split) -> None:
    """Show the first few right and wrong answers, so that a bad prompt or grader is seen."""
    questions = {question.id: question for question in split.questions.read()}
    pairs = list(zip(split.responses.read(), split.grades.read(), strict=True))
    for correct, verdict in ((True, "right"), (False, "wrong")):
        for response in [row for row, grade in pairs if grade.correct is correct][:SHOWN]:
            question = questions[response.question_id]
            said, accepted = short_answer(response.text), " / ".join(question.answers[:3])
            context.say(
                f"{verdict}: {one_line(question.text)} -> {one_line(said) or '(nothing)'} "
                f"(accepted: {one_line(accepted)})"
            )


def one_line(text: str) -> str:
    """Return a text on one line, its end where it is long: there the question stands."""
    line = " ".join(text.split())
    return line if len(line) <= WIDTH else f"...{line[3 - WIDTH :]}"


def show_first(
    engine: ModelEngine,
    question: Question,
    chat: Sequence[Message],
    sampling: Sampling,
    grader: Grader,
) -> None:
    """Show the first prompt, its answer and the grade, before thousands of them are made."""
    prompts = [encode_chat(engine.tokenizer, chat)]
    once = dataclasses.replace(sampling, num_samples=1)
    ((_, (made,)),) = engine.generate(prompts, once)
    lines = "\n".join(f"{turn['role']}: {turn['content']}" for turn in chat).splitlines()
    left_out = ["..."] if len(lines) > 2 * LINES else []
    lines = [*lines[:LINES], *left_out, *lines[max(LINES, len(lines) - LINES) :]]
    say("\n  | ".join(["first prompt:", *lines]))
    cut = f", cut after {len(made.token_ids)} tokens" if made.finish_reason == "length" else ""
    verdict = "no known answer"
    if question.answers:
        verdict = "right" if grader(made.text, question) else "wrong"
        verdict += f"; accepted: {one_line(' / '.join(question.answers[:3]))}"
    say(f"first answer{cut}: {one_line(made.text) or '(nothing)'} ({verdict})")


def grade_split(context: Context, split: Split) -> None:
    """Write one grade per response of a split, whole or not at all."""
    grader = grader_of(context.settings.grade, context.task.grader)
    by_id = {question.id: question for question in split.questions.read()}
    split.grades.write(
        [
            Grade(
                id=response.id,
                question_id=response.question_id,
                correct=grader(response.text, by_id[response.question_id]),
                answer=context.task.answer(response.text),
            )
            for response in split.responses.read()
        ]
    )
