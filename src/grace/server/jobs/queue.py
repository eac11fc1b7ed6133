"""A bounded queue of jobs, and the threads that run them on the model."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import CancelledError
from typing import Any, NamedTuple

from grace.engines.http.answers import UpstreamError
from grace.errors import ComputeError, GraceError
from grace.server.errors import ApiError

log = logging.getLogger(__name__)
PATIENCE_S = 1.0  # a small job waits this long for a batch of small ones, then gets another thread
SHARE = 6  # small jobs get the model for this many times as long as the large ones beside them
REST_S = 1.0  # without work, then the memory that is free goes back to the system
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

    Jobs of one `group` may run together. `size` is the number of samples or of ratings, `work`
    about the most tokens to compute. Once `started`, an event was shown to the client, so the job
    cannot run again.
    """

    emit: Emit
    group: Hashable = None
    size = 1
    work = 1

    def __init__(self, hang_up: Callable[[], None] | None = None) -> None:
        self.cancelled = threading.Event()
        self.arrived = 0.0
        self.started = False
        self._hang_up = hang_up

    def show(self, event: Any) -> None:
        """Emit an event that the client sees at once."""
        self.started = True
        self.emit(event)

    def cancel(self) -> None:
        """Do not start, or stop as soon as possible."""
        self.cancelled.set()
        if self._hang_up is not None:
            self._hang_up()

    @abstractmethod
    def prepare(self) -> None:
        """Do what needs no model, such as tokenising; called once, before the job is queued."""

    @abstractmethod
    def run(self, together: Sequence[Any]) -> None:
        """Run all these jobs of one group, this one among them."""


