"""Find the columns of a question in a row of the user's own data, and read them.

    {"question": "Who wrote Middlemarch?", "answers": ["George Eliot", "Mary Ann Evans"]}
    {"question": "Which is a prime?", "choices": ["4", "7", "9"], "answer": "B"}

The usual other names and shapes are recognised, settings name any other columns, and all further
ones are ignored. The right choice is its letter, its label, its text or its number; whether numbers
count from 0 or from 1 is read from all rows of the source (`_counted_from`).
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import hashlib
import itertools
import re
import reprlib
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from grace.answers import LETTERS, options, yes_no
from grace.answers.finding import boxed
from grace.config import DataSettings
from grace.errors import DataError
from grace.records import Question
from grace.store.inputs import QUESTION, Row, Untyped, plain, read_rows, spelt
from grace.tasks.draw import content_id
from grace.tasks.rows import note

ANSWERS = (
    *("answers", "answer", "answerkey", "correctanswer", "target", "label", "gold"),
    *("possibleanswers", "cop", "correctoption", "answeridx", "answerindex"),
)
CHOICES = ("choices", "options", "endings", "candidates", "alternatives", "answerchoices")
FAMILIES = ("", "option", "opt", "op", "choice", "alternative", "candidate", "ending")
ANSWER_FAMILIES = ("answer", "ans", "sol")  # options only if the answer points at one
WRONG = re.compile(r"(distractor|incorrect|wrong)(answer|option|choice)?s?")
OURS = ("question", "answers", "answer", "choices", "id", "split", "group", "source", "meta")
SHAPES = ("label", "id", "key", "letter"), ("text", "stem", "value", "content", "question")
_MEMBER = re.compile(r"(.*?)[\s_-]*([a-j]|\d)", re.IGNORECASE | re.DOTALL)
_LETTER = re.compile(r"\(?([A-J])[).:]?", re.IGNORECASE)
_OWN_LETTER = re.compile(r"\s*\(?([A-J])[).:]\s*(?=\S)", re.IGNORECASE)
_WHOLE = re.compile(r"-?\d{1,9}(?:\.0+)?")


_FLATTENED = re.compile(rf"({'|'.join((*QUESTION, *ANSWERS, *CHOICES))})\.\w+", re.IGNORECASE)


class Unanswered(DataError):
    """A question whose row says that it has no answer."""


class SourceRow(Row):
    """A row that knows its source, and so how its source counts options."""

    source: str
    data: DataSettings


class Columns(NamedTuple):
    """The columns of a question; `choices` is one column with a list, or one per option.

    `wrong`: the choices are the wrong ones, and the answer is the other.
    """

    question: str
    answers: str
    choices: tuple[str, ...]
    wrong: bool = False


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
    table: Sequence[str] = ()

    def choose(names: Sequence[str]) -> Sequence[str]:
        nonlocal table
        table = names
        if header != str(source):
            _check_header(names, data, header)
        columns = _find(names, data, header)
        if not columns.answers:
            return names  # one of them may be the answers
        read = {
            columns.question,
            columns.answers,
            *columns.choices,
            *("id", "split", "group", "source"),
        }
        return [name for name in names if name in read or _may_be_options(name, names)]

    for number, (where, fields) in enumerate(read_rows(source, start, stop, choose)):
        row = SourceRow(where, fields)
        row.source, row.data = str(source), data
        if number == 0:
            flat = _flat(row, data)
            columns = _find(_filled(flat), data, where, flat)
            answers = columns.answers or _pick(ANSWERS, list(flat), data.answer_field, "", where)
            columns = columns._replace(answers=answers)
            _log(source, table or _filled(flat), columns)
        yield row


def parse(row: Row, data: DataSettings | None = None, *, graded: bool = True) -> Question:
    """Return the question of a row; without `graded` it may lack the answers."""
    where, data = row.where, data or DataSettings()
    fields = _flat(row, data)
    columns = _find(_filled(fields), data, where, fields)
    if not columns.choices:
        _refuse_unread_choices(fields, columns, where)
    text = _text(fields[columns.question], f'{where}: "{columns.question}"')
    choices, labels = _choices(fields, columns, where)
    answer = _unfolded(fields, columns.answers, where) if columns.answers else None
    answers: tuple[str, ...] = ()
    if choices and (_whole(answer) or 0) < 0:
        answer = None  # as the Hub's data sets mark a hidden answer
    if answer is None and graded:
        raise _missing("answer" if choices else "answers", "answer", list(fields), data, where)
    if answer is not None and choices:
        answers = (_right_letter(answer, choices, labels, columns, row),)
    elif isinstance(answer, bool) or str(answer).strip().lower() in ("true", "false"):
        answers = ("yes", "true") if str(answer).strip().lower() == "true" else ("no", "false")
    elif answer is not None:
        answers = _texts(answer, f'{where}: "{columns.answers}"')
    name = row_id(row) or content_id("jsonl", text, choices)
    kept = [
        "" if fields.get(name) is None else _text(fields[name], f'{where}: "{name}"')
        for name in ("group", "source")
    ]
    return Question(name, "jsonl", text, answers, choices, *kept)


def columns_to_read(names: Sequence[str], fields: Collection[str]) -> list[str]:
    """Return the columns of a table that are in `fields`, in any case, or may hold options."""
    return [
        name
        for name in names
        if name.strip().lower() in fields
        or plain(name) in (*CHOICES, *ANSWERS)
        or _may_be_options(name, names)
    ]


def read_options(row: Row) -> tuple[str, ...]:
    """Return the options of a row's question, () for an open one."""
    fields = _flat(row, DataSettings())
    names = _filled(fields)
    columns = Columns("", _pick(ANSWERS, names, "", "", row.where), ())
    found, wrong = _option_columns(names, row.where, columns.answers, fields)
    return _choices(fields, columns._replace(choices=found, wrong=wrong), row.where)[0]


