"""Jobs, the events that end them, the bounded queue before them, and the threads that do them."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import CancelledError
from typing import Any, NamedTuple

from grace.engines.http.answers import UpstreamError
from grace.errors import GraceError
from grace.server.errors import ApiError

log = logging.getLogger(__name__)
PATIENCE_S = 1.0  # that a request waits for a batch to end before it gets a lane of its own
SMALL = 8  # of the most samples in a batch, the part up to which a request is small
STUCK_S = 60.0  # without a forward pass, while there is work
CLOSING_S = 1.0  # for the pass of the model that is under way
Emit = Callable[[Any], None]


class Finished(NamedTuple):
    """The last event of a job that succeeded."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    value: Any = None


class Failed(NamedTuple):
    """The last event of a job that did not."""

    error: BaseException


class Cancelled(Exception):
    """Nobody waits for what the model is computing."""


class Job(ABC):
    """Work for the model: what it finds out goes to `emit`, event by event.

    Jobs of one `group` may run together; None: this one runs alone. `emit` may be called on any
    thread. `hang_up` is called when nobody waits any more, besides setting `cancelled`.
    """

    group: Hashable = None
    size = 1
    """The number of samples that the job draws at a time."""

    def __init__(self, emit: Emit, hang_up: Callable[[], None] | None = None) -> None:
        self.emit = emit
        self.cancelled = threading.Event()
        self.arrived = 0.0  # in a queue, by `time.monotonic`
        self.started = False  # something was emitted that cannot be taken back
        self._hang_up = hang_up

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
    def run(self, together: Sequence[Any]) -> None:
        """Do the work of all these jobs of one group, this one among them."""


