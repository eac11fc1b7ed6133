"""Threads that use one model in turns, in the order in which they ask."""

from __future__ import annotations

import threading
from collections import deque


class Turns:
    """A lock whose holder lets the next one go first between two steps (`pass_on`)."""

    def __init__(self) -> None:
        self._changed = threading.Lock()
        self._held = False
        self._waiting: deque[threading.Event] = deque()

    def take(self) -> None:
        """Wait for the turn."""
        mine = threading.Event()
        with self._changed:
            if not self._held:
                self._held = True
                return
            self._waiting.append(mine)
        mine.wait()

    def give(self) -> None:
        """End the turn."""
        with self._changed:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._held = False

    def pass_on(self) -> None:
        """Let everybody who waits go first, then go on."""
        mine = threading.Event()
        with self._changed:
            if not self._waiting:
                return
            self._waiting.append(mine)
            self._waiting.popleft().set()
        mine.wait()
