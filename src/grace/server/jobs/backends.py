"""What answers requests: a model in this process or a server upstream; votes and ratings on it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from grace.engines.http.background import as_finished
from grace.engines.http.dialect import Request
from grace.engines.http.remote import seed_of
from grace.engines.reading import LOWEST, Step
from grace.model.asides import caller
from grace.records import Decision, Message, Vote, to_json
from grace.server.errors import ApiError
from grace.server.jobs.completion import Asked, Choice, Completion, Ended, Piece, Top, name_of
from grace.server.jobs.queue import Cancelled, Emit, Finished, Job, Queue
from grace.server.settings import ServerSettings

if TYPE_CHECKING:
    from grace.engines.local.drawing import Drawing
    from grace.engines.openai import OpenAIEngine
    from grace.model import Model

LANES = 4  # batches at a time of a model in this process


@dataclass(frozen=True)
class Backend:
    """Makes jobs, and has the queue that does them.

    Attributes:
        queue: the jobs.
        lists_tokens: whether it can list the most probable tokens at each step.
        trouble: returns why no request is answered, empty where nothing is wrong.
        caller: returns the model as one request calls it, and what hangs up for that request.
        draw: draws the samples of requests that run together.
    """

    queue: Queue
    lists_tokens: bool
    trouble: Callable[[], Awaitable[str]]
    caller: Callable[[], tuple[Any, Callable[[], None] | None]]
    draw: Callable[[Sequence[Completion]], None]

    def completion(self, asked: Asked, emit: Emit) -> Completion:
        """Return the job that draws samples.

        Raises:
            ApiError: the upstream cannot list what is asked for.
        """
        if asked.top and not self.lists_tokens:
            raise ApiError(
                400,
                "its engine lists either the most probable tokens or <CNF>; ask for none of them "
                "(top_logprobs 0, or logprobs 0 of a completion)",
                param="top_logprobs",
            )
        model, hang_up = self.caller()
        return Completion(model.engine, asked, emit, self.draw, hang_up)

    def voting(self, options: dict[str, Any], emit: Emit) -> VoteJob:
        """Return the job that votes."""
        model, hang_up = self.caller()
        return VoteJob(model, options, emit, hang_up)

    def rating(
        self, prompts: Sequence[Sequence[Message]], responses: Sequence[str], emit: Emit
    ) -> RatingJob:
        """Return the job that rates given responses."""
        model, hang_up = self.caller()
        return RatingJob(model, prompts, responses, emit, hang_up)


def backend(model: Model, settings: ServerSettings) -> Backend:
    """Return the backend of a model; only a model in this process loads torch."""
    engine: Any = model.engine
    if "relay" in engine.gives:
        return _upstream(model, engine, settings)
    if "states" not in engine.gives:
        return _one_by_one(model, settings)
    queue = Queue(
        threads=LANES,
        max_waiting=settings.max_waiting,
        max_together=engine.batch_size,
        model=engine.model,
    )

    async def trouble() -> str:
        return queue.trouble()

    return Backend(queue, True, trouble, lambda: (model, None), draw)


def _one_by_one(model: Model, settings: ServerSettings) -> Backend:
    """Return the backend of a model in this process that computes one token at a time."""
    queue = Queue(threads=1, max_waiting=settings.max_waiting)

    async def trouble() -> str:
        return queue.trouble()

    return Backend(queue, False, trouble, lambda: (model, None), _step)


def _step(jobs: Sequence[Completion]) -> None:
    """Draw the samples of one request, one after the other."""
    (job,) = jobs
    engine: Any = job.reads
    for choice, (key, number) in zip(job.choices(), job.numbers(), strict=True):
        for step in engine.steps(choice.prompt, job.asked.sampling, key, number):
            if job.cancelled.is_set():
                raise Cancelled
            if not _add(engine, choice, step):
                break
        choice.close(None)
        if choice.to_rate is not None:
            (c,) = engine.confidences([choice.prompt], [choice.to_rate])
            choice.rated(c)


def draw(jobs: Sequence[Completion]) -> None:
    """Draw the samples of several requests side by side from a model in this process."""
    from grace.engines.local.draws import Part

    engine: Any = jobs[0].reads
    rows = [choice for job in jobs for choice in job.choices()]
    tops = [job.asked.top for job in jobs for _ in range(job.size)]
    drawing = engine.draw(
        [Part(job.prompts, job.asked.sampling, job.prompt_keys()) for job in jobs]
    )

    def rate(choice: Choice) -> None:
        if choice.to_rate is not None:
            (c,) = engine.confidences([choice.prompt], [choice.to_rate])
            choice.rated(c)

    for step in drawing:
        for drawn in step:
            choice = rows[drawn.row]
            if not choice.add(drawn, _most_probable(engine, drawing, drawn.row, tops[drawn.row])):
                drawing.stop(drawn.row)
            rate(choice)
    for choice, generation in zip(rows, drawing.generations(), strict=True):
        choice.close(generation.confidence)
        rate(choice)


def _most_probable(engine: Any, drawing: Drawing, row: int, count: int | None) -> Top:
    found = drawing.most_probable(row, count) if count else []
    return tuple((name_of(engine.tokenizer, token), max(value, LOWEST)) for token, value in found)


def _upstream(model: Model, engine: OpenAIEngine, settings: ServerSettings) -> Backend:
    queue = Queue(threads=settings.max_running, max_waiting=settings.max_waiting)

    async def trouble() -> str:
        return await asyncio.wrap_future(engine.reachable())

    return Backend(
        queue,
        False,
        trouble,
        lambda: caller(model, time.monotonic() + settings.timeout_s),
        _relay,
    )


def _relay(jobs: Sequence[Completion]) -> None:
    """Draw the samples of one request upstream; every choice is a request of its own."""
    (job,) = jobs
    engine: Any = job.reads
    choices = zip(job.choices(), job.numbers(), strict=True)
    engine.wait(_all([_fill(engine, job.asked, choice, *number) for choice, number in choices]))


async def _fill(engine: OpenAIEngine, asked: Asked, choice: Choice, key: str, number: int) -> None:
    seed = seed_of(asked.sampling, key, number) if asked.key is None else None
    request = Request(choice.prompt, asked.sampling, seed, stream=True)
    async with aclosing(engine.remote.steps(request)) as arriving:
        async for steps in arriving:
            if not all(_add(engine, choice, step) for step in steps):
                break
    choice.close(None)
    if choice.to_rate is not None:
        choice.rated(await engine.remote.confidence(choice.prompt, choice.to_rate))


def _add(engine: OpenAIEngine, choice: Choice, step: Step) -> bool:
    """Return whether the choice goes on after a step."""
    drawn = engine.reader.drawn(step)
    return choice.add(drawn, ()) and not drawn.ended


async def _all(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines side by side; the first error cancels the others."""
    async with aclosing(as_finished(work)) as arriving:
        async for _ in arriving:
            pass


