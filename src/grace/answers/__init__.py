"""Answers: one reader for each kind, for what is accepted, what is graded and what votes count.

A response is text; `finding` says where in it the answer is, and the reader of a kind (`options`,
`numbers`, `yes_no`, `text`) returns it in one form, or None where it cannot be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from grace.answers import numbers, options, text, yes_no
from grace.answers.finding import short_answer
from grace.answers.numbers import is_number
from grace.answers.options import LETTERS, lettered
from grace.answers.text import alike, normalise

Kind = Literal["choice", "number", "yes_no", "open"]

__all__ = ["LETTERS", "Kind", "alike", "is_number", "kind_of", "lettered", "normalise", "read"]
__all__ += ["short_answer"]


def kind_of(accepted: Sequence[str], choices: Sequence[str] = ()) -> Kind:
    """Return the kind of answer that a question asks for, by what it accepts."""
    if choices:
        return "choice"
    if accepted and all(map(is_number, accepted)):
        return "number"
    if accepted and all(map(yes_no.is_yes_or_no, accepted)):
        return "yes_no"
    return "open"


def read(said: str, kind: Kind, choices: Sequence[str] = ()) -> str | None:
    """Return the answer in a response in the form that votes count, None if it cannot be read."""
    if kind == "choice" or choices:
        return options.read(said, choices)
    if kind == "number":
        found = numbers.read(said)
        return None if found is None or found.value is None else numbers.canonical(found.value)
    return yes_no.read(said) if kind == "yes_no" else text.read(said)