def row_id(row: Row) -> str:
    """Return the id that a row gives its question, "" where it gives none."""
    name = row.fields.get("id")
    return "" if name is None else _text(name, f'{row.where}: "id"')


def _flat(row: Row, data: DataSettings) -> dict[str, Any]:
    """Return a row's fields with those of a question that is an object, as in the raw ARC.

    Columns such as choices.text, as pandas flattens objects, are one object again.
    """
    fields = row.fields
    parts = {name: name.split(".", 1) for name in fields if _FLATTENED.fullmatch(name)}
    if parts:
        fields = {name: value for name, value in fields.items() if name not in parts} | {
            whole: {
                key: _spelt(fields[name], f'{row.where}: "{name}"')
                for name, (of, key) in parts.items()
                if of == whole
            }
            for whole, _ in parts.values()
        }
    for name, value in fields.items():
        if isinstance(value, dict) and (name == data.question_field or plain(name) in QUESTION):
            key = _key(value, SHAPES[1])
            rest = {k: v for k, v in value.items() if k != key and k not in fields}
            return {**rest, **fields, name: value[key]} if key else fields
    return fields


def _key(value: dict[str, Any], names: Sequence[str]) -> str:
    """Return the key of an object that has one of some names, "" for none."""
    spelling = {plain(str(key)).removesuffix("s"): key for key in value}
    return next((spelling[name] for name in names if name in spelling), "")


def _filled(fields: dict[str, Any]) -> list[str]:
    """Return the columns with a value; an empty list of choices is none, as of an open question.

    Nor is an empty question beside another one: an instruction without an input.
    """
    asked = [name for name in fields if plain(name) in QUESTION]
    empty = {name for name in asked if _is_empty(fields[name])}
    return [
        name
        for name, value in fields.items()
        if value is not None
        and not (plain(name) in CHOICES and _is_empty(value))
        and not (name in empty and len(empty) < len(asked))
    ]


def _is_empty(value: Any) -> bool:
    """Return whether a value says that there is none: null, nan, "", [], or an object of these."""
    with contextlib.suppress(ValueError):
        value = spelt(value)
    if isinstance(value, dict) and (key := _key(value, SHAPES[1])):
        return _is_empty(value[key])
    return value is None or value != value or value in ([], {}) or not str(value).strip()


def _find(
    names: Sequence[str], data: DataSettings, where: str, fields: dict[str, Any] | None = None
) -> Columns:
    """Return the columns among `names`, those with a value, of a row or, without, of a header.

    An empty option before one with a value counts, so that `_choices` can refuse it.
    """
    every = list(names if fields is None else fields)
    for kind, named in (("question", data.question_field), ("answer", data.answer_field)):
        if named and named not in every:
            near = difflib.get_close_matches(named, every, n=1, cutoff=0.8)
            remedy = f"did you mean {near[0]}?" if near else f"name one: --{kind}-field NAME"
            raise DataError(f'{where}: no field "{named}" among {", ".join(every)}; {remedy}')
    question = _pick(QUESTION, names, data.question_field, "question", where)
    if not question:
        raise _missing("question", "question", every, data, where)
    answered = [name for name in names if fields is None or not _is_empty(fields[name])]
    answers = _pick(ANSWERS, answered, data.answer_field, "answer", where)
    return Columns(question, answers, *_option_columns(names, where, answers, fields))


