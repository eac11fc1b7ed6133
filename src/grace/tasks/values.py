"""Read questions from the rows of the user's own data: text, choices, and the right ones.

The right choice is its letter, its label, its text or its number; whether numbers count from 0 or
from 1 is read from all rows of the source (`_habits`).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import re
import reprlib
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from grace.answers import LETTERS, options, yes_no
from grace.answers.finding import boxed
from grace.answers.text import canonical
from grace.config import DataSettings
from grace.errors import DataError
from grace.records import Message, Question
from grace.store.inputs import Bad, Row, Untyped, plain, read_rows, spelt
from grace.tasks.columns import (
    ALIASES,
    ANSWERS,
    LETTER,
    POINTING,
    SHAPES,
    TRUTH,
    Columns,
    is_empty,
    key_among,
    log_columns,
    missing,
    passage_in,
    refuse_unread_choices,
    row_columns,
    row_options,
    shortened,
    spelt_in,
    table_columns,
    whole_number,
)
from grace.tasks.conversations import is_conversation, read_conversation
from grace.tasks.draw import asked_key, content_id
from grace.tasks.rows import file_of, note

_OWN_LETTER = re.compile(r"(?:(?<!\S)|\A)\(?([A-J])[ ]?[).:]\s*(?=\S)", re.IGNORECASE)
_DIGITS, _PAIRS = "0123456789", ({"Y", "N"}, {"T", "F"})
_OWN_NUMBER = re.compile(r"(?<![^\s(])(\d)[).:]\s")
_BEFORE_OPTIONS = re.compile(r"(?<!\s)\s*(?:options|(?:answer )?choices)[ \t]*:\Z", re.IGNORECASE)
_AFTER_OPTIONS = re.compile(r"\n[ \t]*answer[ \t]*:?\Z", re.IGNORECASE)


class SourceRow(Row):
    """A row that knows its source, and so how its source counts options."""

    source: str
    data: DataSettings


def question_rows(
    source: str | Path,
    data: DataSettings,
    start: int = 0,
    stop: int | None = None,
    bad: Bad | None = None,
) -> Iterator[Row]:
    """Yield the rows of a source (see `read_rows`); of a table, only the columns of a question."""
    if str(source) == "-":
        raise DataError(
            "questions cannot come from a pipe, because they are read more than once; save them "
            "to a file"
        )
    table: Sequence[str] = ()

    def choose(names: Sequence[str]) -> Sequence[str]:
        nonlocal table
        table = names
        return table_columns(names, data, str(source))

    for number, (where, fields) in enumerate(read_rows(source, start, stop, choose, bad)):
        row = SourceRow(where, fields)
        row.source, row.data = str(source), data
        if number == 0:
            log_columns(source, table, row, data)
        yield row


def parse(row: Row, data: DataSettings | None = None, *, graded: bool = True) -> Question:
    """Return the question of a row; without `graded` it may lack the answers."""
    where, data = row.where, data or DataSettings()
    fields, columns = row_columns(row, data)
    if not columns.choices:
        refuse_unread_choices(fields, columns, where)
    what = f'{where}: "{columns.question}"'
    messages = _conversation(fields[columns.question], what)
    text = _text(messages[-1]["content"] if messages else fields[columns.question], what)
    choices, labels = _choices(fields, columns, where)
    if messages and choices:
        raise DataError(f"{where}: choices belong to a question; write them into {what}")
    answer = _unfolded(fields, columns.answers, where) if columns.answers else None
    if isinstance(answer, dict):
        raise DataError(
            f'{where}: "{columns.answers}" is an object, of fields that are graded one by one: '
            "`grace grade` does so, and `grace fit` takes the grades; write a text here"
        )
    asked, listed = ("", ()) if choices or messages else _lettered(_AFTER_OPTIONS.sub("", text))
    if listed and (answer is None or options.named(str(answer), listed, marked=False)):
        text, choices = _BEFORE_OPTIONS.sub("", asked.rstrip()).strip(), listed
    passage, _ = passage_in(fields, columns)
    if passage and not messages and passage not in text:
        text = f"{passage}\n\n{text}"
    answers: tuple[str, ...] = ()
    if choices and (whole_number(answer) or 0) < 0:
        answer = None  # as the Hub's data sets mark a hidden answer
    if answer is None and graded:
        is_one = functools.partial(_is_answer, row, data)
        raise missing("answer" if choices else "answers", "answer", fields, data, where, is_one)

    def accepts(name: str) -> tuple[str, ...]:
        value = _unfolded(fields, name, where)
        if choices:
            return (_right_letter(value, choices, labels, columns, row),)
        said = str(value).strip().lower()
        if said in ("true", "false") or (said in "yntf" and _habits_of(row).answers in _PAIRS):
            return ("yes", "true") if said[0] in "yt" else ("no", "false")
        return _texts(value, f'{where}: "{name}"')

    if answer is not None:
        if not choices and columns.answers != data.answer_field:
            _refuse_classes(answer, fields, columns, row)
        answers = accepts(columns.answers)
        filled = [name for name in fields if name != columns.answers and not is_empty(fields[name])]
        if plain(columns.answers) in ("answer", "answers") and not data.answer_field:
            truth = (*TRUTH, *ANSWERS) if choices else TRUTH
            for other in (name for name in filled if plain(name) in truth):
                said = answers
                with contextlib.suppress(DataError):
                    said = accepts(other)
                if (number := whole_number(fields[other])) and whole_number(answer) is None:
                    said = (*said, *LETTERS[number - 1 : number])  # counted from 1
                if {*map(canonical, said)}.isdisjoint(map(canonical, answers)):
                    raise DataError(
                        f'{where}: both "{columns.answers}" and "{other}" could be the answer; '
                        f"choose one: --answer-field {shlex.quote(other)}"
                    )
        if more := [name for name in filled if plain(name) in ALIASES and not choices]:
            answers = tuple(dict.fromkeys(itertools.chain(answers, *map(accepts, more))))
    turns = [turn["content"] for turn in messages[:-1]]
    name = row_id(row) or content_id("jsonl", text, [*choices, *turns])
    group, source = (
        "" if fields.get(key) is None else _text(fields[key], f'{where}: "{key}"')
        for key in ("group", "source")
    )
    if messages and not group:
        group = content_id("asked", *asked_key(messages))
    elif passage and not group:
        group = content_id("about", passage)
    return Question(name, "jsonl", text, answers, choices, group, source, messages)


def _refuse_classes(answer: Any, fields: dict[str, Any], columns: Columns, row: Row) -> None:
    """Refuse what may be a number or letter of a choice or class, where there are no choices."""
    name, every = columns.answers, set[str]()
    if str(answer).strip(" ().").upper() in (*LETTERS, *_DIGITS):
        every = _habits_of(row).answers
    others = [fields[key] for key in fields if key != name and plain(key) not in ALIASES]
    alike = every <= {*LETTERS} or every == {"0", "1"}
    if every <= {*_DIGITS}:
        alike = alike or max(map(_offers, others)) >= int(max(every, default="9"))
    if (alike and len(every) > 1) or (plain(name) in POINTING and whole_number(answer) is not None):
        raise DataError(
            f'{row.where}: "{name}" is {answer}, which may stand for a choice or class; write '
            f"texts, add the choices, or say that it is meant: --answer-field {shlex.quote(name)}"
        )


def _offers(value: Any) -> int:
    """Return how many texts are in a list, or in a text after 1., 2. and so on."""
    with contextlib.suppress(ValueError):
        value = spelt(value)
    if isinstance(value, list):
        return len(value) if any(isinstance(one, str) for one in value) else 0
    marks = [int(number) for number in _OWN_NUMBER.findall(str(value))]
    return len(marks) if len(marks) > 1 and marks == [*range(1, len(marks) + 1)] else 0


def _is_answer(row: Row, data: DataSettings, name: str) -> bool:
    """Return whether a row is read if a column of it is named as that of the answer."""
    trial = SourceRow(row.where, row.fields)
    trial.source, trial.data = getattr(row, "source", ""), replace(data, answer_field=name)
    with contextlib.suppress(DataError):
        return bool(parse(trial, trial.data, graded=False).answers)
    return False


def _conversation(value: Any, what: str) -> tuple[Message, ...]:
    """Return the conversation in a column, also one in a cell, () for anything else."""
    with contextlib.suppress(ValueError):
        value = spelt(value)
    return tuple(read_conversation(value, what)) if is_conversation(value) else ()


def _lettered(text: str) -> tuple[str, tuple[str, ...]]:
    """Return what stands before the lettered options that end a text, and these, () for none."""
    marks = [*_OWN_LETTER.finditer(text)]
    start = max((at for at, mark in enumerate(marks) if mark[1] in "Aa"), default=0)
    ends = [*(mark.start() for mark in marks[start + 1 :]), len(text)]
    marks = marks[start:]
    found = [text[a.end() : end].strip(" ,;\t\r\n") for a, end in zip(marks, ends, strict=False)]
    in_order = [mark[1].upper() for mark in marks] == [*LETTERS[: len(marks)]]
    if len(marks) < 2 or not in_order or any(not one or "\n" in one for one in found):
        return text, ()
    return text[: marks[0].start()], tuple(found)


def read_options(row: Row) -> tuple[str, ...]:
    """Return the options of a row's question, () for an open one."""
    fields, columns = row_options(row)
    return _choices(fields, columns, row.where)[0]


