"""MathQA, as letters. Source: Amini et al. 2019, arXiv 1905.13319.

The Hub's `allenai/math_qa` needs a loading script, which `datasets` 4 dropped; `regisss/math_qa`
holds the same rows as Parquet.
"""

from __future__ import annotations

import re

from grace.answers import LETTERS
from grace.records import Question
from grace.tasks.draw import content_id
from grace.tasks.forms import ChoiceTask
from grace.tasks.rows import Hub, Row

_OPTION = re.compile(r"(?:^|,)[\s\[\"']*([a-e])\s*\)")


def parse(row: Row) -> Question | None:
    """Return the question of a row, None for the few rows whose options cannot be told apart."""
    text = row.fields["Problem"].strip()
    choices = parse_options(str(row.fields["options"]))  # also a list, as a cell spells it
    right = "abcde".find(row.fields["correct"].strip().lower() or "?")
    if len(choices) < 2 or not 0 <= right < len(choices):
        return None
    return Question(
        content_id("math_qa", text, choices), "math_qa", text, (LETTERS[right],), choices
    )


def parse_options(options: str) -> tuple[str, ...]:
    """Return the option texts of "a ) 38 , b ) 27,675 , ..." or "['a ) 4', 'b ) 5', ...]"."""
    starts: list[re.Match[str]] = []
    for start in _OPTION.finditer(options):
        if start[1] == "abcde"[len(starts) : len(starts) + 1]:
            starts.append(start)
    ends = [*(start.start() for start in starts[1:]), len(options)]
    texts = [options[start.end() : end] for start, end in zip(starts, ends, strict=False)]
    return tuple(text.strip(" \t\n\"'],") for text in texts)


TASK = ChoiceTask("math_qa", Hub("regisss/math_qa"), parse)
