"""Decode token ids to text one by one, for streaming."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # decoded from part of a character


class Detokenizer:
    """Decodes tokens as they arrive, and holds back a character until all of its bytes are there.

    A token's text can depend on the tokens before it (white space, bytes of one character), so each
    is decoded together with those of the last piece of text.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._start = 0  # tokens from here on are decoded together
        self._end = 0  # the text of tokens before this one has been returned

    def add(self, token: int) -> str:
        """Return the text that this token completes."""
        self._ids.append(token)
        text = self.rest()
        if not text or text.endswith(UNFINISHED):
            return ""
        self._start, self._end = self._end, len(self._ids)
        return text

    def rest(self) -> str:
        """Return the text held back, as it decodes if no token follows."""
        returned, text = self._text(self._end), self._text(len(self._ids))
        return text[len(returned) :]

    def _text(self, end: int) -> str:
        ids = self._ids[self._start : end]
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text


def pieces(tokenizer: Any, ids: Iterable[int]) -> tuple[str, ...]:
    """Return the text that each token adds; joined, they are the text of all tokens."""
    detokenizer = Detokenizer(tokenizer)
    texts = [detokenizer.add(token) for token in ids]
    return (*texts[:-1], texts[-1] + detokenizer.rest()) if texts else ()
