"""Find the columns of a question in a row of the user's own data, and read them.

    {"question": "Who wrote Middlemarch?", "answers": ["George Eliot", "Mary Ann Evans"]}
    {"question": "Which is a prime?", "choices": ["4", "7", "9"], "answer": "B"}

The usual other names of the columns are recognised, settings name any others, and all further
columns are ignored. The right choice is its letter, its text or its index from 0.
"""

from __future__ import annotations

import difflib
import itertools
import re
import reprlib
from collections.abc import Collection, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from grace.config import DataSettings
from grace.errors import DataError
from grace.grading import LETTERS
from grace.records import Question
from grace.store.inputs import Row, cell, read_rows
from grace.tasks.draw import content_id
from grace.tasks.rows import note

QUESTION = ("question", "query", "prompt", "input", "problem", "question_stem")
ANSWERS = (
    *("answers", "answer", "answerkey", "correct_answer", "target", "label", "gold"),
    "possible_answers",
)
CHOICES = ("choices", "options")
LETTERED = re.compile(r"(?:(?:option|choice)[ _-]?)?([a-z])", re.IGNORECASE)
OURS = ("question", "answers", "answer", "choices", "id", "split", "group", "meta")


class Columns(NamedTuple):
    """The columns of a question; `choices` is one column with a list, or one per letter."""

    question: str
    answers: str
    choices: tuple[str, ...]


def question_rows(
    source: str | Path, data: DataSettings, start: int = 0, stop: int | None = None
) -> Iterator[Row]:
    """Yield the rows of a source; of a table, only the columns of a question are read.

    The columns are logged once if their names leave a doubt.
    """
    if str(source) == "-":
        raise DataError(
            "questions cannot come from a pipe, because they are read more than once; save them "
            "to a file"
        )
    header = f"{source}:1 (column names)" if str(source).endswith((".csv", ".tsv")) else str(source)
    is_table = False

    def choose(names: Sequence[str]) -> Sequence[str]:
        nonlocal is_table
        is_table = True
        columns = _find(names, data, header)
        _log(source, names, columns)
        read = {columns.question, columns.answers, *columns.choices, "id", "split", "group"}
        return [name for name in names if name in read]

    for number, row in enumerate(read_rows(source, start, stop, choose)):
        if number == 0 and not is_table:
            names = _filled(row)
            _log(source, names, _find(names, data, row.where, list(row.fields)))
        yield row


def parse(row: Row, data: DataSettings | None = None, *, graded: bool = True) -> Question:
    """Return the question of a row; without `graded` it may lack the answers."""
    fields, where, data = row.fields, row.where, data or DataSettings()
    columns = _find(_filled(row), data, where, list(fields))
    if not columns.choices:
        _refuse_misspelt_choices(fields, columns, where)
    text = _text(fields[columns.question], f'{where}: "{columns.question}"')
    choices, labels = _choices(fields, columns, where)
    answer = _unfolded(fields[columns.answers]) if columns.answers else None
    answers: tuple[str, ...] = ()
    if answer is None and graded:
        raise _missing("answer" if choices else "answers", "answer", list(fields), data, where)
    if answer is not None and choices:
        answers = (_right_letter(answer, choices, labels, where),)
    elif isinstance(answer, bool) or str(answer).strip().lower() in ("true", "false"):
        answers = ("yes", "true") if str(answer).strip().lower() == "true" else ("no", "false")
    elif answer is not None:
        answers = _texts(answer, f'{where}: "{columns.answers}"')
    name = row_id(row) or content_id("jsonl", text, choices)
    group = fields.get("group")
    kept = "" if group is None else _text(group, f'{where}: "group"')
    return Question(name, "jsonl", text, answers, choices, kept)


def columns_to_read(names: Sequence[str], fields: Collection[str]) -> list[str]:
    """Return the columns of a table that are in `fields`, in any case, or may hold options."""
    known = {*fields, *CHOICES}
    return [
        name for name in names if name.strip().lower() in known or LETTERED.fullmatch(name.strip())
    ]


def read_options(row: Row) -> tuple[str, ...]:
    """Return the options of a row's question, () for an open one."""
    columns = Columns("", "", _option_columns(_filled(row), row.where, list(row.fields)))
    return _choices(row.fields, columns, row.where)[0]


