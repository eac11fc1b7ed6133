"""A model on a vLLM server, as coroutines: samples step by step, and c of given responses.

vLLM 0.26 and later lists the log-probabilities of any token ids (`logprob_token_ids`). A server
that lists the most probable tokens only is refused (`grace.engines.http.probing`), since `<CNF>` is
hardly ever among them.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, ClassVar, NamedTuple

from grace.engines import Ids, Rating, Sampling
from grace.engines.http.background import in_order
from grace.engines.http.upstream import Json, Upstream, UpstreamError, parsing, short
from grace.engines.reading import MOST_IDS, Reader, Scored, Step, rated, read
from grace.engines.structured import Allowed
from grace.records import Response

CHECK_S = 60.0  # seconds between two looks whether the server has other weights
LEEWAY = 0.25  # tolerance of a log-probability, plus 2% of it: the error of half precision
GREEDY = Sampling(max_new_tokens=1)  # the next token
AHEAD = 16  # requests in flight for the tokens of one response
PREFIX = "token_id:"
NO_LOGPROB = "the upstream sent a value that is no log-probability"
ROUNDING = 1e-3  # how far rounding may put a log-probability above 0


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
        if response and not (self.stepwise or self.served.lora or self.reader.banned):
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


# --- vLLM's completions API


class Request(NamedTuple):
    """A request for one sample of one prompt."""

    prompt: Ids
    sampling: Sampling
    seed: int | None = None  # None: the server's choice
    stream: bool = False
    # kept to by the server, whose log-probabilities are then those of what it allows
    schema: Json | None = None
    allowed: Allowed | None = None  # the same, where tokens are drawn here


def sample_body(model: str, reader: Reader, request: Request) -> Json:
    """Return the request of one sample; a server's own defaults, as of top-k, are switched off."""
    sampling = request.sampling
    body: Json = {
        "model": model,
        "prompt": list(request.prompt),
        "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop_token_ids": list(reader.stops),
        "return_tokens_as_token_ids": True,
        "return_token_ids": True,
        "stream": request.stream,
    }
    if request.seed is not None:
        body["seed"] = request.seed
    if reader.banned:
        body["logit_bias"] = {str(token): -100 for token in reader.banned}
    if request.schema is not None:
        form = {"name": "answer", "schema": request.schema}
        body["response_format"] = {"type": "json_schema", "json_schema": form}
    return body | listing(reader.requested)


def listing(ids: Ids) -> Json:
    """Return the fields that ask for the log-probabilities of these ids."""
    return {"logprobs": 1, "logprob_token_ids": list(ids)}


def _named(name: str) -> int | None:
    """Return the id in a token's name (`token_id:7`), None if the name is the token's text."""
    return int(name[len(PREFIX) :]) if name.startswith(PREFIX) else None


def read_steps(choice: Mapping[str, Any], requested: Ids) -> list[Step]:
    """Return the steps in a choice, or in a part of a streamed choice."""
    with parsing("the upstream sent a choice in another form than vLLM's"):
        listed = choice.get("logprobs") or {}
        tokens = listed.get("tokens") or []
        values, tops = listed.get("token_logprobs") or [], listed.get("top_logprobs") or []
        ids = choice.get("token_ids")
        if ids is None:
            ids = [token for name in tokens if (token := _named(name)) is not None]
        if not len(ids) == len(values) == len(tops):
            raise UpstreamError(
                f"the upstream sent {len(tokens)} tokens, {len(values)} log-probabilities and "
                f"{len(tops)} lists of them for {len(ids)} token ids",
                "malformed",
            )
        steps = list(map(_step, ids, values, tops))
    return checked_steps(steps, choice.get("finish_reason"), requested)


def checked_steps(steps: list[Step], reason: Any, requested: Ids) -> list[Step]:
    """Return the steps of an answer, with the last one marked if it ended the sample."""
    if reason not in (None, "stop", "length"):
        raise UpstreamError(
            "the upstream aborted a sample", "failed", detail=f"finish_reason {short(repr(reason))}"
        )
    for step in steps:
        if missing := [i for i in requested if i not in step.listed]:
            raise UpstreamError(
                f"the upstream did not list ids {missing} although it was asked for them; if it "
                "decodes speculatively, start it without",
                "malformed",
            )
    if reason == "stop" and steps:
        return [*steps[:-1], steps[-1]._replace(ends=True)]
    return steps


def only(steps: Sequence[Step]) -> Step:
    """Return the only step of an answer."""
    if len(steps) != 1:
        raise UpstreamError(
            f"the upstream generated {len(steps)} tokens where 1 was asked for", "malformed"
        )
    return steps[0]


def prompt_logprobs(choice: Mapping[str, Any], prompt: Ids, last: int) -> list[float]:
    """Return the log-probabilities of the last tokens of a prompt."""
    rows = choice.get("prompt_logprobs")
    with parsing("the upstream's prompt_logprobs lack a token"):
        if rows is None or len(rows) != len(prompt):
            raise UpstreamError(
                "the upstream returned no prompt_logprobs, which the evidence of this model needs "
                "to score a given response; use vLLM, or the transformers engine",
                "unsupported",
            )
        places = range(len(prompt) - last, len(prompt))
        return [number(rows[i][str(prompt[i])]["logprob"]) for i in places]


def _step(token: int, value: Any, top: Any) -> Step:
    entries = {_named(name): number(logprob) for name, logprob in (top or {}).items()}
    return Step(token, number(value), {i: p for i, p in entries.items() if i is not None})


def number(value: Any) -> float:
    """Return a log-probability; one that rounding has put above 0 counts as 0."""
    if not value <= ROUNDING:  # NaN, too
        raise UpstreamError(NO_LOGPROB, "malformed", detail=short(repr(value)))
    return float(min(max(value, -sys.float_info.max), 0.0))
