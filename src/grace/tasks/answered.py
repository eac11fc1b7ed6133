"""Answers of a model in a user's file: what was asked, what was said, and what is known of it.

Every command and function that takes answers reads them here, from any source of
`grace.store.inputs`, a directory of `grace label` included, or from rows in Python.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import reprlib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

from grace.errors import DataError
from grace.records import Message
from grace.store import is_run, is_study
from grace.store.inputs import Bad, Row, Untyped, read_rows, spelt
from grace.tasks.columns import columns_to_read, passage_in
from grace.tasks.conversations import is_conversation, read_conversation
from grace.tasks.draw import asked_key
from grace.tasks.logs import row_of_log
from grace.tasks.rows import file_of, note
from grace.tasks.values import read_options

PROMPTS = ("question", "prompt", "messages")
LIKELIHOODS = ("mean_probability", "least_probability")
"""What `grace score` writes of the tokens of a field: their geometric mean, and the least."""
FIELDS = (
    *(*PROMPTS, "choices", "response", "text", "finish_reason", "logprobs", "end_logprob"),
    *("question_id", "id", "group", "source", "confidence", "familiar", "fields", "correct"),
)


class RatedField(NamedTuple):
    """A graded field of a structured answer; `likelihoods` are its `LIKELIHOODS`, if known."""

    confidence: float | None
    correct: bool
    likelihoods: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Answered:
    """An answer of a model, in a row of the user's data.

    What the row holds is read where it is asked for, and then refused if it is missing or wrong: so
    a command needs only the columns that it uses. Names count in any case.
    """

    where: str  # its place, for errors
    written: dict[str, Any]  # as it is in the source

    @functools.cached_property
    def known(self) -> dict[str, Any]:
        """The fields, also under their names in lower case."""
        lower = {name.strip().lower(): value for name, value in self.written.items()}
        return self.written if lower.keys() == self.written.keys() else lower | self.written

    @functools.cached_property
    def asked(self) -> str | list[Message]:
        """A question for the model's own prompt, or the conversation before the answer."""
        keys = [key for key in PROMPTS if self.known.get(key) is not None]
        wanted = ", ".join(PROMPTS)
        if len(keys) > 1:
            raise DataError(
                f"{self.where}: found {' and '.join(keys)}; give exactly one of {wanted}"
            )
        if not keys:
            names = ", ".join(self.written)
            raise DataError(
                f"{self.where}: none of {wanted} among the fields {names}; add one, or rename one"
            )
        key, value = keys[0], self.known[keys[0]]
        value = _turns(value) or value
        if key == "messages" or is_conversation(value):
            return read_conversation(value, f"{self.where}: {key}")
        if not isinstance(value, str) or not value.strip():
            raise DataError(f"{self.where}: {key} is {value!r}; write a text that is not empty")
        if key != "question":
            return [{"role": "user", "content": value}]
        if about := passage_in(self.written)[1]:
            note(f"{file_of(self.where)}: questions below {' and '.join(about)}")
        return self._question

    @functools.cached_property
    def _question(self) -> str:
        """The question below what it is about, "" where there is none."""
        text, (passage, _) = _as_text(self.known.get("question")).strip(), passage_in(self.written)
        return f"{passage}\n\n{text}" if text and passage and passage not in text else text

    @property
    def messages(self) -> Sequence[Message]:
        """The conversation, empty for a question."""
        return () if isinstance(self.asked, str) else self.asked

    @functools.cached_property
    def choices(self) -> tuple[str, ...]:
        """The options of a question, () for an open one."""
        if isinstance(self.asked, str):
            return read_options(Row(self.where, self.written))
        if self.known.get("choices"):
            key = next(key for key in PROMPTS if self.known.get(key) is not None)
            raise DataError(
                f"{self.where}: choices belong to a question; write them into the {key}"
            )
        return ()

    @property
    def response(self) -> str:
        """The answer, which `grace label` calls `text`."""
        given = _first(self.known, "response", "text")
        if isinstance(given, str):
            return given
        name = next((name for name in ("response", "text") if name in self.known), "")
        if not name:
            raise DataError(
                f'{self.where}: "response" is missing among the fields {", ".join(self.written)}; '
                "rename the one with the model's answer"
            )
        if given is None:
            raise DataError(
                f"{self.where}: {name} is null or an empty cell; write a text, leave the row out, "
                'or write "" in JSON Lines for an answer without text'
            )
        raise DataError(f"{self.where}: response is {reprlib.repr(given)}; write it as a text")

    @property
    def shown(self) -> str:
        """The answer as it can be shown, "" where there is none."""
        given = _first(self.known, "response", "text")
        return "" if given is None else str(given)

    @property
    def is_cut(self) -> bool:
        """Whether the answer reached the longest length that was allowed."""
        return self.known.get("finish_reason") == "length"

    @property
    def confidence(self) -> float | None:
        """The confidence, None where it is null."""
        if "confidence" not in self.known:
            remedy = "rename the field with it, or let `grace score` add it"
            raise DataError(f'{self.where}: "confidence" is missing; {remedy}')
        return self._share(self.known["confidence"], "confidence")

    @property
    def familiar(self) -> float | None:
        """How like the prompts of the fit the prompt is, as `grace score` says."""
        return self._share(self.known.get("familiar"), "familiar")

    @functools.cached_property
    def grades(self) -> bool | dict[str, bool] | None:
        """The grade of the answer, or those of its fields; None where nothing is graded."""
        if "correct" not in self.known:
            raise DataError(
                f'{self.where}: "correct" is missing; add it: true, false, or null if unknown'
            )
        value = _parsed(self.known["correct"])
        if not isinstance(value, dict):
            return _grade(value, f"{self.where}: correct")
        each = {name: _grade(v, f"{self.where}: correct of {name!r}") for name, v in value.items()}
        return {name: one for name, one in each.items() if one is not None} or None

    @property
    def correct(self) -> bool | None:
        """Whether the answer is right, all of its graded fields; None where that is not known."""
        return all(self.grades.values()) if isinstance(self.grades, dict) else self.grades

    @functools.cached_property
    def fields(self) -> dict[str, RatedField]:
        """The fields that have a confidence, as `grace score` writes them, and a grade."""
        rated, grades = _parsed(self.known.get("fields")), self.grades
        if not isinstance(rated, dict) or not isinstance(grades, dict):
            return {}
        found = {}
        for name in grades.keys() & rated.keys():
            about = rated[name] if isinstance(rated[name], dict) else {"confidence": rated[name]}
            c, *given = (
                self._share(about.get(key), f"the {key.replace('_', ' ')} of the field {name!r}")
                for key in ("confidence", *LIKELIHOODS)
            )
            both = tuple(one for one in given if one is not None)
            full = both if len(both) == len(LIKELIHOODS) else None
            found[name] = RatedField(c, grades[name], full)
        return found

    @functools.cached_property
    def logprobs(self) -> tuple[float, ...]:
        """The log-probabilities of its tokens and, last, of its end, if that has one; () if cut."""
        tokens, end = (_parsed(self.known.get(key)) for key in ("logprobs", "end_logprob"))
        if tokens is None or self.is_cut or (end is None and "end_logprob" in self.known):
            return ()
        try:
            if isinstance(tokens, dict):  # of a chat, or of a completion
                tokens = tokens["content" if "content" in tokens else "token_logprobs"] or ()
            each = [one["logprob"] if isinstance(one, dict) else one for one in tokens]
            return (*map(float, each), *([] if end is None else [float(end)]))
        except (KeyError, TypeError, ValueError):
            raise DataError(
                f"{self.where}: logprobs must be a list of numbers and end_logprob a number, as "
                "`grace label` writes them, or logprobs as OpenAI's API has them; correct them or "
                "leave both out"
            ) from None

    @property
    def has_end(self) -> bool:
        """Whether the last of its log-probabilities is that of its end."""
        return bool(self.logprobs) and "end_logprob" in self.known

    @property
    def likelihood(self) -> float | None:
        """The geometric mean of the probabilities of its tokens and its end, if they are known."""
        sum_ = math.fsum(self.logprobs)
        return min(1.0, math.exp(sum_ / len(self.logprobs))) if self.logprobs else None

    @property
    def source(self) -> str:
        """The kind of its question, "" where none is named."""
        return _as_text(self.known.get("source")).strip()

    def of(self, source: str) -> Answered:
        """Return the answer as one of another source."""
        return dataclasses.replace(self, written=self.written | {"source": source})

    @functools.cached_property
    def names(self) -> tuple[str, str]:
        """What tells its question from others, and what shows it: its text, or else its name."""
        named = _as_text(self.known.get("question_id"))
        key = next((key for key in (*PROMPTS, "id") if _as_text(self.known.get(key))), "")
        asked = self._question if key == "question" else _as_text(self.known.get(key))
        if key == "question":
            asked = " ".join(filter(None, (asked, " / ".join(self._options))))
        return named or asked, asked or named

    @functools.cached_property
    def keys(self) -> tuple[Hashable, ...]:
        """Its keys: answers that share one stay together in folds and resamples."""
        named = [(key, _as_text(self.known.get(key))) for key in ("group", "question_id")]
        found: list[Hashable] = [key for key in named if key[1]]
        if self._question:
            found.append(asked_key(self._question, self._options))
        for key in ("messages", "prompt", "id"):
            if not found and (text := _as_text(self.known.get(key))):
                turns = _turns(self.known[key]) or [{"role": "user", "content": text}]
                found.append((key, text) if key == "id" else asked_key(turns))
        return tuple(found)

    @functools.cached_property
    def _options(self) -> tuple[str, ...]:
        """What tells questions of one wording apart: their options, whatever they hold."""
        try:
            return read_options(Row(self.where, self.written))
        except DataError:
            return (str(self.known.get("choices", "")),)

    def _share(self, given: Any, name: str) -> float | None:
        """Return a number from 0 to 1, None where it is null."""
        value = _parsed(given)
        if value is None:
            return None
        is_number = isinstance(value, Real | Decimal) and not isinstance(value, bool)
        if not is_number or not 0 <= value <= 1:
            raise DataError(
                f"{self.where}: {name} is {json.dumps(value, default=str)}; write a number from 0 "
                "to 1, or null for none"
            )
        return float(value)


