"""Token ids to text, one by one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # what a tokenizer writes for part of a character


class Words:
    """The text of tokens that arrive one by one; an unfinished character is held back."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._from = 0  # of the tokens that the next ones are read with
        self._to = 0  # up to here the text was given out

    def add(self, token: int) -> str:
        """Return the text that this token completes."""
        self._ids.append(token)
        before, now = self._text(self._from, self._to), self._text(self._from, len(self._ids))
        if len(now) <= len(before) or now.endswith(UNFINISHED):
            return ""
        self._from, self._to = self._to, len(self._ids)
        return now[len(before) :]

    def rest(self) -> str:
        """Return what was held back, as it reads now that nothing follows."""
        before, now = self._text(self._from, self._to), self._text(self._from, len(self._ids))
        return now[len(before) :]

    def _text(self, start: int, end: int) -> str:
        text: str = self._tokenizer.decode(self._ids[start:end], skip_special_tokens=True)
        return text


def pieces(tokenizer: Any, ids: Iterable[int]) -> tuple[str, ...]:
    """Return the text that each token adds; together they are the text of all."""
    words = Words(tokenizer)
    made = [words.add(token) for token in ids]
    return (*made[:-1], made[-1] + words.rest()) if made else ()
