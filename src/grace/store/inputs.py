"""Rows of a user's data: JSON Lines, CSV, Parquet, or a data set on the Hugging Face Hub.

All commands use this reader. A source is `-` (JSON Lines on standard input), a file, a directory
of Parquet shards, or `hf:OWNER/NAME[:CONFIG][:SPLIT]`. Every row has a place, for error messages:
`own.csv:3` is line 3, and rows of Parquet and of the Hub are counted from 0.
"""

from __future__ import annotations

import ast
import contextlib
import csv
import difflib
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from grace.errors import DataError

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

BOM = b"\xef\xbb\xbf"
HUB = "hf:"
ENDINGS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")
FOREIGN = (".xlsx", ".xls", ".ods", ".zip", ".gz", ".arrow")
TEXTS = ("question", "prompt", "response", "text")  # columns of a table that hold no lists
SPLIT_NAMES = ("train", "validation", "test")
Choose = Callable[[Sequence[str]], Sequence[str]]
"""Returns, of the columns of a table, those to read."""
Bad = Callable[[DataError], None]
"""Handles the error of a line that cannot be read, so that reading goes on with the next one."""


class Row(NamedTuple):
    """One row and its place, for error messages."""

    where: str
    fields: dict[str, Any]


def is_hub(source: str | Path) -> bool:
    """Return whether a source is a data set on the Hub."""
    return str(source).startswith(HUB)


def located(source: str | Path) -> str:
    """Return a source with an absolute path; a link to a file keeps its name and its ending."""
    if is_hub(source) or str(source) == "-":
        return str(source)
    path = Path(os.path.expanduser(source))
    return str(path.parent.resolve() / path.name if path.is_file() else path.resolve())


def read_rows(
    source: str | Path,
    start: int = 0,
    stop: int | None = None,
    choose: Choose | None = None,
    bad: Bad | None = None,
) -> Iterator[Row]:
    """Yield the rows `start` to `stop` of a source, counted from 0; all of them by default.

    Args:
        source: the source (see above); lines of JSON before `start` are not parsed.
        start: the first row.
        stop: the row after the last one.
        choose: picks the columns of a table to read; all by default. JSON Lines have no table.
        bad: called with the error of a line of JSON that cannot be read; reading then goes on.

    Raises:
        DataError: it cannot be read, or one of its rows; the message names the place.
    """
    path = Path(source)
    if is_hub(source):
        yield from _hub_rows(str(source), start, stop, choose)
    elif str(source) == "-":
        yield from _json_rows(sys.stdin.buffer, "-", start, stop, bad)
    elif path.is_dir():
        parts = sorted(path.glob("*.parquet"))
        if not parts:
            raise DataError(f"{path} holds no .parquet files; name a file or another directory")
        rows = (row for part in parts for row in _parquet_rows(part, 0, None, choose))
        yield from itertools.islice(rows, start, stop)
    elif path.suffix.lower() == ".parquet":
        yield from _parquet_rows(path, start, stop, choose)
    elif path.suffix.lower() in FOREIGN:
        raise DataError(f"{path}: {path.suffix} is not read; save it as .csv, .jsonl or .parquet")
    else:
        with _open(path) as file:
            if path.suffix.lower() in (".csv", ".tsv"):
                yield from _csv_rows(file, str(path), start, stop, choose)
            else:
                yield from _json_rows(file, str(path), start, stop, bad)


