"""Questions in a Parquet or JSON Lines file: the fields are those of task `jsonl`, no others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from grace.errors import DataError
from grace.records import Question
from grace.store.inputs import open_parquet
from grace.tasks.jsonl import parse
from grace.tasks.rows import Row, read_jsonl

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

JSON_LINES = (".jsonl", ".ndjson")
COLUMNS = ("id", "question", "answers", "answer", "choices")
UNKNOWN = "?"  # stands for an answer while a question without one is read


def count_questions(path: Path) -> int:
    """Read and check all questions of a file, and return their number.

    Raises:
        DataError: no such file, no column `question`, a bad row, two questions with one id, or no
            question at all; the message names the row.
    """
    seen: dict[str, int] = {}
    for number, question in enumerate(_questions(path, 0, None)):
        if question.id in seen:
            raise DataError(
                f"{path}: rows {seen[question.id]} and {number} have the same id "
                f"{question.id!r}; give every question an id of its own, and ask each once"
            )
        seen[question.id] = number
    if not seen:
        raise DataError(f"{path} has no rows; write one question per row")
    return len(seen)


def read_questions(path: Path, start: int, stop: int) -> list[Question]:
    """Return the questions in rows `start` to `stop`; only their part of the file is parsed.

    A question whose row has no answer has no `answers`.

    Raises:
        DataError: the file or a row cannot be read.
    """
    return list(_questions(path, start, stop))


def _questions(path: Path, start: int, stop: int | None) -> Iterator[Question]:
    if path.suffix in JSON_LINES:
        rows: Iterable[Row] = read_jsonl(path, start, stop)
    else:
        rows = _parquet_rows(path, start, stop)
    return map(_question, rows)


def _parquet_rows(path: Path, start: int, stop: int | None) -> Iterator[Row]:
    file = _open(path)
    first = 0
    for group in range(file.metadata.num_row_groups):
        size = file.metadata.row_group(group).num_rows
        if first + size > start and (stop is None or first < stop):
            columns = [name for name in COLUMNS if name in file.schema_arrow.names]
            rows = file.read_row_group(group, columns=columns).to_pylist()
            low = max(start - first, 0)
            high = size if stop is None else min(stop - first, size)
            for number in range(low, high):
                yield Row(f"{path} row {first + number}", rows[number])
        first += size


def _open(path: Path) -> ParquetFile:
    file = open_parquet(path)
    if "question" not in file.schema_arrow.names:
        raise DataError(
            f"{path} has no column question, only {', '.join(file.schema_arrow.names)}; rename one"
        )
    return file


def _question(row: Row) -> Question:
    fields = {name: row.fields[name] for name in COLUMNS if row.fields.get(name) is not None}
    if "answers" in fields or "answer" in fields:
        return parse(row._replace(fields=fields))
    known = {"answer": 0} if "choices" in fields else {"answers": [UNKNOWN]}
    return replace(parse(row._replace(fields=fields | known)), answers=())
