"""Sentence beginnings to complete with a fact. Source: BIG-bench, arXiv 2206.04615.

The set has no test split: its validation split is the test split, and validation is held out of
train. An answer is right if it matches any of the accepted ones.
"""

from __future__ import annotations

from grace.records import Question
from grace.tasks.draw import content_id
from grace.tasks.forms import OpenTask
from grace.tasks.rows import Hub, Row


def parse(row: Row) -> Question:
    """Return the question of a row, with the Hub's fields or `question` and `answers`."""
    fields = row.fields
    text = fields["question"] if "question" in fields else _unframed(fields["inputs"])
    answers = fields["answers"] if "answers" in fields else fields["targets"]
    answers = [answers] if isinstance(answers, str) else answers
    return Question(
        id=str(fields.get("id") or content_id("qa_wikidata", text)),
        task="qa_wikidata",
        text=text.strip(),
        answers=tuple(dict.fromkeys(answer.strip() for answer in answers if answer.strip())),
    )


def _unframed(text: str) -> str:
    """Return a beginning without the `Q:` and `A:` that BIG-bench may put around it."""
    return text.strip().removeprefix("Q:").removesuffix("A:").strip()


TASK = OpenTask(
    "qa_wikidata",
    Hub("tasksource/bigbench", "qa_wikidata", validation=None, test="validation"),
    parse,
)
