"""The threads that call the model in turns, and the bounded queue before them."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from grace.errors import GraceError
from grace.server.errors import ApiError, queue_full
from grace.server.jobs import Failed, Job
from grace.server.turns import Turns

log = logging.getLogger(__name__)
LANES = 4  # batches at a time, which take turns, a forward pass each
PATIENCE_S = 1.0  # that a request waits for a batch to end before it gets a lane of its own
SMALL = 8  # of the most samples in a batch, the part up to which a request is small
STUCK_S = 60.0  # without a forward pass, while there is work
CLOSING_S = 1.0  # for the pass of the model that is under way


class Cancelled(Exception):
    """Nobody waits for what the model is computing."""


class Worker:
    """Runs jobs in order of arrival, equal ones together.

    One batch runs at a time, so that what arrives meanwhile is drawn together. Small jobs that
    have waited for long get a batch beside it: they never wait for the end of a large one.

    Args:
        model: the torch module that every job calls.
        max_waiting: jobs that may wait.
        max_together: most samples drawn at a time.
    """

    def __init__(self, model: Any, *, max_waiting: int, max_together: int) -> None:
        self.waiting: deque[Job] = deque()
        self._model = model
        self._max_waiting, self._max_together = max_waiting, max_together
        self._changed = threading.Condition()
        self._closed = False
        self._turns = Turns()
        self._running = 0
        self._stepped = time.monotonic()
        lanes = ((lane, f"grace-model-{lane}") for lane in range(LANES))
        self._threads = [
            threading.Thread(target=self._work, args=(lane,), name=name, daemon=True)
            for lane, name in lanes
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

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
        """Return whether every thread is there."""
        return all(thread.is_alive() for thread in self._threads)

    def trouble(self) -> str:
        """Return why no request is answered, empty where nothing is wrong."""
        if not self.alive:
            return "a thread of the model has died; restart the server"
        silent_s = time.monotonic() - self._stepped
        if self._running and silent_s > STUCK_S:
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
            gone = [job for job in self.waiting if job.cancelled.is_set()]
            for job_gone in gone:
                self.waiting.remove(job_gone)
            if len(self.waiting) >= self._max_waiting:
                raise queue_full(len(self.waiting))
            job.arrived = time.monotonic()
            self.waiting.append(job)
            self._changed.notify_all()

    def _work(self, lane: int) -> None:
        while jobs := self._take(lane):
            self._turns.take()
            self._stepped = time.monotonic()
            try:
                self._attempt(jobs)
            finally:
                self._turns.give()
                with self._changed:
                    self._running -= 1
                    self._changed.notify_all()

    def _take(self, lane: int) -> list[Job]:
        """Wait for work; return a job and all that may run with it, none at the end."""
        with self._changed:
            while True:
                while self.waiting and self.waiting[0].cancelled.is_set():
                    self.waiting.popleft()
                first = self._next(lane)
                if first is not None:
                    self._running += 1
                    return self._with_others(first, small=lane > 0)
                if self._closed:
                    return []
                self._changed.wait(self._patience_left(lane))

    def _next(self, lane: int) -> Job | None:
        """Return what a lane begins now, if anything: the first lane takes whatever is oldest."""
        if lane == 0:
            return self.waiting[0] if self.waiting else None
        late = time.monotonic() - PATIENCE_S
        waiting = (job for job in self.waiting if self._is_small(job) and job.arrived <= late)
        return next(waiting, None)

    def _patience_left(self, lane: int) -> float | None:
        """Return how long a lane may sleep if nothing changes, None: for ever."""
        small = [job.arrived for job in self.waiting if self._is_small(job)] if lane else []
        return max(0.0, min(small) + PATIENCE_S - time.monotonic()) if small else None

    def _is_small(self, job: Job) -> bool:
        return job.size <= max(1, self._max_together // SMALL) and not job.cancelled.is_set()

    def _with_others(self, first: Job, *, small: bool) -> list[Job]:
        """Take a job from the queue, and those that may run with it."""
        self.waiting.remove(first)
        jobs, room = [first], self._max_together - first.size
        for job in list(self.waiting):
            fits = first.group is not None and job.group == first.group and job.size <= room
            if fits and not job.cancelled.is_set() and (self._is_small(job) or not small):
                self.waiting.remove(job)
                jobs.append(job)
                room -= job.size
        return jobs

    def _attempt(self, jobs: Sequence[Job]) -> None:
        try:
            with self._between_steps(jobs):
                jobs[0].run(jobs)
        except Cancelled:
            return
        except BaseException as error:  # the thread outlives even a SystemExit
            if len(jobs) > 1 and not any(job.started for job in jobs):
                for job in jobs:  # one of them cannot be done; the others can
                    self._attempt([job])
                return
            if not isinstance(error, GraceError | ApiError):
                log.exception("a request failed")
            for job in jobs:
                job.emit(Failed(error))

    @contextmanager
    def _between_steps(self, jobs: Sequence[Job]) -> Iterator[None]:
        """Before every forward pass, let others go first, and stop once every job was cancelled."""
        thread = threading.get_ident()

        def check(*_: Any) -> None:
            if threading.get_ident() != thread:
                return
            self._stepped = time.monotonic()
            if all(job.cancelled.is_set() for job in jobs):
                raise Cancelled
            self._turns.pass_on()

        hook = self._model.register_forward_pre_hook(check)
        try:
            yield
        finally:
            hook.remove()
