"""Answers in a user's file: what was asked, the response, its confidence and its grade."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from grace.errors import DataError
from grace.store.inputs import Row, read_rows

PROMPT_KEYS = ("question", "prompt", "messages")
QUESTION = ("question_id", "question", "prompt", "messages", "id")
"""Fields that name the question of a response; the first one that is there counts."""
FIELDS = (*QUESTION, "response", "text", "confidence", "correct")


class InputLine(NamedTuple):
    """One input line: where it stands, its fields, which of them asks, and the response."""

    where: str
    fields: dict[str, Any]
    asks: str
    response: str


def answer_rows(file: Path, fields: Sequence[str] = FIELDS) -> Iterator[Row]:
    """Yield the rows of a file of responses; of a table, the columns that are named.

    Raises:
        DataError: as `read_rows`.
    """
    return read_rows(file, choose=lambda names: [name for name in fields if name in names])


def checked_line(row: Row) -> InputLine:
    """Return a line that holds one response and what it answers.

    Raises:
        DataError: names the line and what is expected there.
    """
    where, fields = row
    given = [key for key in PROMPT_KEYS if fields.get(key) is not None]
    if len(given) != 1:
        have = " and ".join(given) or "none among the fields " + ", ".join(fields)
        raise DataError(f"{where}: found {have}; give exactly one of {', '.join(PROMPT_KEYS)}")
    _check_prompt(given[0], fields[given[0]], where)
    _check_choices(fields, given[0], where)
    if fields.get("response") is None:
        raise DataError(f'{where}: "response" is missing among the fields {", ".join(fields)}')
    if not isinstance(fields["response"], str):
        raise DataError(f"{where}: response is {fields.get('response')!r}; write it as a text")
    return InputLine(where, fields, given[0], fields["response"])


def _check_prompt(key: str, value: Any, where: str) -> None:
    if key != "messages":
        if not isinstance(value, str) or not value.strip():
            raise DataError(f"{where}: {key} is {value!r}; write a text that is not empty")
        return
    good = isinstance(value, list) and value
    if not good or not all(
        isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str)
        for m in value
    ):
        raise DataError(f'{where}: messages must be a list of {{"role": ..., "content": ...}}')


def _check_choices(fields: Mapping[str, Any], key: str, where: str) -> None:
    choices = [] if fields.get("choices") is None else fields["choices"]
    if not isinstance(choices, list) or not all(isinstance(text, str) for text in choices):
        raise DataError(f"{where}: choices is {choices!r}; write a list of texts")
    if choices and key != "question":
        raise DataError(f"{where}: choices belong to a question; write them into the {key}")


def confidence_in(fields: dict[str, Any], where: str) -> float | None:
    """Return the confidence of a response, None where it is null.

    Raises:
        DataError: there is no field for it, or it is not a probability.
    """
    if "confidence" not in fields:
        raise DataError(f"{where}: no field confidence; `grace score` adds it")
    value = _spelt(fields["confidence"])
    if value is None:
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value <= 1:
        raise DataError(
            f"{where}: confidence is {json.dumps(value)}; a confidence lies between 0 and 1 "
            "(null: none)"
        )
    return float(value)


def grade_in(fields: dict[str, Any], where: str) -> bool | None:
    """Return whether a response is right, None where it is null.

    Raises:
        DataError: there is no field for it, or it is neither true nor false.
    """
    if "correct" not in fields:
        raise DataError(f"{where}: no field correct; write true or false (null: not known)")
    value = _spelt(fields["correct"])
    if value is not None and value not in (True, False):
        shown = json.dumps(value, default=str)
        raise DataError(f"{where}: correct is {shown}; write true or false (null: not known)")
    return None if value is None else bool(value)


def _spelt(value: Any) -> Any:
    """Return what a cell of a CSV file spells: true, false, or a number; anything else as it is."""
    try:
        return json.loads(value.lower()) if isinstance(value, str) else value
    except ValueError:
        return value


def question_in(fields: dict[str, Any]) -> str:
    """Return the question of a response as a text, empty if the line does not name it."""
    found = next((fields[key] for key in QUESTION if fields.get(key) is not None), "")
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
