"""Parquet files that a user names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from grace.errors import DataError

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile


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