def _open(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise _no_file(path) from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; check the path") from None


def _no_file(path: Path) -> DataError:
    """Return an error that suggests a similar file, or a data set on the Hub."""
    beside = {file.stem: file.name for file in path.parent.glob("*")}
    near = difflib.get_close_matches(path.stem, beside, n=1)
    remedy = f"did you mean {beside[near[0]]}?" if near else "check the path"
    if path.suffix not in ENDINGS and not near:
        remedy += f", or write hf:{path.parent.name}/{path.name} for a data set on the Hub"
    return DataError(f"there is no file {path}; {remedy}")


def _json_rows(
    source: IO[bytes], name: str, start: int, stop: int | None, bad: Bad | None
) -> Iterator[Row]:
    """Yield the object of each line; blank lines, a BOM and CRLF are fine."""
    lines = ((number, line.rstrip(b"\r\n")) for number, line in _lines(source) if line.strip())
    for number, line in itertools.islice(lines, start, stop):
        try:
            yield Row(f"{name}:{number}", _parse(line, f"{name}:{number}"))
        except DataError as error:
            if bad is None:
                raise
            bad(error)


def _lines(source: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the number of each line, counted from 1, and the line without a BOM."""
    for number, line in enumerate(source, start=1):
        yield number, line.removeprefix(BOM) if number == 1 else line


def _parse(line: bytes, where: str) -> dict[str, Any]:
    text = _decoded(line, where)
    try:
        fields = json.loads(text)
        json.dumps(fields, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise DataError(f"{where}: half a surrogate pair (\\udXXX); write all of it") from None
    except json.JSONDecodeError as error:
        raise DataError(
            f"{where}: not JSON: {error.msg} at column {error.colno}; {_remedy(text)}"
        ) from None
    except (ValueError, RecursionError) as error:
        reason = str(error).partition(";")[0]
        raise DataError(f"{where}: not readable as JSON: {reason}; simplify the line") from None
    if not isinstance(fields, dict):
        found = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}
        kind = found.get(type(fields), "a number")
        raise DataError(f"{where}: expected an object, found {kind}; {_remedy(text)}")
    return fields


def _remedy(line: str) -> str:
    if line.lstrip().startswith("{'"):
        return "put names and texts in double quotes"
    remedy = "write one object per line"
    return remedy + "; jq -c '.[]' makes lines of a list" * line.lstrip().startswith("[")


def _decoded(line: bytes, where: str) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}: byte {error.start + 1} of the line is not UTF-8; save the file as UTF-8"
        ) from None


def _csv_rows(
    source: IO[bytes], name: str, start: int, stop: int | None, choose: Choose | None
) -> Iterator[Row]:
    """Yield the records below the line of column names; an empty cell is None."""
    csv.field_size_limit(2**31 - 1)  # a cell may hold a long text; the default is 2**17
    texts = (_decoded(line, f"{name}:{number}") for number, line in _lines(source))
    first = next(texts, "")
    table = csv.reader(
        itertools.chain([first], texts), delimiter=max(",;\t", key=first.count), strict=True
    )
    records = _records(table, name)
    names = [text.strip() for text in next(records, ("", []))[1]]
    read = set(names if choose is None else choose(names))
    if twice := [column for column in names if column in read - {""} and names.count(column) > 1]:
        raise DataError(f'{name}:1: two columns are named "{twice[0]}"; rename or remove one')
    for where, cells in itertools.islice(records, start, stop):
        if len(cells) > len(names):
            raise DataError(
                f"{where}: {len(cells)} cells under {len(names)} column names; put a text that "
                "holds the separator in double quotes"
            )
        pairs = itertools.zip_longest(names, cells, fillvalue="")
        yield Row(where, {key: cell(text, key) for key, text in pairs if key in read})


def _records(table: Any, name: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the place and the cells of each record that is not blank."""
    while True:
        where = f"{name}:{table.line_num + 1}"
        try:
            cells = next(table, None)
        except csv.Error as error:
            raise DataError(
                f'{where}: not CSV: {error}; close each double quote; write "" for one in a text'
            ) from None
        if cells is None:
            return
        if any(cells):
            yield where, cells


def cell(text: str, column: str = "") -> str | list[str] | None:
    """Return a text as it is, a list of texts if it spells one in JSON or Python, None if blank."""
    if not text.startswith("[") or column.lower() in TEXTS:
        return text if text.strip() else None
    with contextlib.suppress(ValueError, SyntaxError, RecursionError):
        value = json.loads(text) if '"' in text else ast.literal_eval(text)
        exact = '"' in text or repr(value) == text  # ['a' 'b'] is one text in Python
        if exact and isinstance(value, list) and all(isinstance(item, str) for item in value):
            return value
    return text


def _parquet_rows(path: Path, start: int, stop: int | None, choose: Choose | None) -> Iterator[Row]:
    """Yield rows of a Parquet file; row groups without a wanted row are not read."""
    file = _open_parquet(path)
    names = None if choose is None else list(choose(file.schema_arrow.names))
    first = 0
    for group in range(file.metadata.num_row_groups):
        size = file.metadata.row_group(group).num_rows
        low, high = max(start - first, 0), size if stop is None else min(stop - first, size)
        if low < high:
            batches = file.iter_batches(row_groups=[group], columns=names)
            rows = (fields for batch in batches for fields in batch.to_pylist())
            for number, fields in enumerate(itertools.islice(rows, low, high), start=first + low):
                yield Row(f"{path} row {number}", fields)
        first += size


def _open_parquet(path: Path) -> ParquetFile:
    from pyarrow import ArrowInvalid
    from pyarrow.parquet import ParquetFile

    try:
        return ParquetFile(path)
    except FileNotFoundError:
        raise _no_file(path) from None
    except (ArrowInvalid, OSError) as error:
        raise DataError(
            f"{path} is not a Parquet file ({str(error).rstrip('.')}); name it as what it is: "
            ".jsonl, .csv"
        ) from None


def hub_splits(source: str) -> dict[str, str]:
    """Return the sources of a Hub data set's splits by name; only one if `source` names a split.

    Raises:
        DataError: it cannot be loaded.
    """
    path, config, split = _hub_parts(source)
    if split:
        return {split: source}
    names = list(_loaded(source, path, config, None))
    return {name: f"{HUB}{path}:{config or ''}:{name}" for name in names}


def _hub_rows(source: str, start: int, stop: int | None, choose: Choose | None) -> Iterator[Row]:
    splits = hub_splits(source)
    if len(splits) > 1:
        first = next(iter(splits.values()))
        raise DataError(f"{source} has the splits {', '.join(splits)}; name one, e.g. {first}")
    table = _loaded(source, *_hub_parts(*splits.values()))
    if choose is not None:
        table = table.select_columns(list(choose(table.column_names)))
    end = len(table) if stop is None else min(stop, len(table))
    for number, fields in enumerate(table.select(range(min(start, end), end)), start=start):
        yield Row(f"{source} row {number}", fields)


def _hub_parts(source: str) -> tuple[str, str | None, str | None]:
    """Return name, configuration and split; a single part is a split if it is named like one."""
    path, *parts = source.removeprefix(HUB).split(":", 2)
    if parts and parts[0] in SPLIT_NAMES and len(parts) == 1:
        parts = ["", *parts]
    config, split = (*parts, "", "")[:2]
    return path, config or None, split or None


def _loaded(source: str, path: str, config: str | None, split: str | None) -> Any:
    return load_from_hub(
        path,
        config,
        split,
        f"check {source} (hf:OWNER/NAME:CONFIG:SPLIT), or download a file of it and name that",
    )


def load_from_hub(path: str, config: str | None, split: str | None, instead: str) -> Any:
    """Return a Hub data set's split, or all its splits by name; `instead` is the remedy to suggest.

    Raises:
        DataError: it cannot be reached and is not in the local cache.
    """
    import datasets

    try:
        return datasets.load_dataset(path, config, split=split)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise DataError(
            f"{path} cannot be loaded from the Hugging Face Hub ({reason}); go online once, or "
            f"{instead}"
        ) from error
