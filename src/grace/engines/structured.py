"""The form that an answer must have, and which tokens may come next for it.

Log-probabilities and readings of c are those before the mask: a second pass over the same text
gives the same ones, so c keeps the meaning that it was fitted with.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

from grace.engines.reading import Reader
from grace.errors import GraceError, MissingError, ModelError, UserInputError, first_line

Json = dict[str, Any]
OBJECT: Json = {"type": "object"}
LONGEST_SCHEMA = 2**16  # bytes
# Without free white space: a small model may write nothing else, and never end.
LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


@dataclass(frozen=True, slots=True)
class Form:
    """The form of an answer: JSON that follows a schema."""

    schema: Json
    function: str = ""  # whose arguments the answer is, if any


class FormError(GraceError):
    """An answer left its form, or the form became too complex to follow."""


def check_schema(schema: Json) -> Json:
    """Return a schema after a check of its size: a larger one may take llguidance's whole stack."""
    try:
        size = len(json.dumps(schema, allow_nan=False, ensure_ascii=False).encode())
    except RecursionError:
        raise ValueError("the schema is nested too deep; make it flatter") from None
    except ValueError as error:
        raise ValueError(f"the schema cannot be written as JSON: {error}; leave it out") from None
    if size > LONGEST_SCHEMA:
        raise ValueError(
            f"the schema has {size} bytes; send at most {LONGEST_SCHEMA}, in several requests"
        )
    return schema


class Forms:
    """Compiles forms for one tokenizer, with `llguidance`; safe to use from several threads."""

    def __init__(self, tokenizer: Any, reader: Reader) -> None:
        self._tokenizer, self._reader = tokenizer, reader
        self._lock = threading.Lock()
        self._words: Any = None

    def compile(self, form: Form) -> Allowed:
        """Return what a form allows, before the first token."""
        try:
            from llguidance import LLMatcher, LLParserLimits
        except ModuleNotFoundError as error:
            raise MissingError("a structured answer", "llguidance", extra="structured") from error
        with self._lock:
            if self._words is None:
                self._words = self._read_words()
        try:
            grammar = LLMatcher.grammar_from_json_schema(form.schema, overrides=LAYOUT)
        except ValueError as error:
            raise _refused(str(error)) from None
        limits = LLParserLimits(verbose_errors=False)
        matcher = LLMatcher(self._words, grammar, log_level=0, limits=limits)
        matcher.compute_bitmask()  # some schemas fail no earlier
        if matcher.is_error():
            raise _refused(matcher.get_error())
        return Allowed(matcher, self._reader)

    def _read_words(self) -> Any:
        from llguidance import LLTokenizer

        text = self._tokenizer.backend_tokenizer.to_str()
        rows = 1 + max(self._tokenizer.get_vocab().values())
        try:
            slices = LLTokenizer.json_slices()
            return LLTokenizer(text, n_vocab=rows, eos_token=self._reader.eos[0], slices=slices)
        except Exception as error:  # of any kind, from another language
            raise ModelError(
                f"this model cannot write structured answers: its tokenizer is not one of bytes "
                f"({first_line(error)}); leave out response_format and tools"
            ) from error


class Allowed:
    """Which tokens one answer may take next; the end counts as one, whatever token it is."""

    def __init__(self, matcher: Any, reader: Reader) -> None:
        self._matcher, self._reader = matcher, reader
        self._over = False

    def begin(self) -> Allowed:
        """Return the same form for another answer."""
        return Allowed(self._matcher.deep_copy(), self._reader)

    def next(self, rows: int) -> np.ndarray:
        """Return which of the model's tokens may be next, shape (V,); all once it is over."""
        if self._over:
            return np.ones(rows, dtype=bool)
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        found = np.unpackbits(bits, bitorder="little")[:rows].astype(bool)
        allowed = np.zeros(rows, dtype=bool)
        allowed[: len(found)] = found
        ends = self._matcher.is_error() or bool(allowed[self._reader.eos[0]])
        allowed[[i for i in self._reader.stops if i < rows]] = ends
        return allowed

    def take(self, token: int) -> None:
        """Take the token that was drawn."""
        if token in self._reader.stops:
            self._over = True
        elif not self._over:
            self._matcher.consume_token(token)

    def check(self) -> None:
        """Raise a `FormError` if the form could not be followed to its end."""
        if self._matcher.is_error():
            why = first_line(self._matcher.get_error())
            raise FormError(f"the answer's form became too complex ({why}); use a simpler schema")


def _refused(why: str) -> UserInputError:
    lines = (line.strip() for line in why.splitlines())
    said = " ".join(line for line in lines if line.strip("^"))  # without its pointer into a pattern
    return UserInputError(
        f"the schema cannot be followed: {said[:400]}; use a simpler one, without that"
    )