def read_answers(
    source: str | Path | Iterable[Mapping[str, Any]], *, every: bool = False, bad: Bad | None = None
) -> Iterator[Answered]:
    """Yield the answers of a source, with `every` column, not only those that a record reads.

    `bad` gets the errors of lines that cannot be read, and reading goes on.
    """
    if not isinstance(source, str | Path):
        for number, fields in enumerate(source):
            if not isinstance(fields, Mapping):
                raise DataError(
                    f"row {number} is {type(fields).__name__}; give each row as a dict, as in "
                    "df.to_dict('records') of a DataFrame, or name a file"
                )
            yield Answered(f"row {number}", _unwrapped(_plain(fields)))
        return
    if is_run(Path(source)) or is_study(Path(source)):
        raise DataError(
            f"{source} is a run, whose answers are rated and measured: see `grace report {source}`"
        )
    choose = None if every else functools.partial(columns_to_read, known=FIELDS)
    for where, fields in read_rows(source, choose=choose, bad=bad):
        yield Answered(where, _unwrapped(fields))


def _first(fields: Mapping[str, Any], *names: str) -> Any:
    """Return the first value that is not null."""
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def _turns(value: Any) -> list[Any]:
    """Return the turns that a value is or spells, [] if it is no conversation."""
    read = _parsed(value)
    whole = is_conversation(read) and all(
        isinstance(turn.get(key), str) for turn in read for key in ("role", "content")
    )
    return read if whole else []


