"""A bounded queue of jobs, and the threads that run them on the model."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import CancelledError
from typing import Any, NamedTuple

from grace.engines.http.upstream import UpstreamError
from grace.errors import ComputeError, GraceError
from grace.server.errors import ApiError, shutting_down

log = logging.getLogger(__name__)
SHARE = 6  # small jobs get the model for this many times as long as the large ones beside them
STUCK_S = 60.0  # without a forward pass while there is work, the model counts as stuck
CLOSING_S = 1.0  # for running jobs to end when the queue closes
Emit = Callable[[Any], None]


class Finished(NamedTuple):
    """The last event of a job that succeeded."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    value: Any = None


class Failed(NamedTuple):
    """The last event of a job that failed."""

    error: BaseException


class Cancelled(Exception):
    """Raised in a running job that was cancelled."""


class Job(ABC):
    """Work for the model, reported as events to `emit`, from any thread.

    Jobs of one `group` run together, also those that arrive after the first has begun; one without
    a group runs alone. `size` is the number of samples or of ratings, `work` about the most tokens
    to compute, by which the queue calls a job `small`. Once `started`, an event was shown to the
    client, so the job cannot run again.
    """

    emit: Emit
    group: Hashable = None
    size = 1
    work = 1
    small = True

    def __init__(self, hang_up: Callable[[], None] = lambda: None) -> None:
        self.cancelled = threading.Event()
        self.started = False
        self._hang_up = hang_up

    @property
    def kind(self) -> Hashable:
        """What jobs that run together have in common."""
        return id(self) if self.group is None else (self.group, self.small)

    def show(self, event: Any) -> None:
        """Emit an event that the client sees at once."""
        self.started = True
        self.emit(event)

    def cancel(self) -> None:
        """Do not start, or stop as soon as possible."""
        self.cancelled.set()
        self._hang_up()

    @abstractmethod
    def prepare(self) -> None:
        """Do what needs no model, such as tokenising; called once, before the job is queued."""

    @abstractmethod
    def run(self, together: Together) -> None:
        """Run all these jobs of one group, this one among them."""


class Together:
    """Jobs of one kind that run on one thread; `more` takes those that may join them."""

    def __init__(
        self, jobs: Sequence[Any], more: Callable[[Together, int], list[Any]] = lambda _, __: []
    ) -> None:
        self.jobs, self._more = list(jobs), more
        self.kind, self.small = jobs[0].kind, jobs[0].small

    def join(self, room: int) -> list[Any]:
        """Take the jobs that wait to join these, with `room` samples at most."""
        more = self._more(self, room)
        self.jobs = [*(job for job in self.jobs if not job.cancelled.is_set()), *more]
        return more