def row_id(row: Row) -> str:
    """Return the id that a row gives its question, "" where it gives none."""
    name = row.fields.get("id")
    return "" if name is None else _text(name, f'{row.where}: "id"')


def _unfolded(fields: dict[str, Any], name: str, where: str) -> Any:
    """Return the accepted texts of an answer as SQuAD, TriviaQA, GSM8K and PopQA have it."""
    what = f'{where}: "{name}"'
    value = spelt_in(fields[name], what)
    several = r"\A(?!.*\n).*[^\W\d_]{3} *\|{1,2} *[^\W\d_]{3}"  # words, no formula or table
    if isinstance(value, Untyped) and plain(name).endswith("answers"):
        several = r"\S;\s*\S|[^\s|]\s*\|\s*[^\s|]"
    if isinstance(value, str) and re.search(several, value):
        raise DataError(
            f'{what} may be several texts: {shortened(value)}; write a list: ["a", "b"], or of one '
            'text: ["a | b"]'
        )
    if isinstance(value, str):
        last = re.split(r"(?:\A|\n)####\s*", value)[-1]
        return spelt_in(next(iter(boxed(value)), last), what)
    if isinstance(value, list) and any(isinstance(v, dict) and _is_flagged(v) for v in value):
        raise DataError(
            f'{what} has wrong answers, too; write the right ones, or all as "choices" and the '
            'letter of the right one as "answer"'
        )
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], bool):
        return value[0]
    parts = [_accepted(part) for part in value] if isinstance(value, list) else [_accepted(value)]
    if isinstance(value, list) or (isinstance(value, dict) and parts[0] is not value):
        flat = [text for part in parts for text in (part if isinstance(part, list) else [part])]
        return list(dict.fromkeys(flat)) if any(isinstance(p, list) for p in parts) else flat
    return value


