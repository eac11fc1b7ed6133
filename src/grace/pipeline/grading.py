"""Stage `grade`: judge the stored responses; re-grading never re-samples."""

from __future__ import annotations

from grace.config import to_dict
from grace.grading import load_grader
from grace.pipeline.context import Context
from grace.records import Grade
from grace.store import SPLITS, Split


def grade(context: Context) -> None:
    """Grade the backbone's responses of every split."""
    inputs, outputs = [], []
    for name in SPLITS:
        split = context.directory.split(name)
        grade_split(context, split)
        inputs += [split.questions.path, split.responses.path]
        outputs.append(split.grades.path)
    settings = {"grade": to_dict(context.settings.grade)}
    context.directory.finish("grade", settings, inputs, outputs)


def grade_split(context: Context, split: Split) -> None:
    """Write one grade per response of a split, whole or not at all."""
    settings = context.settings.grade
    grader = load_grader(settings.grader or context.task.grader, settings.rouge_threshold)
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
