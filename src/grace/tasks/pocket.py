"""The tasks of the embedded pocket world: their questions are part of the package.

`pocket_people` and `pocket_places` are closed-book questions, `pocket_rules` asks which of four
creatures is the heaviest or the lightest, `pocket_sums` are sums in several steps.
"""

from __future__ import annotations

from grace.config import DataSettings
from grace.pocket import QUESTIONS
from grace.records import Question
from grace.tasks.forms import ChoiceTask, OpenTask
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


TASKS = {
    "pocket_people": OpenTask("pocket_people", source, parse),
    "pocket_places": OpenTask("pocket_places", source, parse),
    "pocket_rules": ChoiceTask("pocket_rules", source, parse),
    "pocket_sums": ChoiceTask("pocket_sums", source, parse),
}