class Voted(NamedTuple):
    """A sample has arrived; `leading` is the answer that would win now."""

    vote: Vote
    leading: str | None


class VoteJob(Job):
    """Test-time scaling: `Model.vote`, with every sample shown as it arrives.

    `options` are the arguments of `Model.vote`.
    """

    def __init__(
        self,
        model: Model,
        options: dict[str, Any],
        emit: Emit,
        hang_up: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(emit, hang_up)
        self._model, self._options = model, options
        self.size = min(options["parallel"], options["budget"])
        self._prompt: list[int] = []

    def prepare(self) -> None:
        """Encode the question."""
        self._prompt = self._model.encode(self._options["question"], self._options["choices"])

    def run(self, together: Sequence[Any]) -> None:
        """Sample and vote until the strategy is sure or the budget is spent."""
        decision = self._model.vote(**self._options, on_vote=self._show, prompt=self._prompt)
        self.emit(Piece(0, _text_of(decision)))
        self.emit(Ended(0, "stop", decision.confidence))
        tokens = decision.issued_tokens + self._ends(decision)
        self.emit(Finished(len(self._prompt), tokens, to_json(decision)))

    def _ends(self, decision: Decision) -> int:
        """Return the number of votes that drew an end token: those below the longest allowed."""
        longest = self._options["max_new_tokens"] or self._model.sample.longest
        return sum(vote.tokens < longest for vote in decision.votes)

    def _show(self, vote: Vote, leading: str | None) -> None:
        if self.cancelled.is_set():
            raise Cancelled
        self.started = True
        self.emit(Voted(vote, leading))


def _text_of(decision: Decision) -> str:
    """Return the surest sample with the answer, nothing where no sample has one."""
    agreeing = [v for v in decision.votes if v.answer is not None and v.answer == decision.answer]
    surest = max(agreeing, key=lambda vote: vote.confidence or 0.0, default=None)
    return surest.text if surest else ""


class RatingJob(Job):
    """The confidences of given responses: `Model.score`."""

    def __init__(
        self,
        model: Model,
        prompts: Sequence[Sequence[Message]],
        responses: Sequence[str],
        emit: Emit,
        hang_up: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(emit, hang_up)
        self._model, self._prompts, self._responses = model, prompts, responses
        self._encoded: tuple[list[list[int]], list[list[int]]] = ([], [])

    def prepare(self) -> None:
        """Encode all prompts and responses."""
        self._encoded = self._model.encode_all(self._prompts, self._responses)

    def run(self, together: Sequence[Any]) -> None:
        """Rate all responses."""
        values = self._model.engine.confidences(*self._encoded)
        tokens = sum(len(ids) for side in self._encoded for ids in side)
        self.emit(Finished(tokens, 0, values))
