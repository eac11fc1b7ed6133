"""Rows of a user's data: JSON Lines, CSV, Parquet, or a data set on the Hugging Face Hub.

All commands use this reader. A source is `-` (JSON Lines on standard input), a file, a directory
of Parquet shards, or `hf:OWNER/NAME[:CONFIG][:SPLIT]`. Every row has a place, for error messages:
`own.csv:3` is line 3, and rows of Parquet, of the Hub and of a JSON document are counted from 0.
"""

from __future__ import annotations

import ast
import codecs
import contextlib
import csv
import difflib
import functools
import gzip
import io
import itertools
import json
import os
import re
import sys
import tokenize
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast

from grace.errors import DataError

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

BOM = b"\xef\xbb\xbf"
HUB = "hf:"
ENDINGS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")
PACKED = (".gz", ".zst")
FOREIGN = (".xlsx", ".xls", ".ods", ".zip", ".tar", ".tgz", ".arrow", ".eval")
SAVE_AS = "save it as .csv, .jsonl or .parquet"
QUESTION = (
    *("question", "query", "prompt", "input", "instruction", "problem"),
    *("questionstem", "questiontext", "messages"),
)
CONTEXT = ("context", "passage", "article", "premise", "paragraph", "story", "body", "scenario")
"""Last words of the names of columns, but for a plural, that may hold what a question is about."""
ROWS = {*QUESTION, "response", "correct"}
"""Columns, in the form of `plain`, that tell a row in a JSON document from what is around it."""
MISSING = ("", "nan", "NaN", "<NA>", "null", "NULL", "#N/A", "N/A", "n/a")
"""Cells without a value, as pandas, databases and Excel write them."""
SEPARATORS = ",;\t|"
SPLIT_NAMES = ("train", "validation", "test")
Choose = Callable[[Sequence[str]], Sequence[str]]
"""Returns, of the columns of a table, those to read."""
Bad = Callable[[DataError], None]
"""Handles the error of a line that cannot be read, so that reading goes on with the next one."""


class Row(NamedTuple):
    """One row and its place, for error messages."""

    where: str
    fields: dict[str, Any]


class Untyped(str):
    """A text of a table without types: it may spell a list or an object."""


