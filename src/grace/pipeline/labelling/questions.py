"""The questions to be labelled, in any form that task `jsonl` takes; they may lack the answers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from grace.config import DataSettings
from grace.errors import DataError
from grace.records import Question
from grace.store import digest
from grace.store.inputs import is_hub
from grace.tasks.columns import parse, question_rows


def count_questions(source: str | Path, data: DataSettings) -> int:
    """Read and check all questions of a source, and return their number.

    Raises:
        DataError: no such file, no column with questions, a bad row, two questions with one id, or
            no question at all; the message names the row.
    """
    seen: dict[str, int] = {}
    for number, question in enumerate(_questions(source, data)):
        if question.id in seen:
            raise DataError(
                f"{source}: rows {seen[question.id]} and {number} have the same id "
                f"{question.id!r}; give every question an id of its own, and ask each once"
            )
        seen[question.id] = number
    if not seen:
        raise DataError(f"{source} has no rows; write one question per row")
    return len(seen)


def read_questions(source: str | Path, data: DataSettings, start: int, stop: int) -> list[Question]:
    """Return the questions in rows `start` to `stop`; only their part of the source is parsed.

    A question whose row has no answer has no `answers`.

    Raises:
        DataError: the source or a row cannot be read.
    """
    return list(_questions(source, data, start, stop))


def digest_questions(source: str | Path, data: DataSettings) -> str:
    """Return the SHA-256 of a file, or of the questions in a Hub data set."""
    if not is_hub(source):
        return digest(Path(source))
    found = hashlib.sha256()
    for question in _questions(source, data):
        found.update(repr(question).encode())
    return found.hexdigest()


def _questions(
    source: str | Path, data: DataSettings, start: int = 0, stop: int | None = None
) -> Iterator[Question]:
    for row in question_rows(source, data, start, stop):
        yield parse(row, data, graded=False)
