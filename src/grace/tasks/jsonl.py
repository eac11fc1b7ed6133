"""Your own questions: a file, a folder with train, validation and test files, or a Hub data set.

The source is JSON Lines, CSV, Parquet or `hf:OWNER/NAME[:CONFIG][:SPLIT]` (`grace.store.inputs`),
with the columns of `grace.tasks.columns`, which `grace.tasks.values` reads. Optional columns are
`id`, `group`, `source` and `split` (train, validation or test; in every row or in none). In a
folder without a file for a split, each file is a source. Without splits the seed divides the
questions: half for training, a sixth for validation and a third for the test, unless settings say
otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from grace import answers
from grace.config import DataSettings
from grace.errors import ConfigError, DataError, UserInputError
from grace.records import Message, Question
from grace.store.inputs import SPLIT_NAMES, Bad, ending, hub_splits, is_hub, stem, tables_in
from grace.tasks import Split
from grace.tasks.columns import Unanswered
from grace.tasks.draw import cut, draw, identity, rank, sizes
from grace.tasks.forms import NO_CHOICES
from grace.tasks.prompts import ask
from grace.tasks.rows import Faults, Pools, Row, folder_pools, named_pools, note
from grace.tasks.values import parse, question_rows, row_id

Once = Callable[[Row], Question]


@dataclass(frozen=True, slots=True)
class Jsonl:
    """The user's own questions, open and multiple choice, also mixed in one file."""

    name: ClassVar[str] = "jsonl"
    grader: ClassVar[str] = "auto"
    # choice: needs choices, as in training; number, yes_no: how answers are compared
    kind: answers.Kind = "open"

    def questions(self, split: Split, data: DataSettings, seed: int) -> list[Question]:
        """Return questions of a split, drawn by the seed (see `grace.tasks.Task`)."""
        source = _source(data)
        questions: dict[int, Question] = {}  # by row, all of which `rows` keeps

        def once(row: Row) -> Question:
            if id(row) not in questions:
                questions[id(row)] = parse(row, data)
            return questions[id(row)]

        rows = _rows(source, data, seed, once)
        for needed in ("train", "test"):
            if not rows[needed]:
                raise DataError(f"{source} has no {needed} questions; add some")
        _note_conversations(source, questions.values(), data)
        pools = Pools(
            train=lambda: rows["train"],
            validation=(lambda: rows["validation"]) if rows["validation"] else None,
            test=lambda: rows["test"],
        )
        return draw(source, pools, once, split, data, seed)

    def places(self, data: DataSettings) -> dict[str, str]:
        """Return the file and line of every question by its id."""
        source = _source(data)
        splits = _named_splits(source, data) or {"all": _every_row(source, data)}
        return {
            parse(row, data, graded=False).id: row.where for rows in splits.values() for row in rows
        }

    def messages(self, question: Question, data: DataSettings) -> list[Message]:
        """Return the paper's prompt for an open or a multiple-choice question."""
        if self.kind == "choice" and not question.choices:
            raise UserInputError(NO_CHOICES.format(name=self.name))
        return ask(question, data)

    def answer(self, text: str, choices: Sequence[str] = ()) -> str | None:
        """Return what votes count: the letter of an option, a number, yes or no, a short answer."""
        return answers.read(text, self.kind, choices)


TASK = Jsonl()


def _source(data: DataSettings) -> str:
    """Return the file, folder or data set with the questions."""
    source = data.file or data.dir
    if not source:
        raise ConfigError("task jsonl needs your questions; give --file FILE (data.file)")
    return source if is_hub(source) else os.path.expanduser(source)


def _note_conversations(source: str, questions: Iterable[Question], data: DataSettings) -> None:
    """Say which settings of the prompt are not used, since conversations stand as they are."""
    unused = [f"data.{name}" for name in ("system", "template") if getattr(data, name)]
    unused += ["data.shots"] * (data.shots > 0)
    if unused and any(question.messages for question in questions):
        note(
            f"{source}: conversations stand as they are, without {' and '.join(unused)}; write "
            "what the model is to see into their messages"
        )


def _rows(source: str, data: DataSettings, seed: int, once: Once) -> dict[str, list[Row]]:
    """Return the rows of each split: as named in the source, else divided by the seed."""
    faults = Faults()
    splits = _named_splits(source, data, faults.add)
    if splits:
        _check_ids(row for rows in splits.values() for row in rows)
        found = {name: _answered(source, rows, once, faults, name) for name, rows in splits.items()}
        if not found["test"]:  # the Hub's data sets often hide the answers of the test split
            found["test"], found["validation"] = found["validation"], []
        return found
    rows = _every_row(source, data, faults.add)
    if not rows:
        faults.refuse(some=False)
        raise DataError(
            f'{source} is empty; write one {{"question": ..., "answers": [...]}} per line'
        )
    _check_ids(rows)
    rows = _answered(source, rows, once, faults)
    if any("split" in row.fields for row in rows):
        return _by_field(rows)
    return _divided(source, rows, data, seed, once)