def spelt(value: Any) -> Any:
    """Return the list or object that a text spells in JSON or Python; any other value as it is."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    quoted = re.match(r"[\[{]\s*['\"]", text) is not None
    closed = text[:1] + text[-1:] in ("[]", "{}")
    if not (closed or quoted if isinstance(value, Untyped) else closed and quoted):
        return value
    try:
        read = _json_or_python(text)
        json.dumps(read, ensure_ascii=False).encode()
    except (SyntaxError, TypeError, tokenize.TokenError, RecursionError, MemoryError) as error:
        raise ValueError(str(error)) from None
    return read


def _json_or_python(text: str) -> Any:
    with contextlib.suppress(json.JSONDecodeError):
        return json.loads(text)
    kinds = [token.type for token in tokenize.generate_tokens(io.StringIO(text).readline)]
    kinds = [kind for kind in kinds if kind not in (tokenize.NL, tokenize.COMMENT)]
    if (tokenize.STRING, tokenize.STRING) in itertools.pairwise(kinds):
        raise ValueError("two texts without a comma, as NumPy prints them, would be one in Python")
    return ast.literal_eval(text)


@functools.lru_cache(4096)
def plain(name: str) -> str:
    """Return the name of a column without case, separators, and more than `bare` leaves."""
    return re.sub(r"[\s_-]", "", bare(name)).lower()


def bare(name: str) -> str:
    """Return the name of a column without what follows a comma, a bracket or a dash."""
    return (re.split(r"[,(\[]|\s-\s(?=\S\S)", name)[0] or name).strip()  # but Option - A


def is_about(name: str) -> bool:
    """Return whether a column may hold what a question is about."""
    return re.split(r"[\W_]+", name.strip().lower())[-1].removesuffix("s") in CONTEXT


def is_hub(source: str | Path) -> bool:
    """Return whether a source is a data set on the Hub."""
    return str(source).startswith(HUB)


def ending(path: Path) -> str:
    """Return the ending that names the format of a file: .csv, also of own.csv.gz."""
    return _unpacked(path).suffix.lower()


def stem(path: Path) -> str:
    """Return the name of a file without its ending: own, also of own.csv.gz."""
    return _unpacked(path).stem


def _unpacked(path: Path) -> Path:
    return path.with_suffix("") if path.suffix.lower() in PACKED else path


def is_source(path: Path) -> bool:
    """Return whether a path names rows, by its ending or by the .parquet files in it."""
    named = is_hub(path) or str(path) == "-" or ending(path) in ENDINGS
    return named or any(path.glob("*.parquet"))


def located(source: str | Path) -> str:
    """Return a source with an absolute path; a link to a file keeps its name and its ending."""
    if is_hub(source) or str(source) == "-":
        return str(source)
    path = Path(os.path.expanduser(source))
    return str(path.parent.resolve() / path.name if path.is_file() else path.resolve())


def tables_in(folder: Path) -> list[Path]:
    """Return the files of a folder that hold rows."""
    return sorted(file for file in folder.iterdir() if ending(file) in ENDINGS)


def _parts(folder: Path) -> list[Path]:
    """Return the files of a folder to read: its .parquet files, or else all that hold rows."""
    files = tables_in(folder)
    if not files:
        kinds = ", ".join(ENDINGS)
        raise DataError(f"{folder} holds no files of rows ({kinds}); name a file or another folder")
    return [file for file in files if ending(file) == ".parquet"] or files


def read_rows(
    source: str | Path,
    start: int = 0,
    stop: int | None = None,
    choose: Choose | None = None,
    bad: Bad | None = None,
) -> Iterator[Row]:
    """Yield the rows `start` to `stop`; `bad` gets the errors of lines, and reading goes on."""
    path = Path(source)
    if is_hub(source):
        yield from _hub_rows(str(source), start, stop, choose)
    elif str(source) == "-":
        yield from _json_rows(sys.stdin.buffer, "-", start, stop, bad)
    elif path.is_dir():
        rows = (row for part in _parts(path) for row in read_rows(part, choose=choose, bad=bad))
        yield from itertools.islice(rows, start, stop)
    elif ending(path) == ".parquet":
        with _unpacking(path):
            yield from _parquet_rows(path, start, stop, choose)
    elif ending(path) in FOREIGN:
        remedy = (
            f"write it as JSON: inspect log dump {path}" if ending(path) == ".eval" else SAVE_AS
        )
        raise DataError(f"{path}: {ending(path)} is not read; {remedy}")
    else:
        with _unpacking(path), _open(path) as file:
            if ending(path) in (".csv", ".tsv"):
                yield from _csv_rows(file, str(path), start, stop, choose)
            elif document := _document(file, str(path)):
                for number, fields in list(enumerate(document))[start:stop]:
                    yield Row(f"{path} row {number}", _object(fields, f"{path} row {number}", ""))
            else:
                yield from _json_rows(file, str(path), start, stop, bad)


def _open(path: Path) -> IO[bytes]:
    try:
        if path.suffix.lower() == ".zst":
            import pyarrow

            with pyarrow.input_stream(path, compression="zstd") as stream:
                return io.BytesIO(stream.read())
        file = path.open("rb")
        mark = file.read(2)
        if mark == b"\x1f\x8b" or path.suffix.lower() == ".gz":  # packed, whatever its name says
            file.close()
            return cast("IO[bytes]", gzip.open(path))
        if mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):  # Excel, PowerShell
            with file:
                return io.BytesIO(path.read_text("utf-16").encode())
        file.seek(0)
        return file
    except FileNotFoundError:
        raise _no_file(path) from None
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error.strerror or error}; check the file"
        ) from None


@contextlib.contextmanager
def _unpacking(path: Path) -> Iterator[None]:
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is damaged, or no .gz file ({error}); copy it again") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is damaged ({error}); save it as UTF-8") from None


def _no_file(path: Path) -> DataError:
    """Return an error that suggests a similar file, or a data set on the Hub."""
    beside = {file.stem: file.name for file in path.parent.glob("*")}
    near = difflib.get_close_matches(path.stem, beside, n=1)
    remedy = f"did you mean {beside[near[0]]}?" if near else "check the path"
    if ending(path) not in ENDINGS and not near:
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
    """Yield the number of each line, from 1, and the line without a BOM; it may end with a CR."""
    first = next(source, b"").removeprefix(BOM)
    parts: Iterator[bytes] = itertools.chain([first], source)
    if re.search(rb"\r(?!\r?\n|\Z)", re.sub(rb'"[^"]*"?', b"", first)):
        parts = (line for part in parts for line in re.findall(rb"[^\r]*\r\n?|[^\r]+", part))
    yield from enumerate(parts, start=1)


def _document(source: IO[bytes], name: str) -> list[Any]:
    """Return the rows of a file that is one JSON value; [], and back at its start, for lines."""
    if not source.seekable():
        return []
    lines = (line for line in source if line.strip())
    first, second = next(lines, b"").removeprefix(BOM), next(lines, b"")
    value: Any = None
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(first)
    is_line = value is not None and second
    source.seek(0)
    if is_line or not first:
        return []
    with contextlib.suppress(ValueError, RecursionError):
        try:  # a list, or one value on several lines
            value = json.loads(source.read().removeprefix(BOM))
        except json.JSONDecodeError as error:
            if not second or not first.lstrip().startswith(b"["):
                raise
            raise DataError(
                f"{name}:{error.lineno}: not JSON: {_at_column(error)}; correct "
                "the list, or write one object per line without brackets around them"
            ) from None
        rows = _inner_rows(value) or _only_list(value)
        if rows and (second or rows != [value]):
            return rows
        if second:
            raise DataError(
                f'{name} is JSON without rows that have a "question", "response" or "correct"; '
                "write a list of such objects, or one per line"
            )
    source.seek(0)
    return []


def _inner_rows(value: Any) -> list[Any]:
    """Return the rows in a JSON value, however deep, also of a table kept by columns."""
    if isinstance(value, list):
        if any(isinstance(item, dict) and _is_row(item) for item in value):
            return value
        return [row for item in value for row in _inner_rows(item)]
    if not isinstance(value, dict):
        return []
    if isinstance(value.get("columns"), list) and isinstance(value.get("data"), list):
        return [dict(zip(value["columns"], cells, strict=False)) for cells in value["data"]]
    if not _is_row(value):
        about = {
            name: text for name, text in value.items() if is_about(name) and isinstance(text, str)
        }
        rows = [row for part in value.values() for row in _inner_rows(part)]
        return [about | row if isinstance(row, dict) else row for row in rows]
    columns = list(value.values())
    for kind in (dict, list):
        if all(isinstance(column, kind) for column in columns):
            keys = [list(c) if isinstance(c, dict) else list(range(len(c))) for c in columns]
            if all(of == keys[0] for of in keys):
                return [{name: value[name][key] for name in value} for key in keys[0]]
    return [value]


def _is_row(fields: dict[str, Any]) -> bool:
    return any(plain(name) in ROWS for name in fields) or {"instance", "result"} <= fields.keys()


def _only_list(value: Any) -> list[Any]:
    """Return a document's list of objects without a usual column, [] if it is not the only one."""
    lists = list(value.values()) if isinstance(value, dict) else [value]
    lists = [part for part in lists if isinstance(part, list) and part]
    return lists[0] if len(lists) == 1 and all(isinstance(row, dict) for row in lists[0]) else []


