"""Rows of a question set, from the Hub or from JSON Lines files in the Hub's field names."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from grace.config import DataSettings
from grace.errors import DataError
from grace.store.inputs import opened, read_objects

SPLIT_NAMES = ("train", "validation", "test")


class Row(NamedTuple):
    """One row and where it stands, for messages."""

    where: str
    fields: dict[str, Any]


class Pools(NamedTuple):
    """How to read each split's rows; without `validation`, that split is held out of train."""

    train: Callable[[], list[Row]]
    validation: Callable[[], list[Row]] | None
    test: Callable[[], list[Row]]


Source = Callable[[str, DataSettings], Pools]


@dataclass(frozen=True, slots=True)
class Hub:
    """A source on the Hugging Face Hub; called with the task's name and the data settings.

    `validation` is None where the set has no labelled validation split besides `test`.
    """

    path: str
    config: str | None = None
    validation: str | None = "validation"
    test: str = "test"

    def __call__(self, name: str, data: DataSettings) -> Pools:
        """Return the pools of `data.dir/NAME/SPLIT.jsonl`, or of the Hub if no folder is set."""
        if data.dir:
            return folder_pools(Path(data.dir).expanduser() / name)
        read = functools.partial(_read_hub, name, self.path, self.config)
        return Pools(
            train=functools.partial(read, "train"),
            validation=functools.partial(read, self.validation) if self.validation else None,
            test=functools.partial(read, self.test),
        )


def folder_pools(folder: Path) -> Pools:
    """Return the pools of `train.jsonl`, `validation.jsonl` and `test.jsonl` of a folder.

    Without `test.jsonl` the validation file is the test split; without a validation file,
    validation is held out of train. The stand-ins `train_from_dev.jsonl` and
    `validation_from_dev.jsonl` serve where `train.jsonl` is missing.

    Raises:
        DataError: no such folder, no training file, or nothing to test on.
    """
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}; put train.jsonl and test.jsonl there")
    files = {file.stem: file for file in sorted(folder.glob("*.jsonl"))}
    train, validation, test = (files.get(name) for name in SPLIT_NAMES)
    if train is None and "train_from_dev" in files:
        train, validation = files["train_from_dev"], files.get("validation_from_dev")
        test = test or files.get("validation")
        note(f"{folder} has no train.jsonl; training on {train.name} instead")
    if test is None:
        test, validation = validation, None
    if train is None or test is None:
        missing = "train.jsonl" if train is None else "test.jsonl or validation.jsonl"
        raise DataError(
            f"{folder} has no {missing}; found: {', '.join(files) or 'no .jsonl files'}; add it"
        )
    return Pools(
        train=functools.partial(read_jsonl, train),
        validation=functools.partial(read_jsonl, validation) if validation else None,
        test=functools.partial(read_jsonl, test),
    )


def read_jsonl(path: Path, start: int = 0, stop: int | None = None) -> list[Row]:
    """Return the objects `start` to `stop` of a JSON Lines file, all of them by default.

    Raises:
        DataError: the file, or a line of it, cannot be read; the message names the line.
    """
    with opened(path) as source:
        return [Row(where, fields) for where, fields in read_objects(source, path, start, stop)]


def _read_hub(name: str, path: str, config: str | None, split: str) -> list[Row]:
    rows = load_from_hub(path, config, split, name)
    return [Row(f"{path}:{split}[{number}]", dict(row)) for number, row in enumerate(rows)]


@functools.cache
def note(message: str) -> None:
    """Log a message once per process."""
    logging.getLogger("grace.tasks").warning(message)


def load_from_hub(path: str, config: str | None, split: str, name: str) -> Any:
    """Return the rows of a Hub data set's split; the only place that may use the network.

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
            f"give --data DIR with DIR/{name}/train.jsonl and test.jsonl"
        ) from error
