"""Your own questions: a file, a folder with train, validation and test files, or a Hub data set.

JSON Lines, CSV, Parquet or `hf:OWNER/NAME[:CONFIG][:SPLIT]` (`grace.store.inputs`), in the columns
that `grace.tasks.columns` knows. Optional columns: `id`, and `split` (train, validation or test; in
every row or in none). What has no splits is divided by the seed: half of it to train on, a sixth
for validation, a third for the test, unless the settings say otherwise.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import ClassVar, Literal

from grace.config import DataSettings
from grace.errors import ConfigError, DataError
from grace.grading import letter, normalise, short_answer
from grace.records import Message, Question
from grace.store.inputs import hub_splits, is_hub
from grace.tasks import Split
from grace.tasks.columns import parse, question_rows
from grace.tasks.draw import draw, rank, sizes
from grace.tasks.prompts import ask_choice, ask_open
from grace.tasks.rows import SPLIT_NAMES, Pools, Row, folder_pools, named_pools


class Jsonl:
    """The user's own questions, open and multiple choice, also mixed in one file."""

    name: ClassVar[str] = "jsonl"
    kind: ClassVar[Literal["open"]] = "open"
    grader: ClassVar[str] = "auto"

    def questions(self, split: Split, data: DataSettings, seed: int) -> list[Question]:
        """Return the drawn questions of a split (see `grace.tasks.Task`)."""
        read = functools.partial(parse, data=data)
        return draw(self.name, _pools(data, seed), read, split, data, seed)

    def places(self, data: DataSettings) -> dict[str, str]:
        """Return the file and line of every question by its id."""
        splits = _splits(data) or {"all": _read(_source(data), data)}
        return {parse(row, data).id: row.where for rows in splits.values() for row in rows}

    def messages(self, question: Question, data: DataSettings) -> list[Message]:
        """Return the paper's prompt for the kind of question that it is."""
        return ask_choice(question, data) if question.choices else ask_open(question, data)

    def answer(self, text: str) -> str | None:
        """Return the letter after `Answer:` if there is one, else the normalised short answer."""
        return letter(text) or normalise(short_answer(text)) or None


TASK = Jsonl()


def _source(data: DataSettings) -> str:
    """Return where the questions are.

    Raises:
        ConfigError: the settings do not say.
    """
    source = data.file or data.dir
    if not source:
        raise ConfigError("task jsonl needs your questions; give --file FILE (data.file)")
    return source if is_hub(source) else str(Path(source).expanduser())


def _read(source: str | Path, data: DataSettings) -> list[Row]:
    return list(question_rows(source, data))


def _splits(data: DataSettings) -> dict[str, list[Row]]:
    """Return the rows of each split of a folder or a Hub data set, nothing where there is none."""
    source, read = _source(data), functools.partial(_read, data=data)
    if is_hub(source):
        parts = hub_splits(source)
        pools = named_pools(source, parts, read) if len(parts) > 1 else None
    else:
        pools = folder_pools(Path(source), read) if Path(source).is_dir() else None
    if pools is None:
        return {}
    readers = (pools.train, pools.validation or list, pools.test)
    return {name: read() for name, read in zip(SPLIT_NAMES, readers, strict=True)}


def _pools(data: DataSettings, seed: int) -> Pools:
    source, splits = _source(data), _splits(data)
    _check_ids(row for rows in splits.values() for row in rows)
    splits = splits or _divided(source, data, seed)
    for split in ("train", "test"):
        if not splits[split]:
            raise DataError(f"{source} has no {split} questions; add some")
    validation = splits["validation"]
    return Pools(
        train=lambda: splits["train"],
        validation=(lambda: validation) if validation else None,
        test=lambda: splits["test"],
    )


def _divided(source: str, data: DataSettings, seed: int) -> dict[str, list[Row]]:
    """Return the rows of each split, as they say themselves or as the seed divides them."""
    rows = _read(source, data)
    if not rows:
        raise DataError(
            f'{source} is empty; write one {{"question": ..., "answers": [...]}} per line'
        )
    _check_ids(rows)
    splits: dict[str, list[Row]] = {name: [] for name in SPLIT_NAMES}
    if any("split" in row.fields for row in rows):
        for row in rows:
            name = row.fields.get("split")
            if name not in splits:
                known = ", ".join(SPLIT_NAMES)
                raise DataError(f'{row.where}: "split" is {name!r}; write one of {known}')
            splits[name].append(row)
        return splits
    by_text: dict[str, tuple[Question, Row]] = {}
    for row in rows:
        question = parse(row, data)
        by_text.setdefault(normalise(question.text), (question, row))
    size = sizes(len(by_text), data)
    _check_size(source, len(by_text), size)
    row_of = {question.id: row for question, row in by_text.values()}
    ranked = rank([question for question, _ in by_text.values()], f"split/{seed}")
    ordered = [row_of[question.id] for question in ranked]
    for name in ("test", "validation"):
        splits[name], ordered = ordered[: size[name]], ordered[size[name] :]
    return splits | {"train": ordered}


def _check_size(source: str, available: int, wanted: Mapping[str, int]) -> None:
    total = sum(wanted.values())
    if available < len(wanted):
        raise DataError(
            f"{source} has {available} different questions; give some to train on, some to "
            "validate with and some to test: a few hundred in all"
        )
    if available < total:
        fits = {name: max(1, size * available // total) for name, size in wanted.items()}
        fits[max(fits, key=lambda name: fits[name])] -= max(0, sum(fits.values()) - available)
        remedy = " ".join(f"data.{name}={size}" for name, size in fits.items())
        raise DataError(
            f"{source} has {available} different questions, {total} were asked for; "
            f"set e.g. {remedy}"
        )


def _check_ids(rows: Iterable[Row]) -> None:
    seen: dict[str, str] = {}
    for row in rows:
        given = row.fields.get("id")
        name = "" if given is None else str(given)
        if name and name in seen:
            raise DataError(f"{row.where}: id {name!r} is also at {seen[name]}; make ids unique")
        seen[name] = row.where
