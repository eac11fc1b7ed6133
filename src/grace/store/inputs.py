"""Files that a user wrote: JSON Lines, with messages that name the line, and Parquet."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from grace.errors import DataError

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

BOM = b"\xef\xbb\xbf"


@contextlib.contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading.

    Raises:
        DataError: it cannot be read.
    """
    try:
        source = path.open("rb")
    except FileNotFoundError:
        raise DataError(f"there is no file {path}; check the path") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; check the path") from None
    with source:
        yield source


def read_objects(
    source: IO[bytes], name: object, start: int = 0, stop: int | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield place ("NAME:3") and object of each line; blank lines, a BOM and CRLF are fine.

    With `start` and `stop` only those objects, counted from 0; lines before them are not parsed.

    Raises:
        DataError: a line is no JSON object; the message names its place.
    """
    for number, line in itertools.islice(_lines(source), start, stop):
        yield f"{name}:{number}", _parse(line, f"{name}:{number}")


def open_parquet(path: Path) -> ParquetFile:
    """Open a Parquet file for reading.

    Raises:
        DataError: there is none at this path.
    """
    from pyarrow import ArrowInvalid
    from pyarrow.parquet import ParquetFile

    try:
        return ParquetFile(path)
    except FileNotFoundError:
        raise DataError(f"there is no file {path}; check the path") from None
    except (ArrowInvalid, OSError) as error:
        raise DataError(
            f"{path} is not a Parquet file ({error}); write Parquet or .jsonl"
        ) from None


def _lines(source: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the content of each line that is not blank."""
    for number, line in enumerate(source, start=1):
        line = line.removeprefix(BOM) if number == 1 else line
        if line.strip():
            yield number, line


def _parse(line: bytes, where: str) -> dict[str, Any]:
    try:
        fields = json.loads(line.decode("utf-8"))
        json.dumps(fields, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}: byte {error.start + 1} of the line is not UTF-8; save the file as UTF-8"
        ) from None
    except UnicodeEncodeError:
        raise DataError(f"{where}: half a surrogate pair (\\udXXX); write it whole") from None
    except json.JSONDecodeError as error:
        raise DataError(
            f"{where}: not JSON: {error.msg} at column {error.colno}; write one object per line"
        ) from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not readable as JSON: {error}; simplify the line") from None
    if not isinstance(fields, dict):
        raise DataError(
            f"{where}: expected an object, found a {type(fields).__name__}; "
            "write one object per line"
        )
    return fields