def _unwrapped(fields: dict[str, Any]) -> dict[str, Any]:
    """Return a row whose answer is in the reply of an API, or in the log of a harness."""
    if logged := row_of_log(fields):
        fields = logged
    known = {name.strip().lower(): value for name, value in fields.items()}
    given: Any = _first(known, "response", "text")
    turns = _turns(known.get("messages"))
    found: dict[str, Any] = {}
    if given is None and turns and turns[-1]["role"] == "assistant":
        found, given = {"messages": turns[:-1]}, turns[-1]["content"]
    elif isinstance(given, str):
        return fields
    if (text := _text_in(given)) is None:
        return fields
    for step in ("body", "choices", 0):  # to what stands beside the text
        with contextlib.suppress(KeyError, TypeError, IndexError):
            given = given[step]
    beside = given if isinstance(given, dict) else {}
    told = {name: beside[name] for name in ("finish_reason", "logprobs") if beside.get(name)}
    found["response"] = text
    kept = {name: one for name, one in fields.items() if name.strip().lower() not in found}
    return told | kept | found


def _text_in(value: Any) -> str | None:
    """Return the only text in a reply of an API, None for none or several."""
    if isinstance(value, list):
        texts = [text for text in map(_text_in, value) if text is not None]
        return texts[0] if len(texts) == 1 else None
    if isinstance(value, dict):
        names = ("body", "choices", "message", "output", "content", "text")
        return next((_text_in(value[name]) for name in names if value.get(name)), None)
    return value if isinstance(value, str) else None


def _grade(given: Any, what: str) -> bool | None:
    value = _parsed(given)
    if value is not None and value not in (True, False):
        shown = json.dumps(value, default=str)
        raise DataError(f"{what} is {shown}; write true, false, or null if unknown")
    return None if value is None else bool(value)


def _parsed(value: Any) -> Any:
    """Return the list, object, number, true or false that a cell spells; others as they are."""
    if not isinstance(value, str):
        return value
    with contextlib.suppress(ValueError):
        if not isinstance(read := spelt(Untyped(value)), str):
            return read
    with contextlib.suppress(ValueError):
        return json.loads(value.lower())
    with contextlib.suppress(ValueError):  # .5 and +0.5
        return number if math.isfinite(number := float(value)) else value
    return value


def _plain(value: Any) -> Any:
    """Return a value of NumPy or pandas as JSON has it, None for one that is missing there."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    return value if (value == value) is True else None  # nan, NaT and NA do not equal themselves


def _as_text(value: Any) -> str:
    """Return a field as a text, empty where it is missing."""
    value = _plain(value)
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, float | Decimal) and value % 1 == 0:
        value = int(value)  # whole numbers of a table are floats where one is missing
    return json.dumps(value, ensure_ascii=False, default=str)