def field_answers(value: Any, what: str) -> dict[str, tuple[str, ...]]:
    """Return what each field of a structured answer accepts, {} for an answer of another kind.

    The names of nested fields are joined by a dot, as `grace.answers.fields` does; a field whose
    answer is null is not known. An object with a `text` or a `value` is one answer with aliases.
    """
    value = spelt_in(value, what)
    if not isinstance(value, dict) or _accepted(value) is not value:
        return {}
    found: dict[str, tuple[str, ...]] = {}
    for name, one in value.items():
        if isinstance(one, dict) and one:
            found |= field_answers({f"{name}.{key}": each for key, each in one.items()}, what)
        elif isinstance(one, bool):
            found[name] = ("yes", "true") if one else ("no", "false")
        elif one is not None:
            found[name] = _texts(one, f"{what}: {name}")
    return found


def _is_flagged(value: dict[str, Any]) -> bool:
    return any(flag is False and plain(name).endswith("correct") for name, flag in value.items())


def _accepted(value: Any) -> Any:
    """Return the accepted texts in an object: its text, or its value and the aliases."""
    if not isinstance(value, dict) or not (key := key_among(value, ("text", "value", "span"))):
        return value
    others = value.get(key_among(value, ("aliase",))) or []  # without its s
    first = value[key] or _number_or_date(value) or value[key]
    return [
        *(first if isinstance(first, list) else [first]),
        *(others if isinstance(others, list) else [others]),
    ]


