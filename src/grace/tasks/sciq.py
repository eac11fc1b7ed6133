"""SciQ asked openly: no options, no passage. Source: Welbl et al. 2017, arXiv 1707.06209."""

from __future__ import annotations

from grace.records import Question
from grace.tasks.draw import content_id
from grace.tasks.forms import OpenTask
from grace.tasks.rows import Hub, Row


def parse(row: Row) -> Question:
    """Return the question of a row; distractors and support are not used."""
    text = row.fields["question"].strip()
    answer = row.fields["correct_answer"].strip()
    return Question(content_id("sciq", text), "sciq", text, (answer,))


TASK = OpenTask("sciq", Hub("allenai/sciq"), parse)