def _answered(
    source: str, rows: list[Row], once: Once, faults: Faults, split: str = ""
) -> list[Row]:
    """Return the rows with an answer, and say how many have none."""
    kept, first = [], None
    for row in rows:
        with faults.of(row.where):
            try:
                once(row)
                kept.append(row)
            except Unanswered as error:
                first = first or error
    faults.refuse(some=bool(kept))
    if first and not kept and not split:
        raise first
    if first:
        among = " ".join(filter(None, (str(len(rows)), split, "questions")))
        note(f"{source}: {len(rows) - len(kept)} of {among} have no answer and are left out")
    return kept


def _named_splits(source: str, data: DataSettings, bad: Bad | None = None) -> dict[str, list[Row]]:
    """Return the rows of each split of a folder or a Hub data set; {} for one file or split."""

    def read(part: str) -> list[Row]:
        return list(question_rows(part, data, bad=bad))

    pools = None
    if is_hub(source):
        parts = hub_splits(source)
        pools = named_pools(source, parts, read) if len(parts) > 1 else None
    elif Path(source).is_dir() and _tables(Path(source), SPLIT_NAMES):
        pools = folder_pools(Path(source), read)
    if pools is None:
        return {}
    return {name: pool() if pool else [] for name, pool in pools._asdict().items()}


def _every_row(source: str, data: DataSettings, bad: Bad | None = None) -> list[Row]:
    """Return the rows of a file, of a folder of .parquet files, or of a source in each file."""
    files = _tables(Path(source)) if Path(source).is_dir() else []
    if not files or any(ending(file) == ".parquet" for file in files):
        return list(question_rows(source, data, bad=bad))
    rows = []
    for file in files:
        for row in question_rows(file, data, bad=bad):
            row.fields.setdefault("source", stem(file))
            if row_id(row):
                row.fields["id"] = f"{stem(file)}/{row_id(row)}"
            rows.append(row)
    return rows


def _tables(folder: Path, beginnings: tuple[str, ...] = ("",)) -> list[Path]:
    """Return the files of a folder that hold rows and whose names begin in one of some ways."""
    return [file for file in tables_in(folder) if file.name.startswith(beginnings)]


def _by_field(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Return the rows of each split by their field "split"."""
    splits: dict[str, list[Row]] = {name: [] for name in SPLIT_NAMES}
    for row in rows:
        name = row.fields.get("split")
        if name not in SPLIT_NAMES:
            known = ", ".join(SPLIT_NAMES)
            raise DataError(f'{row.where}: "split" is {name!r}; write one of {known}')
        splits[name].append(row)
    return splits


def _divided(
    source: str, rows: Sequence[Row], data: DataSettings, seed: int, once: Once
) -> dict[str, list[Row]]:
    """Divide the rows with different questions by the seed."""
    different: dict[tuple[str, ...], tuple[Question, Row]] = {}
    others = 0
    for row in rows:
        question = once(row)
        first, _ = different.setdefault(identity(question), (question, row))
        others += not {*question.answers} <= {*first.answers} and first.choices == question.choices
    size = sizes(len(different), data)
    _check_size(source, len(different), size)
    if repeats := len(rows) - len(different):
        lost = f"; {others} of them accept another text, so put all into one list" * bool(others)
        note(f"{source}: {repeats} of {len(rows)} questions repeat another and are left out{lost}")
    groups = {question.cluster for question, _ in different.values()}
    if len(groups) < len(size):
        raise DataError(
            f"{source} has {len(different)} different questions in {len(groups)} group"
            f"{'s' * (len(groups) != 1)}, but a run needs {len(size)}; conversations that end with "
            "the same turn are a group unless a column `group` says otherwise"
        )
    row_of = {question.id: row for question, row in different.values()}
    ranked = rank([question for question, _ in different.values()], f"split/{seed}")
    ordered = [row_of[question.id] for question in ranked]
    middle = cut(ranked, size["test"])
    end = cut(ranked, middle + size["validation"])
    return {"test": ordered[:middle], "validation": ordered[middle:end], "train": ordered[end:]}


def _check_size(source: str, available: int, wanted: Mapping[str, int]) -> None:
    total = sum(wanted.values())
    if available < len(wanted):
        raise DataError(
            f"{source} has {available} different questions, but a run needs {len(wanted)}: one each"
            " to train, to validate and to test; a few hundred are better"
        )
    if available < total:
        fits = {name: max(1, size * available // total) for name, size in wanted.items()}
        fits[max(fits, key=lambda name: fits[name])] -= max(0, sum(fits.values()) - available)
        remedy = " ".join(f"data.{name}={size}" for name, size in fits.items())
        raise DataError(
            f"{source} has {available} different questions, but the settings ask for {total}; "
            f"set e.g. {remedy}"
        )


def _check_ids(rows: Iterable[Row]) -> None:
    seen: dict[str, str] = {}
    for row in rows:
        name = row_id(row)
        if name in seen:
            raise DataError(f"{row.where}: id {name!r} is also at {seen[name]}; make ids unique")
        if name:
            seen[name] = row.where
