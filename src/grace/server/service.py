"""From a request to a job, and from the job's events to an answer or a stream."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, NamedTuple

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from grace.chat import encode_chat, encode_prompt, encode_text, refuse_longer
from grace.engines import Sampling
from grace.engines.structured import Form
from grace.errors import UserInputError
from grace.model.rules import answering, promised, usual_budget, usual_strategy
from grace.records import Message
from grace.server.counters import Counters
from grace.server.errors import ApiError
from grace.server.fallback import Fallback
from grace.server.jobs.backends import Backend
from grace.server.jobs.completion import Completion, CompletionParams, Ended
from grace.server.jobs.queue import Finished, Job
from grace.server.replies import Answer, Envelope, GraceFields, Json, Writer, rated, usage
from grace.server.requests import ChatRequest, CompletionRequest, GraceOptions, ScoreRequest
from grace.server.responding import Responses, ResponsesRequest
from grace.server.settings import ServerSettings
from grace.strategies import TEMPERATURE

if TYPE_CHECKING:
    from grace.model import Model

CHAT = Writer()
STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
SEEDS = 2**31
MAX_CHOICES = 64  # samples of one request: `n` for every prompt, or the budget of a vote
FORMED_TOKENS = 1024  # of an answer with a form, which is longer than those of the fit
MAX_ITEMS = 256  # responses of one `/v1/score`


class Prepared(NamedTuple):
    """What answers a request, and what is written around its answer."""

    job: Job
    envelope: Envelope
    grace_fields: GraceFields | None = None


class Service:
    """Answers the requests to one model."""

    def __init__(self, model: Model, settings: ServerSettings) -> None:
        self.model, self.settings = model, settings
        self.backend = Backend(model, settings)
        encode_text(model.engine.tokenizer, "")  # copies the tokenizer now, not in a request
        self.counters = Counters(lambda: len(self.backend.queue.waiting))
        self._fallback: Fallback | None = None
        if (other := settings.fallback) is not None:
            self._fallback = Fallback(other, settings.name, self.counters, settings.timeout_s)

    async def close(self) -> None:
        """Take no more jobs, end those that run, and close connections."""
        self.backend.close()
        if self._fallback is not None:
            await self._fallback.close()

    async def respond(self, body: ResponsesRequest, request: Request) -> Response:
        """Answer `/v1/responses`."""
        return await self.chat(body.as_chat(), request, Responses(body))

    async def chat(self, body: ChatRequest, request: Request, writer: Writer = CHAT) -> Response:
        """Answer `/v1/chat/completions`."""
        self._check(body)
        options, form = body.grace, body.form
        if form is not None or options is None or options.prompt == "raw":
            return await self._answer(body, request, self._conversation(body, form), writer)
        messages = self.model.messages(body.question, options.choices)
        budget = options.budget or usual_budget(self.model.promise, options.strategy)
        if budget > 1:
            return await self._answer(body, request, self._vote(body, options, budget), writer)
        if options.strategy is not None:
            raise _refused("grace.strategy", "a strategy needs a budget of at least 2 samples")
        temperature, top_p = body.temperature or 0.0, body.top_p or self.model.sample.top_p
        is_open = not options.choices
        job = self._completion(
            body, lambda: [self._encode(messages)], temperature, top_p, is_open=is_open
        )
        asked = Prepared(job, self._own_envelope(), self._threshold_fields(body, options))
        return await self._answer(body, request, asked, writer)

    async def complete(self, body: CompletionRequest, request: Request) -> Response:
        """Answer `/v1/completions`."""
        self._check(body)
        engine, prompts = self.model.engine, body.prompts
        if body.echo and not self.backend.lists_most_probable:
            raise _refused("echo", "the upstream does not list a prompt's tokens; leave it out")
        sent = {token for ids in prompts if not isinstance(ids, str) for token in ids}
        if sent and max(sent) >= len(engine.tokenizer):
            most = len(engine.tokenizer) - 1
            raise _refused("prompt", f"there is no token {max(sent)}; the last one is {most}")
        if engine.readout is not None and (read := sent & {*engine.readout.ids}):
            raise _refused("prompt", f"token {min(read)} belongs to the confidence; leave it out")

        def encode() -> list[list[int]]:
            texts = [prompt for prompt in prompts if isinstance(prompt, str)]
            for text in texts:
                refuse_longer(engine.tokenizer, [text], engine.limit)
            return [
                encode_prompt(engine.tokenizer, one) if isinstance(one, str) else one
                for one in prompts
            ]

        job = self._completion(body, encode, body.temperature, body.top_p, len(prompts))
        envelope = Envelope(False, self.settings.name, calibrated=False)
        return await self._answer(body, request, Prepared(job, envelope), CHAT)

    async def score(self, body: ScoreRequest, request: Request) -> Response:
        """Answer `/v1/score`."""
        self.check_model(body.model)
        if len(body.input) > MAX_ITEMS:
            many = f"{len(body.input)} responses; send at most {MAX_ITEMS} at a time"
            raise _refused("input", many)
        prompts = []
        for index, item in enumerate(body.input):
            try:
                prompts.append(item.chat(self.model))
            except UserInputError as error:
                raise _refused(f"input[{index}]", f"input[{index}]: {error}") from error
        job = self.backend.rating(prompts, [item.response for item in body.input])
        async with aclosing(self.backend.events(job, request)) as arriving:
            finished: Finished = await anext(arriving)
        self.counters.count_tokens(finished)
        data = []
        for index, (found, prompt) in enumerate(zip(finished.value, prompts, strict=True)):
            self.counters.count_answer(found.confidence, found.familiar)
            own = body.input[index].question is not None
            calibrated = self.model.asks_as_trained if own else self.model.is_trained_on(prompt)
            data.append({"index": index, **rated(found, calibrated=calibrated)})
        about = {"object": "list", "model": self.settings.name}
        return JSONResponse(about | {"data": data, "usage": usage(finished)})

    def _own_envelope(self) -> Envelope:
        return Envelope(True, self.settings.name, calibrated=self.model.asks_as_trained)

    def _conversation(self, body: ChatRequest, form: Form | None) -> Prepared:
        """Return what answers it; a single user turn is a question and gets the training prompt."""
        messages = body.chat
        calibrated = self.model.is_trained_on(messages)
        alone = len(messages) == 1 and messages[0]["role"] == "user"
        if alone and self.model.trained_prompt and body.grace is None and not calibrated:
            messages = self.model.messages(messages[0]["content"])
            calibrated = self.model.asks_as_trained
        job = self._completion(
            body, lambda: [self._encode(messages)], body.temperature, body.top_p, form=form
        )
        envelope = Envelope(
            True,
            self.settings.name,
            calibrated=calibrated and form is None,  # no fit has seen an answer with a form
            function=form.function if form else "",
        )
        return Prepared(job, envelope)

    def _completion(
        self,
        body: ChatRequest | CompletionRequest,
        encode: Callable[[], list[list[int]]],
        temperature: float | None,
        top_p: float | None,
        num_prompts: int = 1,
        form: Form | None = None,
        *,
        is_open: bool = False,  # for sure: the text of a conversation may hold options
    ) -> Completion:
        choices = num_prompts * body.n
        if choices > MAX_CHOICES:
            field = "n" if body.n > 1 else "prompt"
            raise _refused(field, f"{choices} choices; ask for at most {MAX_CHOICES}")
        if body.top and not self.backend.lists_most_probable:
            name = "top_logprobs" if isinstance(body, ChatRequest) else "logprobs"
            raise _refused(
                name,
                "the model's engine lists either the most probable tokens or <CNF>; "
                f"set {name} to 0",
            )
        sample, longest = self.model.sample, body.longest if form else self._longest(body)
        usual = sample.longest if not is_open else sample.open_tokens or sample.longest
        if form is not None:
            usual = min(max(usual, FORMED_TOKENS), self.settings.max_tokens)
        sampling = Sampling(
            num_samples=body.n,
            temperature=1.0 if temperature is None else temperature,
            top_p=top_p or 1.0,
            max_new_tokens=usual if longest is None else longest,
            seed=body.seed or 0,
        )
        key = secrets.token_hex(8) if body.seed is None else None
        params = CompletionParams(
            encode,
            num_prompts,
            sampling,
            key,
            body.stops,
            body.top,
            form,
            shortens=form is not None and body.longest is None,
            echo=isinstance(body, CompletionRequest) and body.echo,
        )
        return self.backend.completion(params)

    def _vote(self, body: ChatRequest, options: GraceOptions, budget: int) -> Prepared:
        _check_vote(body, budget)
        seed = secrets.randbelow(SEEDS) if body.seed is None else body.seed
        vote = dict(
            question=body.question,
            choices=options.choices,
            strategy=options.strategy,
            budget=budget,
            threshold=options.threshold,
            parallel=options.parallel,
            temperature=TEMPERATURE if body.temperature is None else body.temperature,
            max_new_tokens=self._longest(body),
            seed=seed,
        )
        used = {
            "strategy": options.strategy or usual_strategy(self.model.promise, self.model.fitted),
            "budget": budget,
            "seed": seed,
        }
        return Prepared(self.backend.voting(vote), self._own_envelope(), lambda _, __: used)

    def _threshold_fields(self, body: ChatRequest, options: GraceOptions) -> GraceFields:
        """Return a function that says whether a single answer reaches the threshold."""
        temperature = body.temperature or 0.0
        chosen = None if body.stops else self.model.promise
        use = answering(options.threshold, chosen, temperature, self._longest(body))

        def fields(text: str, ended: Ended) -> Json:
            return {
                "answer": self.model.task.answer(text, options.choices),
                "threshold": use.tau,
                "promise": promised(use.promise, ended.familiar),
                "abstains": use.abstains(ended.confidence),
            }

        return fields

    def _longest(self, body: ChatRequest | CompletionRequest) -> int | None:
        """Return the maximum length of an answer, None for that of the training run."""
        most = self.settings.max_tokens
        if body.longest is not None:
            return body.longest
        return most if most < self.model.sample.longest else None

    def _check(self, body: ChatRequest | CompletionRequest) -> None:
        """Refuse another model's name, and answers that are longer than the server allows."""
        self.check_model(body.model)
        most = self.settings.max_tokens
        if body.longest is not None and body.longest > most:
            field = "max_tokens" if body.longest == body.max_tokens else "max_completion_tokens"
            raise _refused(field, f"{body.longest} tokens; ask for at most {most}")

    def check_model(self, name: str) -> None:
        """Refuse another model's name."""
        if name != self.settings.name:
            text = f"model {name!r} is not served here; use {self.settings.name!r}"
            raise ApiError(404, text, param="model", code="model_not_found")

    def _encode(self, messages: Sequence[Message]) -> list[int]:
        engine = self.model.engine
        refuse_longer(engine.tokenizer, [one["content"] for one in messages], engine.limit)
        return encode_chat(engine.tokenizer, messages)

    def _to_others(self, body: ChatRequest) -> list[Message]:
        """Return the conversation as another server reads it: with the options of a question."""
        if body.grace is None or not body.grace.choices:
            return body.chat
        asked = self.model.messages(body.question, body.grace.choices)
        return [one | {"role": "user"} if one["role"] == "text" else one for one in asked]

    async def _answer(
        self,
        body: ChatRequest | CompletionRequest,
        request: Request,
        asked: Prepared,
        writer: Writer,
    ) -> Response:
        """Answer whole or by a stream, whose first event comes first: an error keeps its status."""
        answer = Answer(asked.envelope, self.counters, asked.grace_fields, writer)
        arriving = self.backend.events(asked.job, request)
        if self._fallback is not None and isinstance(body, ChatRequest) and body.n == 1:
            arriving = self._fallback.events(arriving, body, self._to_others(body))
        if not body.stream:
            return JSONResponse(await answer.whole(arriving))
        first = await anext(arriving)
        lines = answer.lines(first, arriving, usage_wanted=bool(body.stream_options.include_usage))
        return StreamingResponse(lines, media_type="text/event-stream", headers=STREAM_HEADERS)


def _check_vote(body: ChatRequest, budget: int) -> None:
    if budget > MAX_CHOICES:
        raise _refused("grace.budget", f"{budget} samples; ask for at most {MAX_CHOICES}")
    unsupported = {
        "n": body.n > 1,
        "top_p": body.top_p is not None,
        "stop": bool(body.stops),
        "logprobs": body.logprobs,
    }
    for name, is_set in unsupported.items():
        if is_set:
            raise _refused(name, f"a vote takes no {name}; leave it out, or set a budget of 1")


def _refused(param: str, message: str) -> ApiError:
    return ApiError(400, message, param=param)