class Queue:
    """Runs jobs in order of arrival, on threads that start when they are needed.

    Jobs that share a model in this process take turns, one forward pass at a time. The first thread
    runs one batch at a time, so jobs that arrive meanwhile form the next batch. Small jobs run on
    another thread once they have waited for `PATIENCE_S`, and at once where only large ones run: so
    they never wait for the end of a large one.
    """

    def __init__(
        self,
        *,
        threads: int,
        max_waiting: int,
        max_together: int = 1,
        small: int = 1,
        model: Any = None,
    ) -> None:
        self.waiting: list[Job] = []
        self._model = model
        self._most, self._max_waiting, self._max_together = threads, max_waiting, max_together
        self._small = small
        self._changed = threading.Condition()
        self._closed = False
        self._model_lock = None if model is None else FairLock()
        self._rested = True  # since the last work
        self._running: dict[int, bool] = {}  # by thread that runs a batch: whether all are small
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
                raise ApiError(503, "the server is shutting down; try another one")
            self._forget_cancelled()
            free = self._most - len(self._running) if self._model is None else 0
            if len(self.waiting) >= self._max_waiting + free:
                text = f"{len(self.waiting)} requests wait already; try again in a moment"
                raise ApiError(429, text, code="queue_full")
            job.arrived = time.monotonic()
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
        while jobs := self._take(number):
            try:
                share = SHARE if self._running[number] else 1
                with self._model_lock(share) if self._model_lock else contextlib.nullcontext():
                    self._stepped = time.monotonic()
                    self._run(jobs)
            finally:
                del jobs  # what they hold is not kept until the next ones
                with self._changed:
                    del self._running[number]
                    self._changed.notify_all()  # the first thread may rest now

    def _take(self, number: int) -> list[Job]:
        """Wait for work; return a job and all that run with it, none once the queue is closed."""
        with self._changed:
            while True:
                self._forget_cancelled()
                first = self._next(number)
                if first is not None:
                    jobs = self._with_others(first)
                    self._running[number] = all(map(self._is_small, jobs))
                    self._rested = False
                    if self._model is not None and self.waiting:
                        self._changed.notify_all()  # some of those left may overtake these
                    return jobs
                if self._closed:
                    return []
                resting = (
                    number == 0 and self._model is not None and not (self._rested or self._running)
                )
                left = REST_S if resting else self._patience_left(number)
                if not self._changed.wait(left) and resting:
                    self._rested = True
                    _give_back_memory()

    def _next(self, number: int) -> Job | None:
        """Return the job to start: the first thread takes the oldest, others small ones."""
        if number == 0 or self._model is None:
            return self.waiting[0] if self.waiting else None
        patience = PATIENCE_S if any(self._running.values()) or not self._running else 0
        late = time.monotonic() - patience
        small = filter(self._is_small, self.waiting)
        return next((job for job in small if job.arrived <= late), None)

    def _patience_left(self, number: int) -> float | None:
        """Return the seconds until a thread must look again, None: when something changes."""
        small = [job.arrived for job in self.waiting if self._is_small(job)] if number else []
        return max(0.0, min(small) + PATIENCE_S - time.monotonic()) if small else None

    def _is_small(self, job: Job) -> bool:
        return job.work <= self._small

    def _with_others(self, first: Job) -> list[Job]:
        """Take a job from the queue, and those of its group and kind that fit into its batch."""
        jobs, room = [first], self._max_together - first.size
        for job in self.waiting:
            alike = first.group is not None and job.group == first.group
            alike = alike and self._is_small(job) == self._is_small(first)
            if alike and job.size <= room and job is not first:
                jobs.append(job)
                room -= job.size
        self.waiting = [job for job in self.waiting if job not in jobs]
        return jobs

    def _run(self, jobs: Sequence[Job]) -> None:
        """Run a batch; if it fails before any job has started, run its jobs one by one."""
        try:
            with self._between_steps(jobs):
                jobs[0].run(jobs)
        except (Cancelled, CancelledError):
            return
        except BaseException as error:  # not even a SystemExit may end the thread
            if len(jobs) > 1 and not any(job.started for job in jobs):
                for job in jobs:
                    self._run([job])
                return
            if isinstance(error, UpstreamError):
                log.warning("upstream: %s", error)
            elif isinstance(error, ComputeError) or not isinstance(error, GraceError | ApiError):
                log.exception("a request failed")
            for job in jobs:
                job.emit(Failed(error))
            _let_go(error)

    @contextlib.contextmanager
    def _between_steps(self, jobs: Sequence[Job]) -> Iterator[None]:
        """Before each forward pass let other threads go first; stop if all jobs are cancelled."""
        if self._model_lock is None:
            yield
            return
        thread, lock = threading.get_ident(), self._model_lock

        def check(*_: Any) -> None:
            if threading.get_ident() != thread:
                return
            self._stepped = time.monotonic()
            if all(job.cancelled.is_set() for job in jobs):
                raise Cancelled
            lock.pass_on()

        hook = self._model.register_forward_pre_hook(check)
        try:
            yield
        finally:
            hook.remove()


def _give_back_memory() -> None:
    """Return free memory to the system, where C can; one large request may leave a lot."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


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
        self._holder: Turn | None = None
        self._active: list[Turn] = []  # in the order of asking

    @contextlib.contextmanager
    def __call__(self, share: int) -> Iterator[None]:
        """Hold the lock, but for what `pass_on` gives away."""
        turn = Turn(share)
        with self._changed:
            turn.spent = min((other.spent for other in self._active), default=0.0)
            self._active.append(turn)
            self._wait(turn)
        try:
            yield
        finally:
            with self._changed:
                self._active.remove(turn)
                self._holder = None
                self._changed.notify_all()

    def pass_on(self) -> None:
        """Let those go first who have had less time, then go on."""
        with self._changed:
            turn = self._holder
            assert turn is not None  # this thread's
            turn.spent += (time.monotonic() - turn.since) / turn.share
            self._active.remove(turn)  # goes last among equals
            self._active.append(turn)
            self._holder = None
            self._changed.notify_all()
            self._wait(turn)

    def _wait(self, turn: Turn) -> None:
        while self._holder or min(self._active, key=lambda other: other.spent) is not turn:
            self._changed.wait()
        self._holder, turn.since = turn, time.monotonic()


class Turn:
    """The time that a batch has had, divided by its share."""

    def __init__(self, share: int) -> None:
        self.share, self.spent, self.since = share, 0.0, 0.0
