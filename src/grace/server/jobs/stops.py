"""Text that grows token by token, and may end at a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Shown(NamedTuple):
    """Text that can be shown, and whether a stop string follows it."""

    text: str
    stopped: bool


class Stops:
    """Cuts text at the first stop string; what could be the start of one is held back."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = [string for string in strings if string]
        self._held = ""

    def add(self, text: str, *, last: bool = False) -> Shown:
        """Return what can be shown once `text` has arrived; with `last`, nothing follows."""
        self._held += text
        places = [self._held.find(string) for string in self._strings]
        if found := [place for place in places if place >= 0]:
            return Shown(self._take(min(found)), True)
        return Shown(self._take(len(self._held) - (0 if last else self._unsure())), False)

    def _unsure(self) -> int:
        """Return how many characters at the end could be the start of a stop string."""
        return max(
            (
                size
                for string in self._strings
                for size in range(1, len(string))
                if self._held.endswith(string[:size])
            ),
            default=0,
        )

    def _take(self, count: int) -> str:
        shown, self._held = self._held[:count], self._held[count:]
        return shown
