"""Find the columns of a question in a row of the user's own data, or in the header of a table.

    {"question": "Who wrote Middlemarch?", "answers": ["George Eliot", "Mary Ann Evans"]}
    {"question": "Which is a prime?", "choices": ["4", "7", "9"], "answer": "B"}

The usual other names and shapes are recognised, settings name any other columns, and all further
ones are ignored. `grace.tasks.values` reads what the columns hold.
"""

from __future__ import annotations

import contextlib
import difflib
import itertools
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from grace.answers import LETTERS
from grace.config import DataSettings
from grace.errors import DataError
from grace.store.inputs import QUESTION, Row, bare, is_about, plain, spelt
from grace.tasks.rows import note

ANSWERS = (
    *("answers", "answer", "answerkey", "correctanswer", "target", "label", "gold"),
    *("possibleanswers", "cop", "correctoption", "answeridx", "answerindex"),
    *("correctanswernum", "answersspans", "answernumber"),
)
POINTING = (  # numbers are of choices
    *("label", "cop", "correctoption", "answeridx", "answerindex", "correctanswernum"),
)
TRUTH = (  # if there is one, `answer` may be what a model said
    *("gold", "goldanswer", "groundtruth", "groundtruths", "reference", "referenceanswer"),
    *("correctanswer", "expected", "expectedanswer", "expectedoutput"),
    *("answernumber", "answertext", "finalanswer", "shortanswer", "exactanswer"),
)
ALIASES = ("aliases", "answeraliases", "synonyms", "alternativeanswers", "acceptedanswers")
MEANT = re.compile(
    r"answer|correct|target|gold|solution|truth|reference|ideal|expected|decision|verdict"
)
CHOICES = ("choices", "options", "endings", "candidates", "alternatives", "answerchoices")
FAMILIES = ("", "option", "opt", "op", "choice", "alternative", "candidate", "ending", "mcanswer")
ANSWER_FAMILIES = ("answer", "ans", "sol")  # options only if the answer points at one
WRONG = re.compile(r"(distractor|incorrect|wrong)(answer|option|choice)?s?")
OURS = ("question", "answers", "answer", "choices", "id", "split", "group", "source", "meta")
SHAPES = ("label", "id", "key", "letter"), ("text", "stem", "value", "content", "question")
_MEMBER = re.compile(r"(.*?)[\s_-]*([a-j]|\d)", re.IGNORECASE | re.DOTALL)
LETTER = re.compile(r"\(?([A-J])[).:]?", re.IGNORECASE)
_WHOLE = re.compile(r"-?\d{1,9}(?:\.0+)?")
_LIKE_CHOICES = re.compile(r"(option|choice)s?\Z")
_FLATTENED = re.compile(r"([^.]+)\.(\w+)")
_TOLD = re.compile(r"\w*(?<!in)(?<!not)correct")  # whether an option is right, not whether wrong
_TOLD_IN = re.compile(r".*(?:context|passage|paragraph|sentence|text|content)s?")
_FLAGGED = re.compile(r"mc\d*targets|targetscores")  # options, each with 1 if it is right, else 0


class Unanswered(DataError):
    """A question whose row says that it has no answer."""


class Columns(NamedTuple):
    """The columns of a question."""

    question: str
    answers: str
    choices: tuple[str, ...]  # one with a list, or one per option
    wrong: bool = False  # the choices are the wrong ones, and the answer is the other


def row_columns(row: Row, data: DataSettings) -> tuple[dict[str, Any], Columns]:
    """Return the fields of a row as they are read, and which of them are the question's."""
    fields = _flat(row, data)
    return fields, _find(fields, data, row.where)


def row_options(row: Row) -> tuple[dict[str, Any], Columns]:
    """Return the fields of a row, and the columns of its options and of its answer, if any."""
    fields = _flat(row, DataSettings())
    names = _filled(fields)
    answers = _pick(ANSWERS, names, "", "", row.where)
    return fields, Columns("", answers, *_option_columns(fields, names, answers, row.where))


def table_columns(names: Sequence[str], data: DataSettings, source: str) -> Sequence[str]:
    """Return the columns of a table that are to be read; all where any may be the answers."""
    if source.endswith((".csv", ".tsv")):
        _check_header(names, data, f"{source}:1 (column names)")
    fields = ((data.question_field, QUESTION), (data.answer_field, ANSWERS))
    for named, usual in fields:
        if not (named in names if named else any(plain(name) in usual for name in names)):
            return names
    return columns_to_read(names, (*filter(None, dict(fields)), *OURS, *QUESTION, *TRUTH, *ALIASES))


