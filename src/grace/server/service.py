"""Requests to jobs, and the events of jobs to answers or streams."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from grace.chat import encode_chat, encode_prompt, encode_text
from grace.engines import Sampling
from grace.errors import UserInputError
from grace.model.rules import answering, usual_budget
from grace.records import Message
from grace.server.counters import Counters
from grace.server.errors import ApiError
from grace.server.jobs.backends import backend
from grace.server.jobs.completion import Asked, Ended
from grace.server.jobs.line import Line
from grace.server.jobs.queue import Emit, Finished, Job
from grace.server.replies import Answer, Envelope, Extra, Json, usage
from grace.server.requests import ChatRequest, CompletionRequest, GraceOptions, ScoreRequest
from grace.server.settings import ServerSettings
from grace.strategies import TEMPERATURE

if TYPE_CHECKING:
    from grace.model import Model

Make = Callable[[Emit], Job]
STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
SEEDS = 2**31
MARK = "\ue0f2"  # stands for a question in the prompt of the training run
MAX_CHOICES = 64  # samples of one request: `n` for every prompt, or the budget of a vote
MAX_ITEMS = 256  # responses of one `/v1/score`


class Service:
    """Answers the requests to one model."""

    def __init__(self, model: Model, settings: ServerSettings) -> None:
        self.model, self.settings = model, settings
        self.backend = backend(model, settings)
        self.line = Line(self.backend, settings.timeout_s)
        try:
            self._trained: Sequence[Message] = model.messages(MARK)
        except UserInputError:  # a task that asks no question without options
            self._trained = ()
        encode_text(model.engine.tokenizer, "")  # copies the tokenizer now, not for a request
        self.counters = Counters(lambda: len(self.backend.queue.waiting))

    async def chat(self, body: ChatRequest, request: Request) -> Response:
        """Answer `/v1/chat/completions`."""
        options = body.grace
        if options is None or not body.asks:
            return await self._converse(body, request)
        question = body.question
        asked = self.model.messages(question, options.choices)
        budget = usual_budget(self.model.promise, options.strategy)
        if (options.budget or budget) > 1:
            return await self._vote(body, options, options.budget or budget, request)
        if options.strategy is not None:
            raise _refused("grace.strategy", "a strategy needs a budget of at least 2 samples")
        make = self._completion(body, lambda: [self._encode(asked)], body.top)
        extra = self._asked(body, options)
        return await self._answer(body, request, make, Envelope(True, self.settings.name), extra)

    async def complete(self, body: CompletionRequest, request: Request) -> Response:
        """Answer `/v1/completions`."""
        engine = self.model.engine
        make = self._completion(
            body,
            lambda: [
                encode_prompt(engine.tokenizer, text, context=engine.limit) for text in body.prompts
            ],
            body.logprobs,
            num_prompts=len(body.prompts),
        )
        reply = Envelope(False, self.settings.name, calibrated=False)
        return await self._answer(body, request, make, reply)

    async def score(self, body: ScoreRequest, request: Request) -> Response:
        """Answer `/v1/score`."""
        self._check_model(body.model)
        if len(body.input) > MAX_ITEMS:
            many = f"{len(body.input)} responses; send at most {MAX_ITEMS} at a time"
            raise _refused("input", many)
        prompts = [item.chat(self.model) for item in body.input]
        calibrated = [self._is_trained(prompt) for prompt in prompts]
        responses = [item.response for item in body.input]
        make = partial(self.backend.rating, prompts, responses)
        async with aclosing(self.line.events(make, request)) as arriving:
            finished: Finished = await anext(arriving)
        rated = zip(finished.value, calibrated, strict=True)
        data = [
            {"index": index, "confidence": value, "calibrated": known}
            for index, (value, known) in enumerate(rated)
        ]
        self.counters.count(finished)
        for value in finished.value:
            self.counters.rated(value)
        about = {"object": "list", "model": self.settings.name}
        return JSONResponse(about | {"data": data, "usage": usage(finished)})

    async def _converse(self, body: ChatRequest, request: Request) -> Response:
        """Answer a conversation; one user turn is a question, asked as in the training run.

        Its confidence is calibrated where the model reads the prompt of the training run.
        """
        messages = body.plain
        calibrated = self._is_trained(messages)
        alone = len(messages) == 1 and messages[0]["role"] == "user"
        if alone and self._trained and body.grace is None and not calibrated:
            messages, calibrated = list(self.model.messages(messages[0]["content"])), True
        make = self._completion(body, lambda: [self._encode(messages)], body.top)
        reply = Envelope(True, self.settings.name, calibrated=calibrated)
        return await self._answer(body, request, make, reply)

    def _is_trained(self, given: Sequence[Message]) -> bool:
        """Return whether messages are a question as the training run asks it."""
        return bool(self._trained) and len(given) == len(self._trained) and all(
            message["role"] == own["role"] and _fits(message["content"], own["content"])
            for message, own in zip(given, self._trained, strict=True)
        )  # fmt: skip

    def _completion(
        self,
        body: ChatRequest | CompletionRequest,
        encode: Callable[[], list[list[int]]],
        top: int | None,
        num_prompts: int = 1,
    ) -> Make:
        self._check_model(body.model)
        choices = num_prompts * body.n
        if choices > MAX_CHOICES:
            raise _refused("n", f"{choices} choices; ask for at most {MAX_CHOICES}")
        temperature, top_p = body.temperature, body.top_p
        if isinstance(body, ChatRequest) and body.asks:
            temperature, top_p = temperature or 0.0, top_p or self.model.sample.top_p
        sampling = Sampling(
            num_samples=body.n,
            temperature=1.0 if temperature is None else temperature,
            top_p=top_p or 1.0,
            max_new_tokens=self._longest(body) or self.model.sample.longest,
            seed=body.seed or 0,
        )
        key = secrets.token_hex(8) if body.seed is None else None
        asked = Asked(encode, num_prompts, sampling, key, body.stops, top)
        return partial(self.backend.completion, asked)

    async def _vote(
        self, body: ChatRequest, options: GraceOptions, budget: int, request: Request
    ) -> Response:
        self._check_vote(body, options, budget)
        temperature = TEMPERATURE if body.temperature is None else body.temperature
        seed = secrets.randbelow(SEEDS) if body.seed is None else body.seed
        vote = dict(
            question=body.question,
            choices=options.choices,
            strategy=options.strategy,
            budget=budget,
            threshold=options.threshold,
            parallel=options.parallel,
            temperature=temperature,
            max_new_tokens=self._longest(body),
            seed=seed,
        )
        used = {"strategy": options.strategy or "es", "budget": budget, "seed": seed}
        return await self._answer(
            body,
            request,
            partial(self.backend.voting, vote),
            Envelope(True, self.settings.name),
            lambda _, __: used,
        )

    def _check_vote(self, body: ChatRequest, options: GraceOptions, budget: int) -> None:
        self._check_model(body.model)
        if max(budget, options.parallel) > MAX_CHOICES:
            raise _refused("grace.budget", f"{budget} samples; ask for at most {MAX_CHOICES}")
        for name, wrong in {
            "n": body.n > 1,
            "top_p": body.top_p is not None,
            "stop": bool(body.stops),
            "logprobs": body.logprobs,
        }.items():
            if wrong:
                raise _refused(name, f"a vote takes no {name}; leave it out, or set a budget of 1")

    def _asked(self, body: ChatRequest, options: GraceOptions) -> Extra:
        """Return the function that says whether a single answer reaches the threshold."""
        temperature = body.temperature or 0.0
        use = answering(options.threshold, self.model.promise, temperature, self._longest(body))

        def said(text: str, ended: Ended) -> Json:
            return {
                "answer": self.model.task.answer(text),
                "threshold": use.tau,
                "promise": use.promise,
                "abstains": use.abstains(ended.confidence),
            }

        return said

    def _longest(self, body: ChatRequest | CompletionRequest) -> int | None:
        longest = body.max_tokens
        if isinstance(body, ChatRequest):
            longest = body.max_completion_tokens or longest
        most = self.settings.max_tokens
        if longest is not None and longest > most:
            raise _refused("max_tokens", f"{longest} tokens; ask for at most {most}")
        return longest

    def _check_model(self, name: str) -> None:
        if name != self.settings.name:
            raise ApiError(
                404,
                f"model {name!r} is not here; use {self.settings.name!r}",
                param="model",
                code="model_not_found",
            )

    def _encode(self, messages: Sequence[Message]) -> list[int]:
        engine = self.model.engine
        return encode_chat(engine.tokenizer, messages, context=engine.limit)

    async def _answer(
        self,
        body: ChatRequest | CompletionRequest,
        request: Request,
        make: Make,
        reply: Envelope,
        extra: Extra | None = None,
    ) -> Response:
        """Run a job; answer with the whole or with a stream. Errors before either have a status."""
        answer = Answer(reply, self.counters, extra)
        arriving = self.line.events(make, request)
        if not body.stream:
            return JSONResponse(await answer.whole(arriving))
        first = await anext(arriving)
        lines = answer.lines(first, arriving, usage_wanted=body.stream_options.include_usage)
        return StreamingResponse(lines, media_type="text/event-stream", headers=STREAM_HEADERS)


def _refused(param: str, message: str) -> ApiError:
    return ApiError(400, message, param=param)


def _fits(text: str, own: str) -> bool:
    before, mark, after = own.partition(MARK)
    if not mark:
        return text == own
    inside = len(text) - len(before) - len(after)
    return inside > 0 and text.startswith(before) and text.endswith(after)