def _number_or_date(value: dict[str, Any]) -> str:
    """Return the answer of DROP that is no span of the passage."""
    date = value.get("date")
    parts = [date.get(name) for name in ("day", "month", "year")] if isinstance(date, dict) else []
    known = [value["number"]] if value.get("number") not in ("", None) else parts
    return " ".join(str(part) for part in known if part not in ("", None))


def _choices(
    fields: dict[str, Any], columns: Columns, where: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the choices, and their labels if they have any, as in ARC and MedQA."""
    if not columns.choices:
        return (), ()
    what = f'{where}: "{columns.choices[0]}"'
    labels: Any = ()
    if columns.wrong:
        value = [fields[name] for name in columns.choices if not is_empty(fields[name])]
        value = spelt_in(value[0], what) if len(columns.choices) == 1 and value else value
        right = _texts(_unfolded(fields, columns.answers, where), f'{where}: "{columns.answers}"')
        choices = (*right[:1], *_texts(value, what))
        if len(choices) > len(LETTERS):
            most = f"more than {len(LETTERS)} choices"
            note(f"{file_of(where)}: of {most} the right one and nine are kept")
            choices = choices[: len(LETTERS)]
        # in an order that says nothing about which is right
        return tuple(sorted(dict.fromkeys(choices), key=_mixed)), ()
    if len(columns.choices) > 1:
        texts = tuple(_text(fields[key], f'{where}: "{key}"') for key in columns.choices)
        return texts, columns.choices
    value = spelt_in(fields[columns.choices[0]], what)
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        label, text = (key_among(value[0], names) for names in SHAPES)
        labels = [item.get(label) for item in value] if label else ()
        value = [item.get(text) for item in value]
    elif isinstance(value, dict) and (key := key_among(value, ("text",))):
        value, labels = value[key], value.get(key_among(value, ("label",))) or ()
    elif isinstance(value, dict):  # {"A": "21", "B": "23"}
        labels = [label for label, text in value.items() if text is not None]
        value = [value[label] for label in labels]
    choices = _texts(value, what)
    before, own = _lettered("\n".join(choices))
    choices = own if len(choices) in (1, len(own)) and not before.strip() else choices
    if not 2 <= len(choices) <= len(LETTERS):
        count = f"{len(choices)} choice{'s' * (len(choices) != 1)}"
        example = ' as a list: ["4", "7"]' if len(choices) == 1 else ""
        raise DataError(f"{where}: {count}; give 2 to {len(LETTERS)}{example}")
    labels = _texts(labels, f'{where}: a label of "{columns.choices[0]}"') if labels else ()
    if labels and len(labels) != len(choices):
        count = f"{len(labels)} label{'s' * (len(labels) != 1)}"
        raise DataError(f"{what} has {count} for {len(choices)} choices; give one each")
    return choices, labels


def _mixed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class _Habits(NamedTuple):
    """What all rows of a source tell of its answers.

    `first`: numbers count the choices from 0 or 1, None if no row tells; `places`: they count them,
    since not all are choices themselves; `answers`: all of the questions without choices.
    """

    first: int | None
    places: bool
    answers: set[str]


def _habits_of(row: Row) -> _Habits:
    if not isinstance(row, SourceRow):
        return _habits([row], DataSettings())
    path = Path(row.source)
    stamp = path.stat().st_mtime_ns if path.is_file() else 0
    return _source_habits(row.source, row.data, stamp)


@functools.lru_cache
def _source_habits(source: str, data: DataSettings, stamp: int) -> _Habits:
    return _habits(question_rows(source, data), data, source)


def _habits(rows: Iterable[Row], data: DataSettings, source: str = "") -> _Habits:
    zero = last = other = ""
    answers = set[str]()
    for row in rows:
        with contextlib.suppress(DataError):
            fields, columns = row_columns(row, data)
            if not columns.answers or columns.wrong:
                continue
            choices, labels = _choices(fields, columns, row.where)
            answer = _unfolded(fields, columns.answers, row.where)
            number = whole_number(answer)
            if not choices:
                answers.add(str(answer).strip(" ().").upper())
            elif number is not None and str(number) not in labels:
                zero = zero or row.where * (number == 0)
                last = last or row.where * (number == len(choices))
                other = other or row.where * (number not in map(whole_number, choices))
    if other and zero and last:
        raise DataError(
            f"{zero} counts the choices from 0 and {last} from 1; write letters: A, B, ..."
        )
    if source and other and last:
        note(f"{source}: the answers count the choices from 1")
    return _Habits(0 if zero else 1 if last else None, bool(other), answers)


def _right_letter(
    answer: Any, choices: Sequence[str], labels: Sequence[str], columns: Columns, row: Row
) -> str:
    if isinstance(answer, list) and (len(answer) == 1 or columns.wrong):
        answer = answer[0]
    if isinstance(answer, list):
        raise DataError(
            f'{row.where}: "{columns.answers}" has {len(answer)} right choices; write one, or '
            "leave the choices out and accept several texts"
        )
    if isinstance(answer, bool):
        said = {yes_no.canonical(choice): choice for choice in reversed(choices)}
        answer = said.get("yes" if answer else "no", str(answer))
    text = _text(answer, f'{row.where}: "{columns.answers}"')
    letters = LETTERS[: len(choices)]
    if text in labels:
        return letters[labels.index(text)]
    number = whole_number(answer)
    meant = {
        place
        for place, choice in enumerate(choices)
        if choice == text or (number is not None and whole_number(choice) == number)
    }
    problem = ""
    if columns.wrong:
        return letters[meant.pop()]
    if (match := LETTER.fullmatch(text)) and match[1].upper() in tuple(letters):
        meant.add(letters.index(match[1].upper()))
    if number is not None:
        first, places, _ = _habits_of(row)
        if first is None and len(columns.choices) > 1 and not meant:
            problem = "may count from 0 or from 1, and no row tells which"
        elif places or not (meant and isinstance(answer, str)):
            place = {number - (first or 0)} & set(range(len(choices)))
            meant = place if places else meant | place
    elif not meant and (letter := options.named(text, choices, marked=False)):
        meant = {letters.find(letter)} - {-1}  # "B. Paris", "Option B", "paris"
    if len(meant) != 1:
        problem = problem or (
            "could mean more than one choice" if meant else "is none of the choices"
        )
        index = ", or its index from 0" * (len(columns.choices) == 1)
        raise DataError(
            f'{row.where}: "{columns.answers}" {reprlib.repr(answer)} {problem}; write its letter '
            f"A-{letters[-1]}{',' if index else ' or'} its text{index}"
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
    return str(value).strip()


def _texts(value: Any, what: str) -> tuple[str, ...]:
    if value == []:
        raise DataError(f"{what} is an empty list; write at least one text")
    return tuple(_text(item, what) for item in (value if isinstance(value, list) else [value]))
