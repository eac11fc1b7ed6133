"""ARC, the challenge set. Source: Clark et al. 2018, arXiv 1803.05457."""

from __future__ import annotations

from grace.answers import LETTERS
from grace.records import Question
from grace.tasks.forms import ChoiceTask
from grace.tasks.rows import Hub, Row


def parse(row: Row) -> Question:
    """Return the question of a row; options labelled 1-4 become A-D."""
    choices = row.fields["choices"]
    right = choices["label"].index(row.fields["answerKey"])
    return Question(
        id=str(row.fields["id"]),
        task="arc_challenge",
        text=row.fields["question"].strip(),
        answers=(LETTERS[right],),
        choices=tuple(choices["text"]),
    )


TASK = ChoiceTask("arc_challenge", Hub("allenai/ai2_arc", "ARC-Challenge"), parse)