def _option_columns(
    names: Sequence[str], where: str, answers: str, fields: dict[str, Any] | None
) -> tuple[tuple[str, ...], bool]:
    """Return the column with a list of options, or those with one each; and whether they are wrong.

    Without fields, they are those of a header that may hold options.
    """
    if choices := _pick(CHOICES, names, "", "choices", where):
        return (choices,), False
    families = _families(names if fields is None else fields)
    for members in families.values():
        while members[-1] not in names:
            members.pop()
    named = [name for name in FAMILIES if len(families.get(name, ())) > 1]
    if len(named) > 1:
        first, second = (families[name][0] for name in named[:2])
        raise DataError(
            f'{where}: both "{first}" and "{second}" could be the choices; rename or remove one'
        )
    if named:
        return tuple(families[named[0]]), False
    if not answers:
        return (), False
    for name, members in families.items():
        if WRONG.fullmatch(name):
            return tuple(members), True
    for name in names:
        if WRONG.fullmatch(plain(name)) and (
            fields is None
            or (_is_list(fields[name]) and not isinstance(fields[answers], list | dict))
        ):
            return (name,), True
    for name in ANSWER_FAMILIES:
        members = [member for member in families.get(name, ()) if member != answers]
        if len(members) > 1 and (fields is None or _points(fields[answers], members, fields)):
            return tuple(members), False
    return (), False


def _families(names: Iterable[str]) -> dict[str, list[str]]:
    """Return columns that end with a, b, ... or with 0 or 1 and so on, by the rest of the name."""
    found: dict[str, dict[str, str]] = {}
    for name in names:
        if match := _MEMBER.fullmatch(name.strip()):
            rest = plain(match[1]) if match[1] else ""
            if rest or not match[2].isdigit():
                found.setdefault(rest, {})[match[2].lower()] = name
    families = {}
    for rest, by in found.items():
        order = LETTERS.lower() if "a" in by else "0123456789" if "0" in by else "123456789"
        members = [by[sign] for sign in itertools.takewhile(by.__contains__, order)]
        if len(members) > 1 or (members and WRONG.fullmatch(rest)):
            families[rest] = members
    return families


def _may_be_options(name: str, names: Sequence[str]) -> bool:
    """Return whether the column of a table may hold options, one or all of them."""
    if _FLATTENED.fullmatch(name):
        return True
    listed = plain(name) in CHOICES or WRONG.fullmatch(plain(name)) is not None
    return listed or any(name in members for members in _families(names).values())


def _points(answer: Any, members: Sequence[str], fields: dict[str, Any]) -> bool:
    """Return whether an answer may be meant as one of the options in some columns."""
    if isinstance(answer, list) and len(answer) == 1:
        answer = answer[0]
    if (number := _whole(answer)) is not None:
        return 0 <= number <= len(members)
    text = str(answer).strip()
    if match := _LETTER.fullmatch(text):
        return match[1].upper() in LETTERS[: len(members)]
    return text in members or any(str(fields[member]).strip() == text for member in members)


def _is_list(value: Any) -> bool:
    with contextlib.suppress(ValueError):
        return isinstance(spelt(value), list)
    return False


def _pick(usual: Sequence[str], names: Sequence[str], named: str, kind: str, where: str) -> str:
    """Return the column that the user named, or else the one with a usual name, "" for none."""
    if named:
        return named if named in names else ""
    found = [name for known in usual for name in dict.fromkeys(names) if plain(name) == known]
    found = [name for name in found if name in OURS] or found
    if len(found) > 1 and kind:
        option = f"choose one: --{kind}-field {shlex.quote(found[0])}"
        remedy = "rename or remove one" if kind == "choices" else option
        raise DataError(
            f'{where}: both "{found[0]}" and "{found[1]}" could be the {kind}; {remedy}'
        )
    return found[0] if found else ""


def _refuse_unread_choices(fields: dict[str, Any], columns: Columns, where: str) -> None:
    """Refuse what may be choices under another name: the question would become an open one."""
    for name in fields.keys() - {columns.question, columns.answers}:
        near = difflib.get_close_matches(name, CHOICES, n=1, cutoff=0.8)
        if near and isinstance(fields[name], list) and fields[name]:
            raise DataError(f'{where}: did you mean "{near[0]}"? rename or remove "{name}"')
    if not columns.answers:
        return
    for members in _families(fields).values():
        kept = [name for name in members if name not in (columns.question, columns.answers)]
        texts = [name for name in kept if isinstance(fields[name], str)]
        if len(texts) > 1 and _points(fields[columns.answers], kept, fields):
            raise DataError(
                f'{where}: "{columns.answers}" may mean one of {", ".join(kept)}; rename these to '
                f"{', '.join(LETTERS[: len(kept)])} if they are the choices, or remove them"
            )