def row_id(row: Row) -> str:
    """Return the id that a row gives its question, "" where it gives none."""
    name = row.fields.get("id")
    return "" if name is None else _text(name, f'{row.where}: "id"')


def _filled(row: Row) -> list[str]:
    """Return the columns with a value; an empty list of choices is none, as of an open question."""
    return [
        name
        for name, value in row.fields.items()
        if not (value is None or (value == [] and name.strip().lower() in CHOICES))
    ]


def _find(
    names: Sequence[str], data: DataSettings, where: str, every: Sequence[str] = ()
) -> Columns:
    """Return the columns among `names`, those with a value, of `every` column of a row.

    An empty option before one with a value counts, so that `_choices` can refuse it.
    """
    every = every or names
    for kind, named in (("question", data.question_field), ("answer", data.answer_field)):
        if named and named not in every:
            near = difflib.get_close_matches(named, every, n=1, cutoff=0.8)
            remedy = f"did you mean {near[0]}?" if near else f"name one: --{kind}-field NAME"
            raise DataError(f'{where}: no field "{named}" among {", ".join(every)}; {remedy}')
    question = _pick(QUESTION, names, data.question_field, "question", where)
    if not question:
        raise _missing("question", "question", every, data, where)
    answers = _pick(ANSWERS, names, data.answer_field, "answer", where)
    return Columns(question, answers, _option_columns(names, where, every))


def _option_columns(names: Sequence[str], where: str, every: Sequence[str]) -> tuple[str, ...]:
    """Return the column with a list of options, or those with one each, A, B, ...; () for none."""
    if choices := _pick(CHOICES, names, "", "choices", where):
        return (choices,)
    matches = {name: LETTERED.fullmatch(name.strip()) for name in every}
    spelt = {match[1].upper(): name for name, match in matches.items() if match}
    lettered = [spelt[letter] for letter in itertools.takewhile(spelt.__contains__, LETTERS)]
    last = max((n for n, name in enumerate(lettered, start=1) if name in names), default=0)
    return tuple(lettered[:last]) if len(lettered) > 1 else ()


def _pick(usual: Sequence[str], names: Sequence[str], named: str, kind: str, where: str) -> str:
    """Return the column that the user named, or else the one with a usual name, "" for none."""
    if named:
        return named if named in names else ""
    found = [
        name for known in usual for name in dict.fromkeys(names) if name.strip().lower() == known
    ]
    found = [name for name in found if name in OURS] or found
    if len(found) > 1:
        option = f"choose one: --{kind}-field {found[0]}"
        remedy = "rename or remove one" if kind == "choices" else option
        raise DataError(
            f'{where}: both "{found[0]}" and "{found[1]}" could be the {kind}; {remedy}'
        )
    return found[0] if found else ""


def _refuse_misspelt_choices(fields: dict[str, Any], columns: Columns, where: str) -> None:
    """Refuse a list whose name is nearly "choices": the question would become an open one."""
    for name in fields.keys() - {columns.question, columns.answers}:
        near = difflib.get_close_matches(name, CHOICES, n=1, cutoff=0.8)
        if near and isinstance(fields[name], list) and fields[name]:
            raise DataError(f'{where}: did you mean "{near[0]}"? rename or remove "{name}"')


def _missing(
    what: str, kind: str, every: Sequence[str], data: DataSettings, where: str
) -> DataError:
    """Return an error that names the column that is empty, or the one that may be meant."""
    named = {"question": data.question_field, "answer": data.answer_field}
    usual = {"question": QUESTION, "answer": ANSWERS}[kind]
    empty = [name for name in every if name.strip().lower() in usual]
    empty = [named[kind]] if named[kind] else empty
    known = {*OURS, *QUESTION, *ANSWERS, *CHOICES}
    others = [n for n in every if n.strip().lower() not in known and n not in named.values()]
    if empty or not others:
        return DataError(f'{where}: "{(empty or [what])[0]}" is missing or empty; add it')
    near = [name for name in others if difflib.get_close_matches(name, usual, n=1)]
    meant = near[0] if near else others[0] if len(others) == 1 else "NAME"
    return DataError(
        f'{where}: "{what}" is missing among the fields {", ".join(every)}; name the field with '
        f"the {kind}: --{kind}-field {meant}"
    )


