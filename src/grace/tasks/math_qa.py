"""MathQA, as letters. Source: Amini et al. 2019, arXiv 1905.13319.

The Hub's `allenai/math_qa` needs a loading script, which `datasets` 4 dropped; `regisss/math_qa`
holds the same rows as Parquet.
"""

from __future__ import annotations

import re

from grace.grading import LETTERS
from grace.records import Question
from grace.tasks._draw import content_id
from grace.tasks._forms import ChoiceTask
from grace.tasks._rows import Hub, Row

_OPTION = re.compile(r"(?:^|,)[\s\[\"']*([a-e])\s*\)")


def parse(row: Row) -> Question:
    """Return the question of a row."""
    text = row.fields["Problem"].strip()
    choices = parse_options(row.fields["options"])
    right = "abcde".index(row.fields["correct"].strip().lower())
    if right >= len(choices):
        raise ValueError(
            f"right answer {row.fields['correct']!r} is none of {len(choices)} options"
        )
    return Question(
        content_id("math_qa", text, choices), "math_qa", text, (LETTERS[right],), choices
    )


def parse_options(options: str) -> tuple[str, ...]:
    """Return the option texts of "a ) 38 , b ) 27,675 , ..." or "['a ) 4', 'b ) 5', ...]".

    A comma separates only where the next letter in order and a parenthesis follow.

    Raises:
        ValueError: fewer than two options, or letters out of order.
    """
    starts = list(_OPTION.finditer(options))
    letters = "".join(start[1] for start in starts)
    if len(letters) < 2 or not "abcde".startswith(letters):
        raise ValueError(f"options {options!r} are not of the form 'a ) ... , b ) ...'")
    ends = [start.start() for start in starts[1:]] + [len(options)]
    texts = [options[start.end() : end] for start, end in zip(starts, ends, strict=True)]
    return tuple(text.strip(" \t\n\"'],") for text in texts)


TASK = ChoiceTask("math_qa", Hub("regisss/math_qa"), parse)