def _check_header(names: Sequence[str], data: DataSettings, where: str) -> None:
    """Refuse a table whose first line names nothing that is known: it may be a row."""
    known = {*QUESTION, *ANSWERS, *CHOICES, *OURS}
    named = {data.question_field, data.answer_field} & {*names}
    if named or any(plain(name) in known for name in names):
        return
    options = ",".join(LETTERS[: len(names) - 2]) if len(names) > 3 else ""
    example = ",".join(filter(None, ("question", options, "answer")))
    raise DataError(
        f'{where}: none of "{_shown(", ".join(names))}" is the name of a question or an answer; if '
        f"this is a row, add a line of names above it: {example}; if not, name the columns: "
        "--question-field NAME --answer-field NAME"
    )


def _missing(
    what: str, kind: str, every: Sequence[str], data: DataSettings, where: str
) -> DataError:
    """Return an error that names the column that is empty, or the one that may be meant."""
    named = {"question": data.question_field, "answer": data.answer_field}
    usual = {"question": QUESTION, "answer": ANSWERS}[kind]
    empty = [named[kind]] if named[kind] else [name for name in every if plain(name) in usual]
    known = {*OURS, *QUESTION, *ANSWERS, *CHOICES}
    others = [
        name
        for name in every
        if name and plain(name) not in known and name not in named.values()
        if not WRONG.match(plain(name))
    ]
    if empty or not others:
        error = Unanswered if empty and kind == "answer" else DataError
        return error(f'{where}: "{(empty or [what])[0]}" is missing or empty; add it')
    near = [name for name in others if difflib.get_close_matches(plain(name), usual, n=1)]
    near.sort(key=lambda name: name.strip().endswith("s"))  # many in one text cannot be told apart
    meant = near[0] if near else others[0] if len(others) == 1 else "NAME"
    return DataError(
        f'{where}: "{what}" is missing among the fields {", ".join(every)}; name the field with '
        f"the {kind}: --{kind}-field {shlex.quote(meant)}"
    )


def _log(source: str | Path, names: Sequence[str], columns: Columns) -> None:
    """Log which columns are read, unless all have the names in the manual."""
    read = [columns.question, *filter(None, [columns.answers]), *columns.choices]
    ignored = [name for name in names if name and name not in read and name not in OURS]
    if ignored or not set(read) <= set(OURS):
        parts = [f"question in {columns.question}"]
        parts += [f"answers in {columns.answers}"] if columns.answers else []
        kind = "wrong choices" if columns.wrong else "choices"
        parts += [f"{kind} in {', '.join(columns.choices)}"] if columns.choices else []
        rest = f"; ignored: {', '.join(ignored)}" if ignored else ""
        note(f"{source}: {', '.join(parts)}{rest}")


def _shown(text: str) -> str:
    short = " ".join(text.split())
    return short if len(short) <= 60 else f"{short[:57]}..."


def _spelt(value: Any, what: str) -> Any:
    try:
        return spelt(value)
    except ValueError:
        raise DataError(
            f"{what} cannot be read: {_shown(value)}; save the data again as Parquet or JSON "
            'Lines, or write the cell as JSON: ["Paris", "the capital"]'
        ) from None


def _unfolded(fields: dict[str, Any], name: str, where: str) -> Any:
    """Return the accepted texts of an answer as SQuAD, TriviaQA, GSM8K and PopQA have it.

    Any other value stays as it is.
    """
    what = f'{where}: "{name}"'
    value = _spelt(fields[name], what)
    if (
        isinstance(value, Untyped)
        and plain(name).endswith("answers")
        and re.search(r"\S;\s*\S|[^\s|]\s*\|\s*[^\s|]", value)
    ):
        raise DataError(f'{what} may be several texts: {_shown(value)}; write a list: ["a", "b"]')
    if isinstance(value, str):
        last = value.rpartition("\n#### ")[2]
        return _spelt(next(iter(boxed(value)), last), what)
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


def _is_flagged(value: dict[str, Any]) -> bool:
    return any(flag is False and plain(name).endswith("correct") for name, flag in value.items())


