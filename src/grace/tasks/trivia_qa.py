"""TriviaQA without passages. Source: Joshi et al. 2017, arXiv 1705.03551.

The published test split has no labels: the validation split is the test split, and validation is
held out of train. An answer is right if it matches any alias.
"""

from __future__ import annotations

from grace.records import Question
from grace.tasks.forms import OpenTask
from grace.tasks.rows import Hub, Row


def parse(row: Row) -> Question:
    """Return the question of a row; the value comes first among the accepted answers."""
    answer = row.fields["answer"]
    accepted = [answer["value"], *answer["aliases"], *answer.get("normalized_aliases", [])]
    return Question(
        id=str(row.fields["question_id"]),
        task="trivia_qa",
        text=row.fields["question"].strip(),
        answers=tuple(dict.fromkeys(text for text in accepted if text.strip())),
    )


TASK = OpenTask(
    "trivia_qa",
    Hub("mandarjoshi/trivia_qa", "rc.nocontext", validation=None, test="validation"),
    parse,
)
