"""Answers in a user's file: what was asked, the response, its confidence and its grade."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from grace.errors import DataError
from grace.store.inputs import open_parquet, opened, read_objects

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


def read_lines(file: Path) -> Iterator[InputLine]:
    """Yield the lines of a file of responses (`-`: standard input); blank lines are skipped.

    Raises:
        DataError: names the file, the line and what is expected there.
    """
    with open_input(file) as source:
        for where, fields in read_objects(source, file):
            yield checked_line(where, fields)


def read_rows(file: Path, fields: Sequence[str] = FIELDS) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place and the fields of every response; of Parquet those that are named."""
    parts = sorted(file.glob("*.parquet")) if file.is_dir() else [file]
    if not parts:
        raise DataError(f"{file} holds no .parquet files; name a JSONL file, or what label wrote")
    if parts[0].suffix == ".parquet":
        for part in parts:
            yield from _parquet(part, fields)
        return
    with open_input(file) as source:
        yield from read_objects(source, file)


def _parquet(file: Path, wanted: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    source, number = open_parquet(file), 0
    columns = [name for name in wanted if name in source.schema_arrow.names]
    for batch in source.iter_batches(columns=columns):
        for fields in batch.to_pylist():
            yield f"{file} row {number}", fields
            number += 1


def checked_line(where: str, fields: dict[str, Any]) -> InputLine:
    """Return a line that holds one response and what it answers.

    Raises:
        DataError: names the line and what is expected there.
    """
    given = [key for key in PROMPT_KEYS if key in fields]
    if len(given) != 1:
        have = " and ".join(given) or "none"
        raise DataError(f"{where}: found {have}; give exactly one of {', '.join(PROMPT_KEYS)}")
    _check_prompt(given[0], fields[given[0]], where)
    _check_choices(fields, given[0], where)
    if not isinstance(fields.get("response"), str):
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
    choices = fields.get("choices", [])
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
    value = fields["confidence"]
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
    value = fields["correct"]
    if value is not None and value not in (True, False):
        shown = json.dumps(value, default=str)
        raise DataError(f"{where}: correct is {shown}; write true or false (null: not known)")
    return None if value is None else bool(value)


def question_in(fields: dict[str, Any]) -> str:
    """Return the question of a response as a text, empty if the line does not name it."""
    found = next((fields[key] for key in QUESTION if fields.get(key) is not None), "")
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)


@contextlib.contextmanager
def open_input(file: Path) -> Iterator[IO[bytes]]:
    """Open a file, or standard input for `-`.

    Raises:
        DataError: the file cannot be read.
    """
    if str(file) == "-":
        yield sys.stdin.buffer
        return
    with opened(file) as source:
        yield source