def columns_to_read(names: Sequence[str], known: Collection[str]) -> list[str]:
    """Return the columns of a table with a known name, or that may hold options or the answer."""
    families = [member for members in _families(names).values() for member in members]
    return [
        name
        for name in names
        if {name, name.strip().lower(), plain(name)} & {*known, *CHOICES, *ANSWERS, *families}
        or WRONG.fullmatch(plain(name))
        or _FLAGGED.fullmatch(plain(name))
        or _LIKE_CHOICES.search(plain(name))
        or _is_flattened(name)
        or is_about(name)
    ]


def passage_in(fields: dict[str, Any], columns: Columns | None = None) -> tuple[str, list[str]]:
    """Return the text that a question is about, "" for none, and the columns that hold it."""
    used = () if columns is None else (columns.question, columns.answers, *columns.choices)
    found = {name: _prose(fields[name]) for name in fields if is_about(name) and name not in used}
    texts = {name: text for name, text in found.items() if re.search(r"\s|[^\x00-\x7f]", text)}
    return "\n\n".join(texts.values()), [*texts]


def _prose(value: Any) -> str:
    """Return the texts in a value, one below the other, also in the shapes of HotpotQA."""
    with contextlib.suppress(ValueError):
        value = spelt(value)
    if isinstance(value, dict):
        texts = (part for name, part in value.items() if _TOLD_IN.fullmatch(plain(str(name))))
        value = next(texts, None)
    if isinstance(value, list):
        return "\n".join(filter(None, map(_prose, value)))
    return value.strip() if isinstance(value, str) else ""


def log_columns(source: str | Path, table: Sequence[str], row: Row, data: DataSettings) -> None:
    """Log which columns are read, unless all have the names in the manual."""
    fields, columns = row_columns(row, data)
    answers = columns.answers or _pick(ANSWERS, list(fields), data.answer_field, "", row.where)
    read = [columns.question, *filter(None, [answers]), *columns.choices]
    names, about = table or _filled(fields), passage_in(fields, columns)[1]
    ignored = [
        name
        for name in names
        if name and name not in (*read, *about, *OURS) and plain(name) not in ALIASES
    ]
    if ignored or about or not set(read) <= set(OURS):
        below = f", below {' and '.join(about)}" if about else ""
        parts = [f"question in {columns.question}{below}"]
        parts += [f"answers in {answers}"] if answers else []
        kind = "wrong choices" if columns.wrong else "choices"
        parts += [f"{kind} in {', '.join(columns.choices)}"] if columns.choices else []
        rest = f"; ignored: {', '.join(ignored)}" if ignored else ""
        note(f"{source}: {', '.join(parts)}{rest}")


def _find(fields: dict[str, Any], data: DataSettings, where: str) -> Columns:
    """Return the columns of the question among the fields of a row."""
    for kind, named in (("question", data.question_field), ("answer", data.answer_field)):
        if named and named not in fields:
            near = difflib.get_close_matches(named, fields, n=1, cutoff=0.8)
            remedy = f"did you mean {near[0]}?" if near else f"name one: --{kind}-field NAME"
            raise DataError(f'{where}: no field "{named}" among {", ".join(fields)}; {remedy}')
    names = _filled(fields)
    question = _pick(QUESTION, names, data.question_field, "question", where)
    if not question:
        raise missing("question", "question", fields, data, where)
    answered = [name for name in names if not is_empty(fields[name])]
    answers = _pick(ANSWERS, answered, data.answer_field, "answer", where)
    found = Columns(question, answers, *_option_columns(fields, names, answers, where))
    return found if found.choices else _pointed_at(fields, found, data)


def _pointed_at(fields: dict[str, Any], found: Columns, data: DataSettings) -> Columns:
    """Return the columns where several `answers` are the options, of which another names one."""
    keys = [data.answer_field] if data.answer_field else [n for n in fields if plain(n) in POINTING]
    for name in (one for one in fields if plain(one) == "answers" and one not in keys):
        options: Any = spelt(fields[name]) if keys else None
        if isinstance(options, list) and len(options) > 2:  # two may be one answer in two ways
            texts = {str(one): one for one in options}
            if key := next((key for key in keys if _points(fields[key], [*texts], texts)), ""):
                return Columns(found.question, key, (name,))
    return found


