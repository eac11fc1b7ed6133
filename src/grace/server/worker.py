"""The one thread that calls the model, and the bounded queue before it."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from grace.errors import GraceError
from grace.server.errors import ApiError, queue_full
from grace.server.jobs import Failed, Job

log = logging.getLogger(__name__)


class Cancelled(Exception):
    """Nobody waits for what the model is computing."""


class Worker:
    """Runs jobs in order of arrival, equal ones together.

    Args:
        model: the torch module that every job calls.
        max_waiting: jobs that may wait.
        max_together: most samples drawn at a time.
    """

    def __init__(self, model: Any, *, max_waiting: int, max_together: int) -> None:
        self.waiting: deque[Job] = deque()
        self._model = model
        self._max_waiting = max_waiting
        self._max_together = max_together
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="grace-model", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Take no more jobs, give up those that wait, and wait for the one that runs."""
        with self._changed:
            self._closed = True
            for job in self.waiting:
                job.cancel()
            self._changed.notify()
        self._thread.join()

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
            self.waiting.append(job)
            self._changed.notify()

    def _work(self) -> None:
        while jobs := self._take():
            self._attempt(jobs)

    def _take(self) -> list[Job]:
        """Wait for work; return the oldest job and all that may run with it, none at the end."""
        with self._changed:
            while True:
                while self.waiting and self.waiting[0].cancelled.is_set():
                    self.waiting.popleft()
                if self.waiting or self._closed:
                    break
                self._changed.wait()
            if not self.waiting:
                return []
            jobs = [self.waiting.popleft()]
            room = self._max_together - jobs[0].size
            for job in list(self.waiting):
                fits = jobs[0].group is not None and job.group == jobs[0].group
                if fits and job.size <= room and not job.cancelled.is_set():
                    self.waiting.remove(job)
                    jobs.append(job)
                    room -= job.size
            return jobs

    def _attempt(self, jobs: Sequence[Job]) -> None:
        try:
            with _cancellable(self._model, jobs):
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
def _cancellable(model: Any, jobs: Sequence[Job]) -> Iterator[None]:
    """Stop the model at its next forward pass once every job was cancelled."""
    thread = threading.get_ident()

    def check(*_: Any) -> None:
        if threading.get_ident() == thread and all(job.cancelled.is_set() for job in jobs):
            raise Cancelled

    hook = model.register_forward_pre_hook(check)
    try:
        yield
    finally:
        hook.remove()
