"""What is done for a request: a job, and the events that end it."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

Emit = Callable[[Any], None]


class Finished(NamedTuple):
    """The last event of a job that succeeded."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    value: Any = None


class Failed(NamedTuple):
    """The last event of a job that did not."""

    error: BaseException


class Job(ABC):
    """Work for the model: what it finds out goes to `emit`, event by event.

    Jobs of one `group` may run together; None: this one runs alone. `emit` may be called on any
    thread. `hang_up` is called when nobody waits any more, besides setting `cancelled`.
    """

    group: Hashable = None

    def __init__(self, emit: Emit, hang_up: Callable[[], None] | None = None) -> None:
        self.emit = emit
        self.cancelled = threading.Event()
        self.arrived = 0.0  # in a queue, by `time.monotonic`
        self.started = False  # something was emitted that cannot be taken back
        self._hang_up = hang_up

    @property
    def size(self) -> int:
        """Return how many samples the job draws at a time."""
        return 1

    def cancel(self) -> None:
        """Do not start, or stop as soon as possible."""
        self.cancelled.set()
        if self._hang_up is not None:
            self._hang_up()

    @abstractmethod
    def prepare(self) -> None:
        """Do what needs no model, such as to tokenise; called once, before the job is queued.

        Raises:
            GraceError: what is asked for cannot be done.
        """

    @abstractmethod
    def run(self, together: Sequence[Job]) -> None:
        """Do the work of all these jobs of one group, this one among them."""