def _flat(row: Row, data: DataSettings) -> dict[str, Any]:
    """Return a row's fields with those of a question that is an object, as in the raw ARC.

    Options that say which is right become the right answer and wrong ones.
    """
    fields = within(row.fields, data)
    parts = {name: name.split(".", 1) for name in fields if _is_flattened(name)}
    if parts:
        fields = {name: value for name, value in fields.items() if name not in parts} | {
            whole: {
                key: spelt_in(fields[name], f'{row.where}: "{name}"')
                for name, (of, key) in parts.items()
                if of == whole
            }
            for whole, _ in parts.values()
        }
    for name, value in fields.items():
        if isinstance(value, dict) and (name == data.question_field or plain(name) in QUESTION):
            key = key_among(value, SHAPES[1])
            rest = {k: v for k, v in value.items() if k != key and k not in fields}
            fields = {**rest, **fields, name: value[key]} if key else fields
            break
    answers = [name for name in fields if plain(name) in ANSWERS or name == data.answer_field]
    for name in fields:
        told = _FLAGGED.fullmatch(plain(name)) or plain(name) in (*ANSWERS, *CHOICES)
        if told and all(is_empty(fields[one]) for one in answers if one != name):
            flags = _flags(fields[name], plain(name))
            right = [text for text, flag in flags if flag]
            if len(right) == 1 < len(flags):
                rest = {k: v for k, v in fields.items() if k != name and k not in answers}
                return {
                    **rest,
                    "answer": right[0],
                    "wrong": [text for text, flag in flags if not flag],
                }
    return fields


def within(fields: dict[str, Any], data: DataSettings) -> dict[str, Any]:
    """Return a row with the fields of the object that holds the question, if only that does.

    lm-evaluation-harness keeps it as `doc`, beside a `target` of its own.
    """

    def asks(names: Iterable[str]) -> bool:
        return any(plain(str(name)) in QUESTION or name == data.question_field for name in names)

    inner = [name for name, value in fields.items() if isinstance(value, dict) and asks(value)]
    if len(inner) != 1 or asks(fields):
        return fields
    own: dict[str, Any] = fields[inner[0]]
    answered = any(plain(str(name)) in ANSWERS for name in own)
    outer = {
        name: value
        for name, value in fields.items()
        if name != inner[0] and not (answered and plain(name) in ANSWERS)
    }
    return outer | {name: value for name, value in own.items() if name != "id"}


def _is_flattened(name: str) -> bool:
    match = _FLATTENED.fullmatch(name)
    return match is not None and plain(match[1]) in (*QUESTION, *ANSWERS, *CHOICES)


def _flags(value: Any, name: str) -> list[tuple[Any, bool]]:
    """Return options with whether each is right, [] where they do not tell it."""
    with contextlib.suppress(ValueError):
        value = spelt(value)
    pairs: list[tuple[Any, Any]] = []
    if isinstance(value, list) and all(isinstance(one, dict) for one in value):
        for one in value:
            flag = [given for key, given in one.items() if _TOLD.fullmatch(plain(str(key)))]
            text = key_among(one, SHAPES[1])
            pairs.append((one[text], flag[0]) if text and len(flag) == 1 else (None, None))
    elif isinstance(value, dict) and _FLAGGED.fullmatch(name):
        keys = key_among(value, ("choice",)), key_among(value, ("label",))
        lists = [value[key] for key in keys if key and isinstance(value[key], list)]
        pairs = [*zip(*lists, strict=False)] if len(lists) == 2 else [*value.items()]
    return pairs if all(flag in (0, 1) and flag is not None for _, flag in pairs) else []


def _filled(fields: dict[str, Any]) -> list[str]:
    """Return the columns with a value; an empty question beside another is none."""
    asked = [name for name in fields if plain(name) in QUESTION]
    empty = {name for name in asked if is_empty(fields[name])}
    return [
        name
        for name, value in fields.items()
        if value is not None
        and not (plain(name) in CHOICES and is_empty(value))
        and not (name in empty and len(empty) < len(asked))
    ]


def _option_columns(
    fields: dict[str, Any], names: Sequence[str], answers: str, where: str
) -> tuple[tuple[str, ...], bool]:
    """Return the columns with a list of options, or with one each; and whether they are wrong."""
    if choices := _pick(CHOICES, names, "", "choices", where):
        return (choices,), False
    families = _families(fields)
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
        single = not isinstance(fields[answers], list | dict)
        if WRONG.fullmatch(plain(name)) and single and _is_list(fields[name]):
            return (name,), True
    for name in ANSWER_FAMILIES:
        members = [member for member in families.get(name, ()) if member != answers]
        if len(members) > 1 and _points(fields[answers], members, fields):
            return tuple(members), False
    return (), False


def _families(names: Iterable[str]) -> dict[str, list[str]]:
    """Return columns that end with a, b, ... or with 0 or 1 and so on, by the rest of the name."""
    found: dict[str, dict[str, str]] = {}
    for name in names:
        if match := _MEMBER.fullmatch(bare(name)):
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


def _points(answer: Any, members: Sequence[str], fields: dict[str, Any]) -> bool:
    """Return whether an answer may be meant as one of the options in some columns."""
    if isinstance(answer, list) and len(answer) == 1:
        answer = answer[0]
    if (number := whole_number(answer)) is not None and 0 <= number <= len(members):
        return True
    text = str(answer).strip()
    if match := LETTER.fullmatch(text):
        return match[1].upper() in LETTERS[: len(members)]
    if len(several := re.split(r"\s*[,;&]\s*", text)) > 1:
        return all(_points(one, members, fields) for one in several)
    return text in members or any(str(fields[member]).strip() == text for member in members)


