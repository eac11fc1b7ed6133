"""The tasks of the embedded pocket world: their questions are part of the package."""

from __future__ import annotations

from grace.config import DataSettings
from grace.pocket import QUESTIONS
from grace.records import Question
from grace.tasks.rows import Pools, Row, folder_pools


def source(name: str, data: DataSettings) -> Pools:
    """Return the pools of a pocket task; they are the same for every setting."""
    return folder_pools(QUESTIONS / name)


def parse(row: Row) -> Question:
    """Return the question of a closed-book or a multiple-choice row."""
    fields = row.fields
    choices = tuple(fields.get("choices", ()))
    answers = (fields["answer"],) if choices else tuple(fields["answers"])
    return Question(fields["id"], fields["task"], fields["question"], answers, choices)
