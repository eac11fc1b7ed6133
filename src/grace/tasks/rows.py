"""Rows of a question set, from the Hub or from files with the Hub's field names."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from grace.config import DataSettings
from grace.errors import DataError
from grace.store.inputs import SPLIT_NAMES, Row, load_from_hub, read_rows, spelt, stem, tables_in

__all__ = ["Faults", "Hub", "Pools", "Row", "Source", "folder_pools", "named_pools", "note"]

Read = Callable[[str], list[Row]]
SHOWN = 10
"""Most further rows with errors that a message names."""


class Pools(NamedTuple):
    """How to read each split's rows; without `validation`, that split is held out of train."""

    train: Callable[[], list[Row]]
    validation: Callable[[], list[Row]] | None
    test: Callable[[], list[Row]]


Source = Callable[[str, DataSettings], Pools]


@dataclass(frozen=True, slots=True)
class Hub:
    """A data set on the Hugging Face Hub; called with the task's name and the data settings."""

    path: str
    config: str | None = None
    validation: str | None = "validation"  # None: none with answers besides `test`
    test: str = "test"

    def __call__(self, name: str, data: DataSettings) -> Pools:
        """Return the pools of `data.dir/NAME/SPLIT.jsonl`, or of the Hub if no folder is set."""
        if data.dir:
            return folder_pools(Path(os.path.expanduser(data.dir), name))
        read = functools.partial(_read_hub, name, self.path, self.config)
        return _pools(read, "train", self.validation, self.test)


def folder_pools(folder: Path, read: Read | None = None) -> Pools:
    """Return the pools of a folder's files train, validation and test: `.jsonl`, `.csv`, ..."""
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}; put train.jsonl and test.jsonl there")
    files: dict[str, str] = {}
    for file in tables_in(folder):
        if files.setdefault(stem(file), str(file)) != str(file):
            raise DataError(
                f"{files[stem(file)]} and {file} are the same split; remove one of them"
            )
    return named_pools(str(folder), files, read or _read, ".jsonl")


def named_pools(where: str, parts: Mapping[str, str], read: Read, ending: str = "") -> Pools:
    """Return the pools of train, validation and test (without it, validation's)."""
    train, validation, test = (parts.get(name) for name in SPLIT_NAMES)
    if train is None and "train_from_dev" in parts:
        train, validation = parts["train_from_dev"], parts.get("validation_from_dev")
        test = test or parts.get("validation")
        note(f"{where} has no train{ending}; training on train_from_dev{ending} instead")
    if test is None:
        test, validation = validation, None
    if train is None or test is None:
        missing = f"train{ending}" if train is None else f"test{ending} or validation{ending}"
        found = ", ".join(parts) or f"no {ending} files"
        raise DataError(
            f"{where} has no {missing}; found: {found}; add it, or name one with --file"
        )
    return _pools(read, train, validation, test)


def _pools(read: Read, train: str, validation: str | None, test: str) -> Pools:
    held = functools.partial(read, validation) if validation else None
    return Pools(functools.partial(read, train), held, functools.partial(read, test))


def _read(source: str) -> list[Row]:
    """Return a file's rows, with the lists and objects that the cells of a table spell."""
    rows = list(read_rows(source))
    for row in rows:
        for name, value in row.fields.items():
            with contextlib.suppress(ValueError):
                row.fields[name] = spelt(value)
    return rows


def _read_hub(name: str, path: str, config: str | None, split: str) -> list[Row]:
    instead = f"give --data DIR with DIR/{name}/train.jsonl and test.jsonl"
    rows = load_from_hub(path, config, split, instead)
    return [Row(f"{path}:{split}[{number}]", dict(row)) for number, row in enumerate(rows)]


def file_of(where: str) -> str:
    """Return the source of a row from its place."""
    return re.sub(r"(?::| row )\d+\Z", "", where)


class Faults:
    """The errors of the rows of a source, so that one message can name all of them."""

    def __init__(self) -> None:
        self._errors: list[DataError] = []

    def add(self, error: DataError) -> None:
        """Keep the error of a row; it begins with the place of that row."""
        self._errors.append(error)

    @contextlib.contextmanager
    def of(self, where: str) -> Iterator[None]:
        """Keep the error that the block raises about the row at this place."""
        try:
            yield
        except DataError as error:
            if not str(error).startswith(f"{where}:"):
                raise
            self.add(error)

    def refuse(self, *, some: bool, remedy: str = "") -> None:
        """Raise the first error; it names the other rows, if there are `some` without errors."""
        if not self._errors:
            return
        at = {_place(str(error)): error for error in self._errors}
        first, *others = sorted(at, key=lambda place: (file_of(place), _number(place)))
        told = [str(at[first])]
        if others and some:
            file = file_of(first)
            names = [str(_number(p)) if file_of(p) == file else p for p in others[:SHOWN]]
            rest = ", ".join([*names, *["..."][: len(others) - SHOWN]])
            lines = f"{len(others)} more line{'s' * (len(others) > 1)}"
            told.append(f"{lines} cannot be read: {rest}")
        raise DataError("; ".join([*told, *filter(None, [remedy * some])])) from None


def _place(message: str) -> str:
    """Return the place that a message about a row begins with; a file's name may hold ": "."""
    found = re.match(r".*?(?::| row )\d+(?=: )", message)
    return found[0] if found else message.partition(": ")[0]


def _number(where: str) -> int:
    """Return the number of a row from its place."""
    return int(where.removeprefix(file_of(where)).lstrip(": row") or 0)


@functools.cache
def note(message: str) -> None:
    """Log a message once per process."""
    logging.getLogger("grace.tasks").warning(message)
