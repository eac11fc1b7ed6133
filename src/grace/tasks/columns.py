"""From a row of one's own data to a question: which columns hold it, and what may stand in them.

    {"question": "Who wrote Middlemarch?", "answers": ["George Eliot", "Mary Ann Evans"]}
    {"question": "Which is a prime?", "choices": ["4", "7", "9"], "answer": "B"}

Usual other names of the columns are known; settings name any others. All further columns are
ignored. The right choice is given by its letter, its text or its index from 0.
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from grace.config import DataSettings
from grace.errors import DataError
from grace.grading import LETTERS
from grace.records import Question
from grace.store.inputs import Row, read_rows
from grace.tasks.draw import content_id
from grace.tasks.rows import note

QUESTION = ("question", "query", "prompt", "input")
ANSWERS = ("answers", "answer", "correct_answer", "target", "label", "gold")
CHOICES = ("choices", "options")
OURS = ("question", "answers", "answer", "choices", "id", "split", "meta")


class Columns(NamedTuple):
    """The columns of a question; `choices` is one with a list, or one per letter."""

    question: str
    answers: str
    choices: tuple[str, ...]


def question_rows(
    source: str | Path, data: DataSettings, start: int = 0, stop: int | None = None
) -> Iterator[Row]:
    """Yield rows of a source with what is to be read of them, and say once where that is found.

    Raises:
        DataError: as `read_rows`, or there is no column with questions.
    """
    if str(source) == "-":
        raise DataError(
            "questions are read more than once, so not from a pipe; save them to a file"
        )
    told = False

    def choose(names: Sequence[str]) -> Sequence[str]:
        nonlocal told
        told = True
        lines = str(source).endswith((".csv", ".tsv"))
        found = _find(names, data, f"{source}:1" if lines else str(source))
        _tell(source, names, found)
        read = {found.question, found.answers, *found.choices, "id", "split"}
        return [name for name in names if name in read]

    for row in read_rows(source, start, stop, choose):
        if not told:
            told = True
            names = _filled(row)
            _tell(source, names, _find(names, data, row.where))
        yield row


def parse(row: Row, data: DataSettings | None = None, *, graded: bool = True) -> Question:
    """Return the question of a row; without `graded` it may lack the answers.

    Raises:
        DataError: the row lacks something or says something impossible; the message says what.
    """
    fields, where, names = row.fields, row.where, _filled(row)
    found = _find(names, data or DataSettings(), where)
    if not found.choices:
        _refuse_misspelt_choices(fields, found, where)
    text = _text(fields[found.question], f'{where}: "{found.question}"')
    choices, labels = _choices(fields, found, where)
    given = _unfolded(fields[found.answers]) if found.answers else None
    answers: tuple[str, ...] = ()
    if given is None and graded:
        raise _missing("answer" if choices else "answers", ANSWERS, "answer", names, where)
    if given is not None and choices:
        answers = (_right_letter(given, choices, labels, where),)
    elif given is not None:
        answers = _texts(given, f'{where}: "{found.answers}"')
    name = _text(fields["id"], f'{where}: "id"') if fields.get("id") is not None else ""
    return Question(name or content_id("jsonl", text, choices), "jsonl", text, answers, choices)


def _filled(row: Row) -> list[str]:
    return [name for name, value in row.fields.items() if value is not None]


def _find(names: Sequence[str], data: DataSettings, where: str) -> Columns:
    question = _pick(QUESTION, names, data.question_field, "question", where)
    if not question:
        raise _missing("question", QUESTION, "question", names, where)
    answers = _pick(ANSWERS, names, data.answer_field, "answer", where)
    choices = _pick(CHOICES, names, "", "", where)
    letters = LETTERS[: next((n for n, key in enumerate(LETTERS) if key not in names), None)]
    several = tuple(letters) if len(letters) > 1 else ()
    return Columns(question, answers, (choices,) if choices else several)


def _pick(known: Sequence[str], names: Sequence[str], named: str, option: str, where: str) -> str:
    """Return the column that the user named, or the one with a known name, "" if there is none."""
    if named:
        if named not in names:
            raise DataError(f"{where}: no field {named!r}; the fields are {', '.join(names)}")
        return named
    spelt = {name.strip().lower(): name for name in names}
    found = [spelt[name] for name in known if name in spelt]
    found = [name for name in found if name in OURS] or found
    if len(found) > 1:
        raise DataError(
            f'{where}: both "{found[0]}" and "{found[1]}"; name the one to be read: '
            f"--{option}-field {found[0]}"
        )
    return found[0] if found else ""


def _refuse_misspelt_choices(fields: dict[str, Any], found: Columns, where: str) -> None:
    """Refuse a list that is nearly called choices: without it the question would be an open one."""
    for name in fields.keys() - set(found[:2]):
        near = difflib.get_close_matches(name, CHOICES, n=1, cutoff=0.8)
        if near and isinstance(fields[name], list):
            raise DataError(f'{where}: did you mean "{near[0]}"? rename "{name}", or take it out')


def _missing(
    what: str, known: Sequence[str], option: str, names: Sequence[str], where: str
) -> DataError:
    others = [name for name in names if name not in OURS]
    if not others:
        return DataError(f'{where}: "{what}" is missing; add it')
    near = [name for name in others if difflib.get_close_matches(name, known, n=1)]
    named = near[0] if near else others[0] if len(others) == 1 else "NAME"
    return DataError(
        f'{where}: "{what}" is missing among the fields {", ".join(names)}; say which one holds '
        f"it: --{option}-field {named}"
    )


def _tell(source: str | Path, names: Sequence[str], found: Columns) -> None:
    """Say which columns are read where that does not go without saying."""
    read = [found.question, *filter(None, [found.answers]), *found.choices]
    ignored = [name for name in names if name not in read and name not in OURS]
    if ignored or not set(read) <= set(OURS):
        parts = [f"question in {found.question}"]
        parts += [f"answers in {found.answers}"] if found.answers else []
        parts += [f"choices in {', '.join(found.choices)}"] if found.choices else []
        rest = f"; ignored: {', '.join(ignored)}" if ignored else ""
        note(f"{source}: {', '.join(parts)}{rest}")


def _unfolded(value: Any) -> Any:
    """Return the texts in an answer as SQuAD or TriviaQA write it, anything else as it is."""
    if isinstance(value, dict) and "text" in value:
        return value["text"]
    if isinstance(value, dict) and "value" in value:
        return [value["value"], *value.get("aliases", [])]
    return value


def _choices(
    fields: dict[str, Any], found: Columns, where: str
) -> tuple[tuple[str, ...], Sequence[Any]]:
    """Return the choices, and the labels that stand beside them as in ARC."""
    if not found.choices:
        return (), ()
    if len(found.choices) > 1:
        return tuple(_text(fields[key], f'{where}: "{key}"') for key in found.choices), ()
    value, labels = fields[found.choices[0]], ()
    if isinstance(value, dict) and "text" in value:
        value, labels = value["text"], value.get("label", ())
    choices = _texts(value, f'{where}: "{found.choices[0]}"')
    if not 2 <= len(choices) <= len(LETTERS):
        count = f"{len(choices)} choice{'s' * (len(choices) != 1)}"
        example = ' as a list: ["4", "7"]' if len(choices) == 1 else ""
        raise DataError(f"{where}: {count}; give 2 to {len(LETTERS)}{example}")
    return choices, labels


def _right_letter(given: Any, choices: Sequence[str], labels: Sequence[Any], where: str) -> str:
    if isinstance(given, list) and len(given) == 1:
        given = given[0]
    wanted = _text(given, f'{where}: "answer"')
    letters = LETTERS[: len(choices)]
    if given in labels:
        return letters[labels.index(given)]
    meant = {place for place, choice in enumerate(choices) if choice == wanted}
    meant |= {letters.index(wanted.upper())} if wanted.upper() in tuple(letters) else set()
    index = int(wanted) if wanted.isdecimal() and not (meant and isinstance(given, str)) else -1
    meant |= {index} if 0 <= index < len(choices) else set()
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