class Queue:
    """Runs jobs in order of arrival, on threads that start when they are needed.

    Jobs that share a model in this process take turns, one forward pass at a time. A job joins
    those of its kind that run already; any other gets a thread of its own, but large ones run one
    after the other. So a small one never waits for the end of a large one.
    """

    def __init__(
        self, *, threads: int, max_waiting: int, small: int = 1, model: Any = None
    ) -> None:
        self.waiting: list[Job] = []
        self._model = model
        self._most, self._max_waiting, self._small = threads, max_waiting, small
        self._changed = threading.Condition()
        self._closed = False
        self._model_lock = None if model is None else FairLock()
        self._running: dict[int, Together] = {}  # by thread
        self._stepped = time.monotonic()
        self._threads: list[threading.Thread] = []

    def close(self) -> None:
        """Refuse new jobs, cancel those that wait, and give running ones `CLOSING_S` to end."""
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
        """Whether no thread has died."""
        return all(thread.is_alive() for thread in self._threads)

    def trouble(self) -> str:
        """Return why requests are not answered, empty if they are."""
        if not self.alive:
            return "a thread of the model has died; restart the server"
        silent_s = time.monotonic() - self._stepped
        if self._model is not None and self._running and silent_s > STUCK_S:
            return f"the model has computed nothing for {silent_s:.0f} s"
        return ""

    def submit(self, job: Job) -> None:
        """Queue a job."""
        with self._changed:
            if self._closed:
                raise shutting_down()
            self._forget_cancelled()
            free = self._most - len(self._running) if self._model is None else 0
            if len(self.waiting) >= self._max_waiting + free:
                raise ApiError(
                    429,
                    f"{len(self.waiting)} requests wait already; try again in a moment, send fewer "
                    "at once, or start the server with a larger --max-waiting",
                    code="queue_full",
                )
            job.small = job.work <= self._small
            self.waiting.append(job)
            number = len(self._threads)
            if number < min(self._most, len(self._running) + len(self.waiting)):
                name = f"grace-work-{number}"
                thread = threading.Thread(target=self._work, args=(number,), name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
            self._changed.notify(1 if self._model is None else self._most)

    def _forget_cancelled(self) -> None:
        self.waiting = [job for job in self.waiting if not job.cancelled.is_set()]

    def _work(self, number: int) -> None:
        while together := self._take(number):
            try:
                if self._model_lock is None:
                    self._run(together)
                    continue
                with self._model_lock(SHARE if together.small else 1) as pass_on:
                    self._stepped = time.monotonic()
                    self._run(together, pass_on)
            finally:
                del together  # what they hold is not kept until the next ones
                with self._changed:
                    del self._running[number]
                    self._changed.notify_all()  # others may start now

    def _take(self, number: int) -> Together | None:
        """Wait for a job and return it, for others to join; None once the queue is closed."""
        with self._changed:
            while True:
                self._forget_cancelled()
                job = next(filter(self._may_start, self.waiting), None)
                if job is not None:
                    self.waiting.remove(job)
                    together = self._running[number] = Together([job], self._joining)
                    return together
                if self._closed:
                    return None
                self._changed.wait()

    def _joining(self, together: Together, room: int) -> list[Job]:
        """Take what may join others from the queue; none overtakes one that waits for their end."""
        joining: list[Job] = []
        with self._changed:
            self._forget_cancelled()
            for job in self.waiting:
                if job.kind == together.kind and job.size <= room:
                    joining.append(job)
                    room -= job.size
                elif job.kind == together.kind or self._waits_for_end(job, together):
                    break
            self.waiting = [job for job in self.waiting if job not in joining]
        return joining

    def _may_start(self, job: Job) -> bool:
        """Whether a free thread may take a job: it joins no other, and no other large one runs."""
        running = self._running.values()
        return self._model is None or not (
            any(job.kind == together.kind for together in running)
            or (not job.small and any(not together.small for together in running))
        )

    def _waits_for_end(self, job: Job, together: Together) -> bool:
        """Whether a job of another kind can start once these have ended, and no earlier."""
        running = self._running.values()
        if any(job.kind == other.kind for other in running):
            return False
        if not job.small and any(not other.small for other in running):
            return not together.small
        return len(running) == self._most

    def _run(self, together: Together, pass_on: Callable[[], None] | None = None) -> None:
        """Run jobs; if that fails, those of which nothing was shown wait to be run alone."""
        try:
            with self._between_steps(together, pass_on) if pass_on else contextlib.nullcontext():
                together.jobs[0].run(together)
        except (Cancelled, CancelledError):
            return
        except BaseException as error:  # not even a SystemExit may end the thread
            jobs = together.jobs
            again = [job for job in jobs if not job.started] if len(jobs) > 1 else []
            failed = [job for job in jobs if job not in again]
            if failed and isinstance(error, UpstreamError):
                log.warning("upstream: %s", error)
            elif failed and (
                isinstance(error, ComputeError) or not isinstance(error, GraceError | ApiError)
            ):
                log.exception("a request failed")
            for job in failed:
                job.emit(Failed(error))
            _let_go(error)
            for job in again:
                job.group = None
            with self._changed:
                self.waiting = [*again, *self.waiting]

    @contextlib.contextmanager
    def _between_steps(self, together: Together, pass_on: Callable[[], None]) -> Iterator[None]:
        """Before each forward pass let other threads go first; stop if all jobs are cancelled."""
        thread = threading.get_ident()

        def check(*_: Any) -> None:
            if threading.get_ident() != thread:
                return
            self._stepped = time.monotonic()
            if all(job.cancelled.is_set() for job in together.jobs):
                raise Cancelled
            pass_on()

        hook = self._model.register_forward_pre_hook(check)
        try:
            yield
        finally:
            hook.remove()


def _let_go(error: BaseException | None) -> None:
    """Free what the frames of an error hold, such as a KV cache, or a future that has the error."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


class FairLock:
    """A lock for one pass at a time; of those who wait, the one with the least time is next.

    The time of a holder counts less the larger its share is. A newcomer is owed no time.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._holder: int | None = None
        self._since = 0.0
        self._spent: dict[int, float] = {}  # by thread, divided by its share

    @contextlib.contextmanager
    def __call__(self, share: int) -> Iterator[Callable[[], None]]:
        """Hold the lock; what it yields lets those go first who have had less time."""
        mine = threading.get_ident()

        def take() -> None:
            while self._holder or min(self._spent, key=self._spent.__getitem__) != mine:
                self._changed.wait()
            self._holder, self._since = mine, time.monotonic()

        def pass_on() -> None:
            with self._changed:
                spent = self._spent.pop(mine)  # goes last among equals
                self._spent[mine] = spent + (time.monotonic() - self._since) / share
                self._holder = None
                self._changed.notify_all()
                take()

        with self._changed:
            self._spent[mine] = min(self._spent.values(), default=0.0)
            take()
        try:
            yield pass_on
        finally:
            with self._changed:
                del self._spent[mine]
                self._holder = None
                self._changed.notify_all()