def _accepted(value: Any) -> Any:
    """Return the accepted texts in an object: its text, or its value and the aliases."""
    if not isinstance(value, dict) or not (key := _key(value, ("text", "value", "span"))):
        return value
    others = value.get(_key(value, ("aliase",))) or []  # without its s
    first = value[key]
    return [
        *(first if isinstance(first, list) else [first]),
        *(others if isinstance(others, list) else [others]),
    ]


def _choices(
    fields: dict[str, Any], columns: Columns, where: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the choices, and their labels if they have any, as in ARC and MedQA."""
    if not columns.choices:
        return (), ()
    what = f'{where}: "{columns.choices[0]}"'
    labels: Any = ()
    if columns.wrong:
        value = [fields[name] for name in columns.choices if not _is_empty(fields[name])]
        value = _spelt(value[0], what) if len(columns.choices) == 1 and value else value
        right = _texts(_unfolded(fields, columns.answers, where), f'{where}: "{columns.answers}"')
        choices = (*right[:1], *_texts(value, what))
        # in an order that says nothing about which is right
        return tuple(sorted(dict.fromkeys(choices), key=_mixed)), ()
    if len(columns.choices) > 1:
        texts = tuple(_text(fields[key], f'{where}: "{key}"') for key in columns.choices)
        return texts, columns.choices
    value = _spelt(fields[columns.choices[0]], what)
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        label, text = (_key(value[0], names) for names in SHAPES)
        labels = [item.get(label) for item in value] if label else ()
        value = [item.get(text) for item in value]
    elif isinstance(value, dict) and (key := _key(value, ("text",))):
        value, labels = value[key], value.get(_key(value, ("label",))) or ()
    elif isinstance(value, dict):  # {"A": "21", "B": "23"}
        labels = [label for label, text in value.items() if text is not None]
        value = [value[label] for label in labels]
    choices = _texts(value, what)
    own = [_OWN_LETTER.match(text) for text in choices]
    if [match and match[1].upper() for match in own] == [*LETTERS[: len(choices)]]:
        choices = tuple(
            text[match.end() :] for text, match in zip(choices, own, strict=True) if match
        )
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


def _whole(value: Any) -> int | None:
    """Return a whole number, also one that is written as a text, None for any other value."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
        return None
    return int(float(value)) if _WHOLE.fullmatch(str(value).strip()) else None


def _counts(row: Row, data: DataSettings) -> tuple[int, int] | None:
    """Return the number that a row's answer must be, as it is no choice, and how many there are."""
    with contextlib.suppress(DataError):
        fields = _flat(row, data)
        columns = _find(_filled(fields), data, row.where, fields)
        if columns.choices and columns.answers and not columns.wrong:
            choices, labels = _choices(fields, columns, row.where)
            answer = _unfolded(fields, columns.answers, row.where)
            number = _whole(answer)
            if number is not None and str(number) not in {*choices, *labels}:
                return number, len(choices)
    return None


def _counted_from(row: Row, data: DataSettings) -> int | None:
    """Return whether the numbers of answers count from 0 or from 1, None if no row tells."""
    if isinstance(row, SourceRow):
        path = Path(row.source)
        stamp = path.stat().st_mtime_ns if path.is_file() else 0
        return _count_source(row.source, row.data, stamp)
    return _first_place([row], data)


@functools.lru_cache
def _count_source(source: str, data: DataSettings, stamp: int) -> int | None:
    return _first_place(question_rows(source, data), data, source)


def _first_place(rows: Iterable[Row], data: DataSettings, source: str = "") -> int | None:
    zero = last = ""
    for row in rows:
        number, count = _counts(row, data) or (-1, 0)
        zero = zero or row.where * (number == 0)
        last = last or row.where * (number == count)
    if zero and last:
        raise DataError(
            f"{zero} counts the choices from 0 and {last} from 1; write letters: A, B, ..."
        )
    if source and last:
        note(f"{source}: the answers count the choices from 1")
    return 0 if zero else 1 if last else None


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
    meant = {place for place, choice in enumerate(choices) if choice == text}
    problem = ""
    if columns.wrong:
        return letters[meant.pop()]
    if (match := _LETTER.fullmatch(text)) and match[1].upper() in tuple(letters):
        meant.add(letters.index(match[1].upper()))
    number = _whole(answer)
    if number is not None:
        first = _counted_from(row, row.data if isinstance(row, SourceRow) else DataSettings())
        if first is None and len(columns.choices) > 1 and not meant:
            problem = "may count from 0 or from 1, and no row tells which"
        # A number written as a text is an index only if it is no choice, or others are.
        elif not (meant and isinstance(answer, str) and first is None):
            meant |= {number - (first or 0)} & set(range(len(choices)))
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
