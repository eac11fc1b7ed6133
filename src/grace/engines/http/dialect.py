"""Requests to vLLM's completions API, and how its answers are read.

vLLM 0.26 and later lists the log-probabilities of any token ids (`logprob_token_ids`). A server
that lists the most probable tokens only is refused (`grace.engines.http.probing`), since `<CNF>` is
hardly ever among them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from grace.engines import Ids, Sampling
from grace.engines.http.upstream import Json, UpstreamError, parsing, short
from grace.engines.reading import Reader, Step
from grace.engines.structured import Allowed

PREFIX = "token_id:"
NO_LOGPROB = "the upstream sent a value that is no log-probability"
ROUNDING = 1e-3  # how far rounding may put a log-probability above 0


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
