"""A model on a server, as coroutines: samples step by step, and c of given responses."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, ClassVar

from grace.engines import Ids, Rating, Sampling, seed_from
from grace.engines.http.background import in_order
from grace.engines.http.dialect import (
    Request,
    listing,
    only,
    prompt_logprobs,
    read_steps,
    sample_body,
)
from grace.engines.http.upstream import Json, Upstream, UpstreamError
from grace.engines.reading import MOST_IDS, Reader, Scored, Step, rated, read
from grace.records import Response

CHECK_S = 60.0  # seconds between two looks whether the server has other weights
LEEWAY = 0.25  # tolerance of a log-probability, plus 2% of it: the error of half precision
GREEDY = Sampling(max_new_tokens=1)  # the next token
AHEAD = 16  # requests in flight for the tokens of one response


@dataclass(frozen=True, slots=True)
class Served:
    """A server's description of its model; what is not known is None, empty or 0."""

    model: str
    context: int | None = None
    version: str = ""
    # in the head: vLLM 0.32 crashes on prompt logprobs then, so each token is a request
    lora: bool = False
    root: str = ""
    rows: int = 0


@dataclass(slots=True)
class Identity:
    """The first step of the first probe: a restarted server with another c is known by it."""

    prompt: Ids
    step: Step
    checked: float  # time of the last comparison (`time.monotonic`)

    async def check(self, remote: Remote) -> None:
        """Repeat the probe if the last one is long ago, and refuse a server with other weights."""
        now = time.monotonic()
        if now - self.checked < CHECK_S:
            return
        self.checked = now  # whoever comes meanwhile does not wait
        step = await remote.first(self.prompt, 0.0)
        if not alike(self.step, step):
            self.checked = -math.inf
            raise UpstreamError(
                "the upstream has another model than when it was first asked, so confidences would "
                "be wrong; restart this server or client, with the folder of that model",
                "unsupported",
            )


def alike(one: Step, other: Step) -> bool:
    """Return whether two steps after one prompt may come from the same weights."""
    shared = one.logprobs.keys() & other.logprobs.keys()
    pairs = [(one.logprobs[i], other.logprobs[i]) for i in shared]
    return bool(pairs) and all(abs(a - b) <= LEEWAY + 0.02 * abs(a) for a, b in pairs)


@dataclass(frozen=True, slots=True)
class Remote:
    """A model on a vLLM server; subclasses are for other servers."""

    software: ClassVar[str] = "vLLM"
    # for log-probabilities that are not raw
    remedy: ClassVar[str] = "start the server with --logprobs-mode raw_logprobs (vLLM's default)"
    stepwise: ClassVar[bool] = False  # none of prompts: each token of a response is a request
    draws_here: ClassVar[bool] = False  # from the probabilities that it lists

    upstream: Upstream
    tokenizer: Any
    reader: Reader
    served: Served
    identity: Identity | None = None

    async def first(self, prompt: Ids, temperature: float) -> Step:
        """Return the step after a prompt, at a temperature; it may lack ids that were asked for."""
        sampling = Sampling(temperature=temperature, max_new_tokens=1)
        (step,) = self._read(await self._answer(self._body(Request(prompt, sampling, 0))), 0, ())
        return step

    async def steps(self, request: Request) -> AsyncGenerator[list[Step], None]:
        """Yield the steps of one sample as they arrive; closing this ends the request."""
        await self.check()
        body, requested, seen = self._body(request), self.reader.requested, 0
        if not request.stream:
            yield self._read(await self._answer(body), 0, requested)
            return
        async with aclosing(self._parts(body)) as parts:
            async for part in parts:
                if steps := self._read(part, seen, requested):
                    seen += len(steps)
                    yield steps
        if seen < request.sampling.max_new_tokens:  # whoever reads closes this at an end token
            raise UpstreamError("the upstream stopped within an answer", "broken")

    async def generation(
        self, request: Request, arrived: Callable[[int], None] = lambda _: None
    ) -> Response:
        """Return one sample; `arrived` is called with the number of tokens of each part."""
        steps = list[Step]()
        async with aclosing(self.steps(request)) as arriving:
            async for more in arriving:
                steps += more
                results = map(self.reader.result, more)
                tokens = sum(1 for _ in takewhile(lambda one: not one.ended, results))
                arrived(tokens)
                if tokens < len(more):
                    break
        return read(steps, self.reader, self.tokenizer)

    async def next_logprobs(self, context: Ids, ids: Ids) -> list[float]:
        """Return the log-probabilities of tokens after a context, temperature 1."""
        await self.check()
        logprobs: list[float] = []
        for start in range(0, len(ids), MOST_IDS):
            part = ids[start : start + MOST_IDS]
            step = await self._next(context, part)
            logprobs += [step.listed[i] for i in part]
        return logprobs

    async def rated(self, prompt: Ids, response: Ids) -> Rating:
        """Return c of a given response (token ids without the end token), and its fields."""
        scored = await self.scored(*self.reader.read_for_c(prompt, response))
        return rated(scored, response, self.reader, self.tokenizer)

    async def scored(self, prompt: Ids, response: Ids) -> Scored:
        """Return a given response: one request if c needs the end alone, else one for each step."""
        await self.check()
        context, requested = [*prompt, *response], self.reader.requested
        if response and not (self.stepwise or self.served.lora or self.reader.every_step):
            choice = await self._answer(self._one_more(context, requested) | {"prompt_logprobs": 0})
            logprobs = prompt_logprobs(choice, context, len(response))
            return self.reader.scored([only(self._read(choice, 0, requested))], logprobs)
        tokens = [*response, self.reader.eos[0]]
        work = (
            self._next(context[: len(prompt) + place], [*dict.fromkeys([*requested, token])])
            for place, token in enumerate(tokens)
        )
        async with aclosing(in_order(work, AHEAD)) as arriving:
            drawn = [step async for step in arriving]
        chosen = [
            Step(token, step.listed[token], step.logprobs)
            for step, token in zip(drawn, tokens, strict=True)
        ]
        return self.reader.scored(chosen)

    async def check(self) -> None:
        """Refuse a server that has other weights now than when it was probed."""
        if self.identity is not None:
            await self.identity.check(self)

    async def _next(self, context: Ids, ids: Ids) -> Step:
        """Return the step after a context, which lists these ids."""
        return only(self._read(await self._answer(self._one_more(context, ids)), 0, ids))

    def _one_more(self, context: Ids, ids: Ids) -> Json:
        """Return the body of a request for the most probable next token."""
        return self._body(Request(context, GREEDY)) | listing(ids)

    def _body(self, request: Request) -> Json:
        return sample_body(self.served.model, self.reader, request)

    async def _answer(self, body: Json) -> Json:
        return await self.upstream.complete(body)

    def _parts(self, body: Json) -> AsyncGenerator[Json, None]:
        return self.upstream.stream(body)

    def _read(self, answer: Json, seen: int, requested: Ids) -> list[Step]:
        """Return the steps of an answer, or of a part that follows `seen` steps."""
        return read_steps(answer, requested)


def seed_of(sampling: Sampling, key: str, number: int) -> int:
    """Return the seed of a sample on the server; it depends on (seed, key, number) alone."""
    return seed_from(sampling.seed, number, key)
