"""The model behind the server, in this process or upstream, and the jobs that use it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.requests import Request as HttpRequest

from grace.chat import pieces, refuse_longer
from grace.engines import seed_from
from grace.engines.http.background import as_finished
from grace.engines.http.remote import Request
from grace.engines.reading import LOWEST, StepResult, to_response
from grace.engines.structured import Forms
from grace.model.answering import UNRATED, for_caller, rated
from grace.records import Message, Vote, to_json
from grace.server.errors import ApiError, as_api_error, shutting_down
from grace.server.jobs.completion import (
    SHORT,
    Choice,
    Completion,
    CompletionParams,
    Ended,
    Piece,
    Token,
    Top,
    name_of,
)
from grace.server.jobs.queue import Cancelled, Emit, Failed, Finished, Job, Queue, Together
from grace.server.settings import ServerSettings

if TYPE_CHECKING:
    from grace.engines.openai import OpenAIEngine
    from grace.model import Model

LANES = 4  # batches that take turns on a model in this process
SMALL = 8  # a job is small up to the work of 1/SMALL of the largest batch


class ClientGone(Exception):
    """The client has closed the connection."""


class Backend:
    """Makes the jobs of requests for a model here or upstream, and waits while a queue runs them.

    Their texts are tokenised while the model computes.
    """

    def __init__(self, model: Model, settings: ServerSettings) -> None:
        engine: Any = model.engine
        self._model, self._engine, self._timeout_s = model, engine, settings.timeout_s
        self._is_upstream = "relay" in engine.gives
        self._draw: Callable[[Together], None]
        self._waiting: set[Emit] = set()
        draws_here = not self._is_upstream or engine.remote.draws_here
        self._forms = Forms(engine.tokenizer, engine.reader) if draws_here else None
        waiting = settings.max_waiting
        if self._is_upstream:
            self._draw = _draw_upstream
            self.queue = Queue(threads=settings.max_running, max_waiting=waiting)
        else:
            self._draw = draw
            self.queue = Queue(
                threads=LANES,
                max_waiting=waiting,
                small=max(1, engine.batch_size // SMALL) * (SHORT + model.sample.longest),
                model=engine.model,
            )

    @property
    def lists_most_probable(self) -> bool:
        """Whether the engine lists the most probable tokens besides `<CNF>`, in a prompt too."""
        return not self._is_upstream

    async def trouble(self) -> str:
        """Return why requests are not answered, empty if they are."""
        if self._is_upstream:
            return str(await asyncio.wrap_future(self._engine.reachable()))
        return self.queue.trouble()

    def completion(self, params: CompletionParams) -> Completion:
        """Return the job that draws samples."""
        model, hang_up = self._for_caller()
        return Completion(model.engine, params, self._draw, hang_up, self._forms)

    def voting(self, options: dict[str, Any]) -> VoteJob:
        """Return the job that votes; `options` are the arguments of `Model.vote`."""
        return VoteJob(*self._for_caller(), options)

    def rating(self, prompts: Sequence[Sequence[Message]], responses: Sequence[str]) -> RatingJob:
        """Return the job that rates responses."""
        return RatingJob(*self._for_caller(), prompts, responses)

    def _for_caller(self) -> tuple[Model, Callable[[], None]]:
        return for_caller(self._model, time.monotonic() + self._timeout_s)

    def end(self) -> None:
        """Tell all waiting requests that the server is shutting down."""
        for emit in list(self._waiting):
            emit(Failed(shutting_down()))

    def close(self) -> None:
        """Take no more jobs, and end those that run."""
        self.queue.close()

    async def events(self, job: Job, request: HttpRequest) -> AsyncGenerator[Any, None]:
        """Queue a job and yield its events, the last one a `Finished`; closing cancels the job."""
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[Any] = asyncio.Queue()

        def emit(event: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(arrived.put_nowait, event)

        async def watch() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            arrived.put_nowait(Failed(ClientGone()))

        job.emit = emit
        timer = loop.call_later(self._timeout_s, arrived.put_nowait, Failed(self._too_slow()))
        tasks = [asyncio.ensure_future(watch()), asyncio.ensure_future(self._start(job))]
        self._waiting.add(emit)
        event = None
        try:
            while True:
                event = await arrived.get()
                if isinstance(event, Failed):
                    gone = isinstance(event.error, ClientGone)
                    raise event.error if gone else as_api_error(event.error)
                yield event
                if isinstance(event, Finished):
                    return
        finally:
            del event  # an error that is raised here would hold itself by this frame
            self._waiting.discard(emit)
            timer.cancel()
            for task in tasks:
                task.cancel()
            job.cancel()

    async def _start(self, job: Job) -> None:
        """Prepare a job and queue it; if it cannot be done, say so in its last event."""
        try:
            await asyncio.to_thread(job.prepare)
            self.queue.submit(job)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # not even a SystemExit may end the server
            job.emit(Failed(error))

    def _too_slow(self) -> ApiError:
        text = f"not done after {self._timeout_s:g} s; ask for fewer tokens or samples"
        return ApiError(504, text, code="timeout")


def draw(together: Together) -> None:
    """Draw the samples of requests side by side from a model in this process, as they arrive."""
    from grace.engines.local.sampling import SampleRequest

    engine: Any = together.jobs[0].engine
    batch = engine.batch()
    choices: dict[int, Choice] = {}  # those that go on, by row

    def add(jobs: Sequence[Completion]) -> None:
        for job in jobs:
            new = job.choices()
            if job.params.echo:
                _echo(job, new)
            if not job.params.sampling.max_new_tokens:
                for choice in new:
                    choice.close(None)
                continue
            allowed = [choice.allowed for choice in new if choice.allowed]
            request = SampleRequest(job.prompts, job.params.sampling, job.prompt_keys(), allowed)
            choices.update(enumerate(new, batch.add(request)))

    def join() -> None:
        if batch.exchanges or not choices:
            add(together.join(engine.batch_size - len(choices)))

    add(together.jobs)
    join()
    for step in batch:
        over = []
        for result in step:
            choice = choices[result.row]
            best = batch.most_probable(result.row, choice.top) if choice.top else []
            if not choice.add(result, _named(engine, best)):
                over.append(result.row)
        for row, made in zip(over, batch.responses(over), strict=True):
            choice = choices.pop(row)
            choice.close(made)
            if choice.to_rate is not None:
                choice.end_rated(*engine.rated([choice.prompt], [choice.to_rate]))
        join()


def _echo(job: Completion, choices: Sequence[Choice]) -> None:
    """Begin each choice with its prompt; where tokens are listed, with their probabilities."""
    engine: Any = job.engine
    top, samples = job.params.top, job.params.sampling.num_samples
    found = [[]] * len(job.prompts) if top is None else engine.read(job.prompts, top)
    for number, (prompt, read) in enumerate(zip(job.prompts, found, strict=True)):
        texts = pieces(engine.tokenizer, prompt)
        places = [*itertools.accumulate(map(len, texts), initial=0)]
        listed = [(None, None), *((max(p, LOWEST), _named(engine, best)) for p, best in read)]
        tokens = [
            Token(name_of(engine.tokenizer, token), *probable, place)
            for token, probable, place in zip(prompt, listed, places, strict=False)
        ]
        for choice in choices[number * samples : (number + 1) * samples]:
            choice.begin("".join(texts), () if top is None else tokens)


def _named(engine: Any, best: Sequence[tuple[int, float]]) -> Top:
    """Return the texts of the most probable tokens, with their log-probabilities."""
    return tuple((name_of(engine.tokenizer, token), max(value, LOWEST)) for token, value in best)


def _draw_upstream(together: Together) -> None:
    """Draw the samples of one request upstream, each with a request of its own."""
    (job,) = together.jobs
    engine: Any = job.engine
    choices = zip(job.choices(), job.sample_keys(), strict=True)
    engine.wait(_all([_relay(engine, job.params, choice, *key) for choice, key in choices]))


async def _relay(
    engine: OpenAIEngine, params: CompletionParams, choice: Choice, key: str, number: int
) -> None:
    """Draw one sample upstream; without a seed of the client's, the upstream chooses its own."""
    seed = seed_from(params.sampling.seed, number, key) if params.key is None else None
    schema = params.form.schema if params.form and choice.allowed is None else None
    request = Request(choice.prompt, params.sampling, seed, True, schema, choice.allowed)
    results, goes_on = list[StepResult](), True
    async with aclosing(engine.remote.steps(request)) as arriving:
        async for steps in arriving:
            for result in map(engine.reader.result, steps):
                results.append(result)
                if not (goes_on := choice.add(result, ())):
                    break
            if not goes_on:
                break
    choice.close(to_response(results, engine.reader, engine.tokenizer))
    if choice.to_rate is not None:
        choice.end_rated(await engine.remote.rated(choice.prompt, choice.to_rate))


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
    """Test-time scaling: `Model.vote` with its `options`, and an event for each sample."""

    def __init__(self, model: Model, hang_up: Callable[[], None], options: dict[str, Any]) -> None:
        super().__init__(hang_up)
        self._model, self._options = model, options
        self.size = options["budget"]
        self._prompt: list[int] = []

    def prepare(self) -> None:
        """Encode the question."""
        engine, options = self._model.engine, self._options
        refuse_longer(engine.tokenizer, [options["question"], *options["choices"]], engine.limit)
        self._prompt = self._model.encode(options["question"], options["choices"])
        longest = options["max_new_tokens"] or self._model.sample.longest
        self.work = len(self._prompt) + self.size * longest

    def run(self, together: Together) -> None:
        """Sample until the strategy stops or the budget is spent, and decide."""
        decision = self._model.vote(**self._options, on_vote=self._voted, prompt=self._prompt)
        agreeing = [vote for vote in decision.votes if vote.answer == decision.answer]
        ended = any(vote.confidence is not None for vote in agreeing)
        self.emit(Piece(0, decision.text))
        about = (decision.confidence, decision.familiar)
        self.emit(Ended(0, "stop" if ended else "length", *about))
        ends = sum(vote.confidence is not None for vote in decision.votes)  # else cut or dropped
        tokens = decision.issued_tokens + ends
        self.emit(Finished(len(self._prompt), tokens, to_json(decision)))

    def _voted(self, vote: Vote, leading: str | None) -> None:
        if self.cancelled.is_set():
            raise Cancelled
        self.show(Voted(vote, leading))


class RatingJob(Job):
    """The confidences of responses: `Model.score`."""

    def __init__(
        self,
        model: Model,
        hang_up: Callable[[], None],
        prompts: Sequence[Sequence[Message]],
        responses: Sequence[str],
    ) -> None:
        super().__init__(hang_up)
        self._model, self._prompts, self._responses = model, prompts, responses
        self.size = max(1, len(responses))
        self._encoded: tuple[list[list[int]], list[list[int]]] = ([], [])

    def prepare(self) -> None:
        """Encode all prompts and responses."""
        engine = self._model.engine
        for chat, response in zip(self._prompts, self._responses, strict=True):
            texts = [*(message["content"] for message in chat), response]
            refuse_longer(engine.tokenizer, texts, engine.limit)
        self._encoded = self._model.encode_all(self._prompts, self._responses)
        self.work = sum(len(ids) for side in self._encoded for ids in side)

    def run(self, together: Together) -> None:
        """Rate all responses."""
        if self.cancelled.is_set():
            raise Cancelled
        found = rated(self._model.engine.rated, *self._encoded, self._responses, blank=UNRATED)
        self.emit(Finished(self.work, 0, found))