def _log(source: str | Path, names: Sequence[str], columns: Columns) -> None:
    """Log which columns are read, unless all have the names in the manual."""
    read = [columns.question, *filter(None, [columns.answers]), *columns.choices]
    ignored = [name for name in names if name and name not in read and name not in OURS]
    if ignored or not set(read) <= set(OURS):
        parts = [f"question in {columns.question}"]
        parts += [f"answers in {columns.answers}"] if columns.answers else []
        parts += [f"choices in {', '.join(columns.choices)}"] if columns.choices else []
        rest = f"; ignored: {', '.join(ignored)}" if ignored else ""
        note(f"{source}: {', '.join(parts)}{rest}")


def _unfolded(value: Any) -> Any:
    """Return the accepted texts of an answer as SQuAD, TriviaQA, GSM8K and PopQA have it.

    Any other value stays as it is.
    """
    if isinstance(value, dict) and "text" in value:
        return value["text"]
    if isinstance(value, dict) and "value" in value:
        others = value.get("aliases") or []
        return [value["value"], *(others if isinstance(others, list) else [others])]
    return cell(value.rpartition("\n#### ")[2]) if isinstance(value, str) else value


def _choices(
    fields: dict[str, Any], columns: Columns, where: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the choices, and their labels if they have any, as in ARC and MedQA."""
    if not columns.choices:
        return (), ()
    if len(columns.choices) > 1:
        return tuple(_text(fields[key], f'{where}: "{key}"') for key in columns.choices), ()
    value = fields[columns.choices[0]]
    labels: Any = ()
    if isinstance(value, dict) and "text" in value:
        value, labels = value["text"], value.get("label") or ()
    elif isinstance(value, dict):  # {"A": "21", "B": "23"}
        labels = [label for label, text in value.items() if text is not None]
        value = [value[label] for label in labels]
    choices = _texts(value, f'{where}: "{columns.choices[0]}"')
    if not 2 <= len(choices) <= len(LETTERS):
        count = f"{len(choices)} choice{'s' * (len(choices) != 1)}"
        example = ' as a list: ["4", "7"]' if len(choices) == 1 else ""
        raise DataError(f"{where}: {count}; give 2 to {len(LETTERS)}{example}")
    labels = _texts(labels, f'{where}: a label of "{columns.choices[0]}"') if labels else ()
    if labels and len(labels) != len(choices):
        count = f"{len(labels)} label{'s' * (len(labels) != 1)}"
        raise DataError(
            f'{where}: "{columns.choices[0]}" has {count} for {len(choices)} choices; give one each'
        )
    return choices, labels


def _right_letter(answer: Any, choices: Sequence[str], labels: Sequence[str], where: str) -> str:
    if isinstance(answer, list) and len(answer) == 1:
        answer = answer[0]
    text = _text(answer, f'{where}: "answer"')
    letters = LETTERS[: len(choices)]
    if text in labels:
        return letters[labels.index(text)]
    meant = {place for place, choice in enumerate(choices) if choice == text}
    if text.upper() in tuple(letters):
        meant.add(letters.index(text.upper()))
    # A number written as a text is an index only if it is no choice.
    if text.isdecimal() and not (meant and isinstance(answer, str)):
        meant |= {int(text)} & set(range(len(choices)))
    if len(meant) != 1:
        problem = "could mean more than one choice" if meant else "is none of the choices"
        raise DataError(
            f'{where}: "answer" {reprlib.repr(answer)} {problem}; write its letter '
            f"A-{letters[-1]}, its text, or its index from 0"
        )
    return letters[meant.pop()]


def _text(value: Any, what: str) -> str:
    if isinstance(value, float | Decimal) and value % 1 == 0:
        value = int(value)  # whole numbers of a table are floats where one is missing
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool) and value == value:
        return str(value)  # but not nan, a missing value of a table
    if not isinstance(value, str) or not value.strip():
        shown = "null" if value is None else reprlib.repr(value)
        raise DataError(f"{what} is {shown}; write a text that is not empty")
    return value.strip()


def _texts(value: Any, what: str) -> tuple[str, ...]:
    if value == []:
        raise DataError(f"{what} is an empty list; write at least one text")
    return tuple(_text(item, what) for item in (value if isinstance(value, list) else [value]))
