"""Your own questions: a JSON Lines file, or a folder with train, validation and test.jsonl.

One object per line, open or multiple choice:

    {"question": "Who wrote Middlemarch?", "answers": ["George Eliot", "Mary Ann Evans"]}
    {"question": "Which is a prime?", "choices": ["4", "7", "9"], "answer": "B"}

The right choice is given by its letter, its text or its index from 0. Optional fields: `id`,
`split` (train, validation or test; on every line or on none), and `meta`, which is not read.
A file without `split` is divided by the seed: half of it to train on, a sixth for validation, a
third for the test, unless the settings say otherwise.
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from grace.config import DataSettings
from grace.errors import ConfigError, DataError
from grace.grading import LETTERS, letter, normalise, short_answer
from grace.records import Message, Question
from grace.tasks import Split
from grace.tasks.draw import content_id, draw, rank, sizes
from grace.tasks.prompts import ask_choice, ask_open
from grace.tasks.rows import SPLIT_NAMES, Pools, Row, folder_pools, read_jsonl

FIELDS = ("question", "answers", "choices", "answer", "id", "split", "meta")


class Jsonl:
    """The user's own questions, open and multiple choice, also mixed in one file."""

    name: ClassVar[str] = "jsonl"
    kind: ClassVar[Literal["open"]] = "open"
    grader: ClassVar[str] = "auto"

    def questions(self, split: Split, data: DataSettings, seed: int) -> list[Question]:
        """Return the drawn questions of a split (see `grace.tasks.Task`)."""
        return draw(self.name, _pools(data, seed), parse, split, data, seed)

    def places(self, data: DataSettings) -> dict[str, str]:
        """Return the file and line of every question by its id."""
        path = Path(data.file or data.dir).expanduser()
        rows = read_jsonl(path) if path.is_file() else _folder_rows(path)
        return {parse(row).id: row.where for row in rows}

    def messages(self, question: Question, data: DataSettings) -> list[Message]:
        """Return the paper's prompt for the kind of question that it is."""
        return ask_choice(question, data) if question.choices else ask_open(question, data)

    def answer(self, text: str) -> str | None:
        """Return the letter after `Answer:` if there is one, else the normalised short answer."""
        return letter(text) or normalise(short_answer(text)) or None


TASK = Jsonl()


def parse(row: Row) -> Question:
    """Return the question of a line.

    Raises:
        DataError: the line lacks something or says something impossible; the message says what.
    """
    fields = row.fields
    for field in fields:
        if field not in FIELDS:
            near = difflib.get_close_matches(field, FIELDS, n=1)
            guess = f"did you mean {near[0]!r}?" if near else 'put extra data under "meta"'
            raise DataError(f"{row.where}: unknown field {field!r}; {guess}")
    text = _text(fields.get("question"), f'{row.where}: "question"')
    if "answers" in fields and "answer" in fields:
        raise DataError(f'{row.where}: both "answers" and "answer"; keep one of them')
    given = fields.get("answers", fields.get("answer"))
    choices: tuple[str, ...] = ()
    if "choices" in fields:
        choices = _texts(fields["choices"], f'{row.where}: "choices"')
        answers: tuple[str, ...] = (_right_letter(given, choices, row.where),)
    else:
        answers = _texts(given, f'{row.where}: "answers"')
    name = _text(fields["id"], f'{row.where}: "id"') if "id" in fields else ""
    return Question(name or content_id("jsonl", text, choices), "jsonl", text, answers, choices)


def _right_letter(given: Any, choices: Sequence[str], where: str) -> str:
    if not 2 <= len(choices) <= len(LETTERS):
        raise DataError(f"{where}: {len(choices)} choices; give 2 to {len(LETTERS)}")
    if isinstance(given, list) and len(given) == 1:
        given = given[0]
    wanted = _text(given, f'{where}: "answer"')
    letters = LETTERS[: len(choices)]
    meant = {place for place, choice in enumerate(choices) if choice == wanted}
    meant |= {letters.index(wanted.upper())} if wanted.upper() in tuple(letters) else set()
    if isinstance(given, int) and 0 <= given < len(choices):
        meant.add(given)
    if len(meant) != 1:
        what = "could mean more than one choice" if meant else "is none of the choices"
        raise DataError(
            f'{where}: "answer" {reprlib.repr(given)} {what}; write its letter A-{letters[-1]}, '
            "its text, or its index from 0"
        )
    return letters[meant.pop()]


def _text(value: Any, what: str) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if value is None:
        raise DataError(f"{what} is missing; add it")
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{what} is {reprlib.repr(value)}; write a text that is not empty")
    return value.strip()


def _texts(value: Any, what: str) -> tuple[str, ...]:
    if value == []:
        raise DataError(f"{what} is an empty list; write at least one text")
    return tuple(_text(item, what) for item in (value if isinstance(value, list) else [value]))


def _pools(data: DataSettings, seed: int) -> Pools:
    path = Path(data.file or data.dir).expanduser()
    if not (data.file or data.dir):
        raise ConfigError("task jsonl needs your questions; set data.file to a .jsonl file")
    if path.is_dir():
        pools = folder_pools(path)
        splits = {
            "train": pools.train(),
            "validation": pools.validation() if pools.validation else [],
            "test": pools.test(),
        }
        _check_ids(row for rows in splits.values() for row in rows)
    else:
        splits = _split_file(path, data, seed)
    for split in ("train", "test"):
        if not splits[split]:
            raise DataError(f"{path} has no {split} questions; add some")
    validation = splits["validation"]
    return Pools(
        train=lambda: splits["train"],
        validation=(lambda: validation) if validation else None,
        test=lambda: splits["test"],
    )


def _folder_rows(folder: Path) -> list[Row]:
    pools = folder_pools(folder)
    readers = (pools.train, pools.validation or list, pools.test)
    return [row for read in readers for row in read()]


def _split_file(path: Path, data: DataSettings, seed: int) -> dict[str, list[Row]]:
    rows = read_jsonl(path)
    if not rows:
        raise DataError(
            f'{path} is empty; write one {{"question": ..., "answers": [...]}} per line'
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
        question = parse(row)
        by_text.setdefault(normalise(question.text), (question, row))
    size = sizes(len(by_text), data)
    _check_size(path, len(by_text), size)
    row_of = {question.id: row for question, row in by_text.values()}
    ranked = rank([question for question, _ in by_text.values()], f"split/{seed}")
    ordered = [row_of[question.id] for question in ranked]
    for name in ("test", "validation"):
        splits[name], ordered = ordered[: size[name]], ordered[size[name] :]
    return splits | {"train": ordered}


def _check_size(path: Path, available: int, wanted: Mapping[str, int]) -> None:
    total = sum(wanted.values())
    if available < total:
        fits = {name: max(1, size * available // total) for name, size in wanted.items()}
        remedy = " ".join(f"data.{name}={size}" for name, size in fits.items())
        raise DataError(
            f"{path} has {available} different questions, {total} were asked for; set e.g. {remedy}"
        )


def _check_ids(rows: Iterable[Row]) -> None:
    seen: dict[str, str] = {}
    for row in rows:
        name = str(row.fields.get("id", ""))
        if name and name in seen:
            raise DataError(f"{row.where}: id {name!r} is also at {seen[name]}; make ids unique")
        seen[name] = row.where