def _at_column(error: json.JSONDecodeError) -> str:
    return f"{error.msg.removesuffix(' at')} at column {error.colno}"


def _parse(line: bytes, where: str) -> dict[str, Any]:
    text = _decoded(line, where)
    try:
        fields = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not JSON: {_at_column(error)}; {_remedy(text)}") from None
    except (ValueError, RecursionError) as error:
        reason = str(error).partition(";")[0]
        raise DataError(f"{where}: not readable as JSON: {reason}; simplify the line") from None
    return _object(fields, where, _remedy(text))


def _object(fields: Any, where: str, remedy: str) -> dict[str, Any]:
    """Return an object of JSON whose texts can be written again."""
    try:
        json.dumps(fields, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise DataError(f"{where}: half a surrogate pair (\\udXXX); write all of it") from None
    if not isinstance(fields, dict):
        found = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}
        kind = found.get(type(fields), "a number")
        raise DataError(f"{where}: expected an object, found {kind}; {remedy or 'write one'}")
    return fields


def _remedy(line: str) -> str:
    if line.lstrip().startswith("{'"):
        return "put names and texts in double quotes"
    return "write one object per line"


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
    head = list(itertools.islice(texts, 20))
    if named := re.fullmatch(r"sep=(.)\s*", head[0] if head else "", re.IGNORECASE):
        head[0] = "\n"  # Excel's own line
    separator = named[1] if named else max(SEPARATORS, key=lambda sign: _fitting(head, sign))
    table = csv.reader(itertools.chain(head, texts), delimiter=separator, strict=True)
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
        yield Row(where, {key: _cell(text) for key, text in pairs if key in read})


def _cell(text: str) -> Untyped | None:
    return None if text.strip() in MISSING else Untyped(text)


def _fitting(lines: Sequence[str], separator: str) -> tuple[int, int]:
    """Return how many records are as long as the first, and its length; (0, 0) if that is 1."""
    records: list[list[str]] = []
    with contextlib.suppress(csv.Error):
        records.extend(filter(any, csv.reader(lines, delimiter=separator)))
    size = len(records[0]) if records else 1
    return (sum(len(record) == size for record in records), size) if size > 1 else (0, 0)


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
        if any(cell.strip(" :-") for cell in cells):  # no blank line, no rule of Markdown
            yield where, cells


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
        return ParquetFile(_open(path) if path.suffix.lower() in PACKED else path)
    except FileNotFoundError:
        raise _no_file(path) from None
    except (ArrowInvalid, OSError) as error:
        raise DataError(
            f"{path} is not a Parquet file ({str(error).rstrip('.')}); name it as what it is: "
            ".jsonl, .csv"
        ) from None


def hub_splits(source: str) -> dict[str, str]:
    """Return the sources of a Hub data set's splits by name; only one if `source` names a split."""
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
    """Return a Hub data set's split, or all by name; `instead` is the remedy to suggest."""
    import datasets

    try:
        return datasets.load_dataset(path, config, split=split)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise DataError(
            f"{path} cannot be loaded from the Hugging Face Hub ({reason}); go online once, or "
            f"{instead}"
        ) from error
