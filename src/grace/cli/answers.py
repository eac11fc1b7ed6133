"""Answers in a user's file: what was asked, and the response."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from grace.errors import DataError
from grace.store.inputs import Row

PROMPT_KEYS = ("question", "prompt", "messages")


class InputLine(NamedTuple):
    """One input line: where it stands, its fields, which of them asks, and the response."""

    where: str
    fields: dict[str, Any]
    asks: str
    response: str


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
