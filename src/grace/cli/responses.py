"""Responses in a user's file, each with the question, prompt or conversation that it answers."""

from __future__ import annotations

import contextlib
import reprlib
from typing import Any, NamedTuple

from grace.errors import DataError, UserInputError
from grace.measuring import in_any_case
from grace.records import Message
from grace.store.inputs import Row, spelt
from grace.tasks.conversations import is_conversation, read_conversation
from grace.tasks.values import read_options

PROMPT_KEYS = ("question", "prompt", "messages")
FIELDS = (*PROMPT_KEYS, "choices", "response")


class ResponseRow(NamedTuple):
    """One row of the file: its place, its fields, and what they say."""

    where: str
    fields: dict[str, Any]
    asked: str | list[Message]  # a question for the model's own prompt, or a conversation
    choices: list[str]
    response: str


def response_row(row: Row) -> ResponseRow:
    """Return a row that holds one response and what it answers."""
    from grace.model.arguments import check_question

    where, written = row
    fields = in_any_case(written, FIELDS)
    keys = [key for key in PROMPT_KEYS if fields.get(key) is not None]
    if len(keys) != 1:
        wanted = ", ".join(PROMPT_KEYS)
        if keys:
            raise DataError(f"{where}: found {' and '.join(keys)}; give exactly one of {wanted}")
        raise DataError(f"{where}: none of {wanted} among the fields {', '.join(written)}; add one")
    asked = _asked(keys[0], fields[keys[0]], where)
    choices: list[str] = []
    if isinstance(asked, str):
        choices = list(read_options(row))
        try:
            check_question(asked, choices)
        except UserInputError as error:
            raise DataError(f"{where}: {error}") from error
    elif fields.get("choices"):
        raise DataError(f"{where}: choices belong to a question; write them into the {keys[0]}")
    return ResponseRow(where, written, asked, choices, response_in(fields, written, where))


def response_in(fields: dict[str, Any], written: dict[str, Any], where: str) -> str:
    """Return the response among the fields of a row, which `written` has as they are spelt."""
    response = fields.get("response")
    if response is None:
        if "response" in fields:
            raise DataError(
                f"{where}: response is null or an empty cell; write a text, leave the row out, or "
                'write "" in JSON Lines for an answer without text'
            )
        raise DataError(
            f'{where}: "response" is missing among the fields {", ".join(written)}; rename the one '
            "with the model's answer"
        )
    if not isinstance(response, str):
        within = _place_of_text(response)
        remedy = f"write the text in it: response{within}" if within else "write it as a text"
        raise DataError(f"{where}: response is {reprlib.repr(response)}; {remedy}")
    return response


def _place_of_text(value: Any) -> str:
    """Return where in a reply of an API its text is, "" where that is not known."""
    if isinstance(value, list) and value and (inner := _place_of_text(value[0])):
        return f"[0]{inner}"
    for key in ("body", "choices", "message", "output", "content", "text"):
        if isinstance(value, dict) and value.get(key):
            inner = "" if isinstance(value[key], str) else _place_of_text(value[key])
            return f".{key}{inner}" if inner or isinstance(value[key], str) else ""
    return ""


def _asked(key: str, value: Any, where: str) -> str | list[Message]:
    with contextlib.suppress(ValueError):
        value = spelt(value)  # a list in a cell
    if key == "messages" or (key == "prompt" and is_conversation(value)):
        return read_conversation(value, f"{where}: {key}")
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{where}: {key} is {value!r}; write a text that is not empty")
    return value.strip() if key == "question" else [{"role": "user", "content": value}]
