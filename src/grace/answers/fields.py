"""The fields of a structured answer: the values of its JSON object, and where in the text they are.

The names of nested values are joined by a dot; an array is one value as a whole, and so is an empty
object. Of a key that an object has twice, the last value counts, as in any JSON parser.
"""

from __future__ import annotations

import contextlib
import json
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any, NamedTuple

from grace.answers.finding import after_thoughts

SPACE = " \t\n\r"
INSIDE = {'"': '"', "[": "]"}  # what encloses a value that is written between two signs
Path = tuple[str, ...]


class Spot(NamedTuple):
    """A value, and the characters [start, end) that say what it is: without quotes or brackets."""

    value: Any
    start: int
    end: int


def fields_in(text: str) -> dict[str, Spot]:
    """Return the fields of the first JSON object in a text; of a cut one, the complete ones."""
    at, end = after_thoughts(text)
    text = text[:end]
    while (at := text.find("{", at)) >= 0:
        reader = _Reader(text, at)
        with contextlib.suppress(ValueError, IndexError, RecursionError):  # malformed, or cut
            reader.read_object((), reader.found)
        if reader.found:
            return {".".join(path): spot for path, spot in reader.found.items()}
        at = max(at + 1, reader.at)
    return {}


class _Reader:
    """Reads one object; `at` is the place that it has reached."""

    def __init__(self, text: str, at: int) -> None:
        self._text, self.at = text, at
        self.found: dict[Path, Spot] = {}

    def read_object(self, path: Path, found: dict[Path, Spot]) -> None:
        """Read the object that starts here into `found`, as far as it goes."""
        sign = self._sign(1)
        while sign != "}":
            if sign != '"':
                raise ValueError("no key")
            name, self.at = scanstring(self._text, self.at + 1, False)
            if self._sign() != ":":
                raise ValueError("no colon")
            self._sign(1)
            self._read_value((*path, _sendable(name)), found)
            sign = self._sign()
            if sign == ",":
                sign = self._sign(1)
            elif sign != "}":
                raise ValueError("no comma")
        self.at += 1

    def _sign(self, step: int = 0) -> str:
        """Go to the next character that is no white space, after `step` more, and return it."""
        self.at += step
        while self._text[self.at] in SPACE:
            self.at += 1
        return self._text[self.at]

    def _read_value(self, path: Path, found: dict[Path, Spot]) -> None:
        start, opening = self.at, self._text[self.at]
        own: dict[Path, Spot] = {}
        try:
            if opening == "{" and self._sign(1) != "}":
                self.at = start
                self.read_object(path, own)
                return
            close = INSIDE.get(opening)
            if close:  # unless it is closed, it reaches the end of the text
                self.at = len(self._text)
            value, end = _DECODER.raw_decode(self._text, start)
            if not close and opening != "{" and self._text[end] not in f"{SPACE},}}":
                raise ValueError("a number that goes on")
            inside = bool(close) and end - start > len(f"{opening}{close}")
            own[path] = Spot(_sendable(value), start + inside, end - inside)
            self.at = end
        finally:
            if own:  # in place of what the same key had before
                for old in [one for one in found if one[: len(path)] == path]:
                    del found[old]
                found |= own


def _sendable(value: Any) -> Any:
    """Return a value without halves of surrogate pairs, which no encoding can write."""
    return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


def _finite(text: str) -> float:
    if abs(number := float(text)) == float("inf"):
        raise ValueError("no finite number")
    return number


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(strict=False, parse_float=_finite, parse_constant=_refuse)
