"""A model on a server upstream: a thread per request waits for connections on an event loop."""

from __future__ import annotations

import asyncio
import copy
import logging
import threading
import time
from collections import deque
from collections.abc import Coroutine, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from grace.engines.background import as_finished
from grace.engines.dialect import UNKNOWN, Request, known
from grace.engines.openai import OpenAIEngine, seed_of
from grace.engines.reading import LOWEST, Step
from grace.engines.said import UpstreamError
from grace.errors import GraceError
from grace.server.completing import Asked, Choice, Completion, name_of
from grace.server.errors import ApiError, queue_full
from grace.server.jobs import Emit, Failed, Job
from grace.server.settings import ServerSettings
from grace.server.voting import Rating, VoteRequest, Voting

if TYPE_CHECKING:
    from grace.model import Model
    from grace.records import Message

log = logging.getLogger(__name__)


class Relay:
    """The backend of a model on a server upstream (see `Backend`)."""

    alive = True  # its threads come and go

    def __init__(self, model: Model, settings: ServerSettings) -> None:
        assert isinstance(model.engine, OpenAIEngine)
        self.model = model
        self._engine = model.engine
        self._max_waiting = settings.max_waiting
        self._timeout_s = settings.timeout_s
        self._room = settings.max_running
        self._threads = ThreadPoolExecutor(settings.max_running, "grace-relay")
        self._changed = threading.Lock()
        self._queue: deque[Job] = deque()
        self._closed = False

    @property
    def waiting(self) -> int:
        """Return how many jobs wait."""
        return len(self._queue)

    async def trouble(self) -> str:
        """Return why no request is answered, empty where nothing is wrong."""
        return await asyncio.wrap_future(self._engine.reachable())

    def start(self) -> None:
        """Start to work; the connections are there already."""

    def close(self) -> None:
        """Take no more jobs, give up those that wait, and wait for those that run."""
        with self._changed:
            self._closed = True
            for job in self._queue:
                job.cancel()
        self._threads.shutdown()

    def submit(self, job: Job) -> None:
        """Start a job, or queue it.

        Raises:
            ApiError: too many wait already (429), or the server is shutting down (503).
        """
        with self._changed:
            if self._closed:
                raise ApiError(503, "the server is shutting down; try another one")
            for gone in [job for job in self._queue if job.cancelled.is_set()]:
                self._queue.remove(gone)
            if self._room == 0 and len(self._queue) >= self._max_waiting:
                raise queue_full(len(self._queue))
            self._queue.append(job)
            if self._room > 0:
                self._room -= 1
                self._threads.submit(self._work)

    def completion(self, asked: Asked, emit: Emit) -> Job:
        """Return the job that draws samples.

        Raises:
            ApiError: the upstream cannot list what is asked for.
        """
        if asked.top and self._engine.served.lists_ids:
            raise ApiError(
                400,
                "the upstream lists either the most probable tokens or <CNF>; ask for none of them "
                "(top_logprobs 0, or logprobs 0 of a completion)",
                param="top_logprobs",
            )
        return RelayedCompletion(self._engine.caller(self._deadline()), asked, emit)

    def voting(self, request: VoteRequest, emit: Emit) -> Job:
        """Return the job that votes."""
        model = self._for_one_caller()
        return Voting(model, request, emit, model.engine.cancel)

    def rating(
        self, prompts: Sequence[Sequence[Message]], responses: Sequence[str], emit: Emit
    ) -> Job:
        """Return the job that rates given responses."""
        model = self._for_one_caller()
        return Rating(model, prompts, responses, emit, model.engine.cancel)

    def _for_one_caller(self) -> Any:
        """Return the model with an engine that can hang up for one request."""
        model = copy.copy(self.model)
        model.engine = self._engine.caller(self._deadline())
        return model

    def _deadline(self) -> float:
        """Return when the client of a request that arrives now is told that it takes too long."""
        return time.monotonic() + self._timeout_s

    def _work(self) -> None:
        """Do what waits until nothing does."""
        while True:
            with self._changed:
                if not self._queue:
                    self._room += 1
                    return
                job = self._queue.popleft()
            _attempt(job)


def _attempt(job: Job) -> None:
    if job.cancelled.is_set():
        return
    try:
        job.run([job])
    except CancelledError:
        return
    except BaseException as error:  # the slot outlives even a SystemExit
        if isinstance(error, UpstreamError):
            log.warning("upstream: %s", error)
        elif not isinstance(error, GraceError | ApiError):
            log.exception("a request failed")
        job.emit(Failed(error))


class RelayedCompletion(Completion):
    """Samples of a model upstream; every choice is a request of its own."""

    def __init__(self, engine: OpenAIEngine, asked: Asked, emit: Emit) -> None:
        super().__init__(engine, asked, emit, engine.cancel)
        self._engine = engine

    def run(self, together: Sequence[Job]) -> None:
        """Draw the samples side by side."""
        choices = self.choices()
        sampling = self.asked.sampling
        self._engine.check(self.prompts, sampling.max_new_tokens)
        numbers = [
            (key, sampling.first_sample + sample)
            for key in self.prompt_keys()
            for sample in range(sampling.num_samples)
        ]
        work = [
            self._fill(choice, *number) for choice, number in zip(choices, numbers, strict=True)
        ]
        self._engine.wait(_all(work))

    async def _fill(self, choice: Choice, key: str, number: int) -> None:
        remote, sampling = self._engine.remote, self.asked.sampling
        seed = seed_of(sampling, key, number) if self.asked.key is None else None
        request = Request(choice.prompt, sampling, seed, stream=True)
        async with aclosing(remote.steps(request)) as arriving:
            async for steps in arriving:
                if not all(self._add(choice, step) for step in steps):
                    break
        choice.close(None)
        if choice.to_rate is not None:
            choice.rated(*await remote.read_given(choice.prompt, choice.to_rate))

    def _add(self, choice: Choice, step: Step) -> bool:
        """Return whether the choice goes on after a step."""
        reader, tokenizer = self._engine.reader, self._engine.tokenizer
        drawn = known(reader.drawn(step))
        read = (*(reader.readout.ids if reader.readout else ()), UNKNOWN)
        others = [entry for entry in step.logprobs.items() if entry[0] not in read]
        best = sorted(others, key=lambda entry: -entry[1])[: self.asked.top or 0]
        top = tuple((name_of(tokenizer, token), max(value, LOWEST)) for token, value in best)
        return choice.add(drawn, top) and not drawn.ended


async def _all(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines side by side; the first error cancels the others."""
    async with aclosing(as_finished(work)) as arriving:
        async for _ in arriving:
            pass