class Queue:
    """Runs jobs in order of arrival on threads that begin when they are needed.

    Jobs that share a model in this process call it in turns, a forward pass each. The first thread
    runs one batch at a time, so that what arrives meanwhile is drawn together. Small jobs that
    have waited for long get a batch beside it: they never wait for the end of a large one.

    Args:
        threads: most jobs or batches at a time.
        max_waiting: jobs that may wait.
        max_together: most samples drawn at a time in one batch.
        model: the torch module that every job calls; None: the jobs share nothing.
    """

    def __init__(
        self, *, threads: int, max_waiting: int, max_together: int = 1, model: Any = None
    ) -> None:
        self.waiting: list[Job] = []
        self._model = model
        self._most, self._max_waiting, self._max_together = threads, max_waiting, max_together
        self._changed = threading.Condition()
        self._closed = False
        self._turns = Turns() if model is not None else contextlib.nullcontext()
        self._running = 0
        self._stepped = time.monotonic()
        self._threads: list[threading.Thread] = []

    def close(self) -> None:
        """Take no more jobs, give up those that wait, and wait a moment for those that run."""
        with self._changed:
            self._closed = True
            for job in self.waiting:
                job.cancel()
            self._changed.notify_all()
        end = time.monotonic() + CLOSING_S
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    @property
    def alive(self) -> bool:
        """Return whether every thread is there that has begun."""
        return all(thread.is_alive() for thread in self._threads)

    def trouble(self) -> str:
        """Return why no request is answered, empty where nothing is wrong."""
        if not self.alive:
            return "a thread of the model has died; restart the server"
        silent_s = time.monotonic() - self._stepped
        if self._model is not None and self._running and silent_s > STUCK_S:
            return f"the model has computed nothing for {silent_s:.0f} s"
        return ""

    def submit(self, job: Job) -> None:
        """Queue a job.

        Raises:
            ApiError: too many wait already (429), or the server is shutting down (503).
        """
        with self._changed:
            if self._closed:
                raise ApiError(503, "the server is shutting down; try another one")
            self._forget()
            free = self._most - self._running if self._model is None else 0
            if len(self.waiting) >= self._max_waiting + free:
                text = f"{len(self.waiting)} requests wait already; try again in a moment"
                raise ApiError(429, text, code="queue_full")
            job.arrived = time.monotonic()
            self.waiting.append(job)
            lane = len(self._threads)
            if lane < min(self._most, self._running + len(self.waiting)):
                name = f"grace-work-{lane}"
                thread = threading.Thread(target=self._work, args=(lane,), name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
            self._changed.notify(1 if self._model is None else self._most)

    def _forget(self) -> None:
        """Drop the jobs that nobody waits for."""
        self.waiting = [job for job in self.waiting if not job.cancelled.is_set()]

    def _work(self, lane: int) -> None:
        while jobs := self._take(lane):
            try:
                with self._turns:
                    self._stepped = time.monotonic()
                    self._attempt(jobs)
            finally:
                with self._changed:
                    self._running -= 1

    def _take(self, lane: int) -> list[Job]:
        """Wait for work; return a job and all that may run with it, none at the end."""
        with self._changed:
            while True:
                self._forget()
                first = self._next(lane)
                if first is not None:
                    self._running += 1
                    return self._with_others(first, small=lane > 0)
                if self._closed:
                    return []
                self._changed.wait(self._patience_left(lane))

    def _next(self, lane: int) -> Job | None:
        """Return the job that a thread begins now, if any; the first thread takes the oldest."""
        if lane == 0 or self._model is None:
            return self.waiting[0] if self.waiting else None
        late = time.monotonic() - PATIENCE_S
        waiting = (job for job in self.waiting if self._is_small(job) and job.arrived <= late)
        return next(waiting, None)

    def _patience_left(self, lane: int) -> float | None:
        """Return the seconds a thread may sleep if nothing changes, None: without limit."""
        small = [job.arrived for job in self.waiting if self._is_small(job)] if lane else []
        return max(0.0, min(small) + PATIENCE_S - time.monotonic()) if small else None

    def _is_small(self, job: Job) -> bool:
        return job.size <= max(1, self._max_together // SMALL)

    def _with_others(self, first: Job, *, small: bool) -> list[Job]:
        """Take a job from the queue, and those that may run with it."""
        jobs, room = [first], self._max_together - first.size
        for job in self.waiting:
            fits = first.group is not None and job.group == first.group and job.size <= room
            if fits and job is not first and (self._is_small(job) or not small):
                jobs.append(job)
                room -= job.size
        self.waiting = [job for job in self.waiting if job not in jobs]
        return jobs

    def _attempt(self, jobs: Sequence[Job]) -> None:
        try:
            with self._between_steps(jobs):
                jobs[0].run(jobs)
        except (Cancelled, CancelledError):
            return
        except BaseException as error:  # the thread outlives even a SystemExit
            if len(jobs) > 1 and not any(job.started for job in jobs):
                for job in jobs:  # one of them cannot be done; the others can
                    self._attempt([job])
                return
            if isinstance(error, UpstreamError):
                log.warning("upstream: %s", error)
            elif not isinstance(error, GraceError | ApiError):
                log.exception("a request failed")
            for job in jobs:
                job.emit(Failed(error))

    @contextlib.contextmanager
    def _between_steps(self, jobs: Sequence[Job]) -> Iterator[None]:
        """Before every forward pass, let others go first, and stop once every job was cancelled."""
        if not isinstance(self._turns, Turns):
            yield
            return
        thread, turns = threading.get_ident(), self._turns

        def check(*_: Any) -> None:
            if threading.get_ident() != thread:
                return
            self._stepped = time.monotonic()
            if all(job.cancelled.is_set() for job in jobs):
                raise Cancelled
            turns.pass_on()

        hook = self._model.register_forward_pre_hook(check)
        try:
            yield
        finally:
            hook.remove()


class Turns:
    """A lock for threads in the order in which they ask; its holder may let others go first."""

    def __init__(self) -> None:
        self._changed = threading.Lock()
        self._held = False
        self._waiting: deque[threading.Event] = deque()

    def __enter__(self) -> None:
        mine = threading.Event()
        with self._changed:
            if not self._held:
                self._held = True
                return
            self._waiting.append(mine)
        mine.wait()

    def __exit__(self, *_: object) -> None:
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