def _is_list(value: Any) -> bool:
    with contextlib.suppress(ValueError):
        return isinstance(spelt(value), list)
    return False


def _pick(usual: Sequence[str], names: Sequence[str], named: str, kind: str, where: str) -> str:
    """Return the column that the user named, or else the one with a usual name, "" for none."""
    if named:
        return named if named in names else ""
    known = {name: plain(name) for name in names}
    found = [name for one in usual for name in known if known[name] == one]
    whole = [name for name in found if bare(name) == name.strip()]  # not Answer - explanation
    found = [name for name in found if name in OURS] or whole or found
    if len(found) > 1 and kind:
        option = f"choose one: --{kind}-field {shlex.quote(found[0])}"
        remedy = "rename or remove one" if kind == "choices" else option
        raise DataError(
            f'{where}: both "{found[0]}" and "{found[1]}" could be the {kind}; {remedy}'
        )
    return found[0] if found else ""


def refuse_unread_choices(fields: dict[str, Any], columns: Columns, where: str) -> None:
    """Refuse what may be choices under another name: the question would become an open one."""
    for name in fields.keys() - {columns.question, columns.answers}:
        if not _is_list(fields[name]) or is_empty(fields[name]):
            continue
        near = difflib.get_close_matches(name, CHOICES, n=1, cutoff=0.8)
        if near := near or [f"{one}s" for one in _LIKE_CHOICES.findall(plain(name))]:
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
        f'{where}: none of "{shortened(", ".join(names))}" is the name of a question or an answer; '
        f"if this is a row, add a line of names above it: {example}; if not, name the columns: "
        "--question-field NAME --answer-field NAME"
    )


def missing(
    what: str,
    kind: str,
    every: Mapping[str, Any],
    data: DataSettings,
    where: str,
    is_one: Callable[[str], bool] = bool,
) -> DataError:
    """Return an error that names the column that is empty, or the one that may be meant.

    `is_one` says whether a column would be read if it were named.
    """
    named = {"question": data.question_field, "answer": data.answer_field}
    usual = {"question": QUESTION, "answer": ANSWERS}[kind]
    empty = [named[kind]] if named[kind] else [name for name in every if plain(name) in usual]
    known = {*OURS, *QUESTION, *ANSWERS, *CHOICES}
    others = [
        name
        for name in every
        if name and plain(name) not in known and name not in named.values()
        if not WRONG.match(plain(name)) and is_one(name)
    ]
    if empty or not others:
        error = Unanswered if empty and kind == "answer" else DataError
        return error(f'{where}: "{(empty or [what])[0]}" is missing or empty; add it')
    members = {name for family in _families(every).values() for name in family}
    others = [name for name in others if name not in members] or others
    near = [
        name
        for name in others
        if (kind == "answer" and MEANT.search(plain(name)))
        or difflib.get_close_matches(plain(name), usual, n=1, cutoff=0.8)
    ]
    # many in one text cannot be told apart, and what is long is an explanation
    near.sort(key=lambda name: (name.strip().endswith("s"), len(str(every[name]))))
    meant = near[0] if near else others[0] if len(others) == 1 else "NAME"
    return DataError(
        f'{where}: "{what}" is missing among the fields {", ".join(every)}; name the field with '
        f"the {kind}: --{kind}-field {shlex.quote(meant)}"
    )


def key_among(value: dict[str, Any], names: Sequence[str]) -> str:
    """Return the key of an object that has one of some names, "" for none."""
    spelling = {plain(str(key)).removesuffix("s"): key for key in value}
    return next((spelling[name] for name in names if name in spelling), "")


def is_empty(value: Any) -> bool:
    """Return whether a value says that there is none: null, nan, "", [], or an object of these."""
    with contextlib.suppress(ValueError):
        value = spelt(value)
    if isinstance(value, dict) and (key := key_among(value, SHAPES[1])):
        return is_empty(value[key])
    return value is None or value != value or value in ([], {}) or not str(value).strip()


def whole_number(value: Any) -> int | None:
    """Return a whole number, also one that is written as a text, None for any other value."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
        return None
    return int(float(value)) if _WHOLE.fullmatch(str(value).strip()) else None


def spelt_in(value: Any, what: str) -> Any:
    """Return the list or object that a cell spells, any other value as it is; `what` names it."""
    try:
        return spelt(value)
    except ValueError:
        raise DataError(
            f"{what} cannot be read: {shortened(value)}; save the data again as Parquet or JSON "
            'Lines, or write the cell as JSON: ["Paris", "the capital"]'
        ) from None


def shortened(text: str) -> str:
    """Return a text for an error message."""
    short = " ".join(text.split())
    return short if len(short) <= 60 else f"{short[:57]}..."
