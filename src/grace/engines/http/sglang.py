"""SGLang: its own `/generate`, which lists the log-probabilities of any token ids.

They are raw only if the server runs with SGLANG_RETURN_ORIGINAL_LOGPROB=1; otherwise they depend on
the temperature, which `grace.engines.http.probing` notices. A logit bias changes them in any case,
so the bias that keeps tokens from being drawn is subtracted again.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncGenerator, Mapping
from typing import Any, ClassVar

from grace.engines import Ids
from grace.engines.http.remote import GREEDY, Remote, Request, checked_steps, number, only
from grace.engines.http.upstream import Json, parsing
from grace.engines.reading import Step

BIAS = -30.0  # never drawn in practice, while float32 still has 1e-5 of precision


class SGLang(Remote):
    """A model on SGLang (see `Remote`)."""

    software: ClassVar[str] = "SGLang"
    remedy: ClassVar[str] = "start the server with SGLANG_RETURN_ORIGINAL_LOGPROB=1"
    stepwise: ClassVar[bool] = True

    async def _next(self, context: Ids, ids: Ids) -> Step:
        answer = await self._answer(self._generate_body(Request(context, GREEDY), ids))
        return only(self._steps(answer, 0, ids))

    async def _answer(self, body: Json) -> Json:
        return await self.upstream.json("/generate", body)

    def _parts(self, body: Json) -> AsyncGenerator[Json, None]:
        return self.upstream.events("/generate", body)

    def _read(self, answer: Json, seen: int, requested: Ids) -> list[Step]:
        return [self._unbiased(step) for step in self._steps(answer, seen, requested)]

    def _body(self, request: Request) -> Json:
        body = self._generate_body(request, self.reader.requested, self.reader.banned)
        if request.schema is not None:
            body["sampling_params"]["json_schema"] = json.dumps(request.schema)
        return body

    def _generate_body(self, request: Request, ids: Ids, banned: Ids = ()) -> Json:
        sampling = request.sampling
        drawn: Json = {
            "max_new_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "stop_token_ids": list(self.reader.stops),
        }
        if request.seed is not None:
            drawn["sampling_seed"] = request.seed % 2**31
        if banned:
            drawn["logit_bias"] = {str(token): BIAS for token in banned}
        return {
            "input_ids": list(request.prompt),
            "sampling_params": drawn,
            "return_logprob": True,
            "token_ids_logprob": list(ids),
            "stream": request.stream,
        }

    def _steps(self, answer: Mapping[str, Any], seen: int, requested: Ids) -> list[Step]:
        """Return the steps after the first `seen`; parts of a stream may repeat those."""
        with parsing("the upstream sent an answer in another form than SGLang's"):
            meta = answer["meta_info"]
            new = meta["completion_tokens"] - seen
            drawn = meta["output_token_logprobs"][-new:] if new else []
            listed = meta["output_token_ids_logprobs"][-new:] if new else []
            if new < 0 or not len(drawn) == len(listed) == new:
                raise ValueError(f"{len(drawn)} and {len(listed)} lists for {new} tokens")
            steps = [
                Step(token, number(logprob), {i: number(value) for value, i, _ in others or ()})
                for (logprob, token, _), others in zip(drawn, listed, strict=True)
            ]
            reason = (meta.get("finish_reason") or {}).get("type")
        return checked_steps(steps, reason, requested)

    def _unbiased(self, step: Step) -> Step:
        """Return a step without the effect of the bias on the banned tokens, and on the softmax."""
        banned = self.reader.banned
        logprobs = {i: p - BIAS if i in banned else p for i, p in step.logprobs.items()}
        rest = math.log1p(
            -math.expm1(BIAS) * sum(math.exp(logprobs.get(i, -math.inf)) for i in banned)
        )
        return Step(
            step.token, step.logprob - rest, {i: p - rest for i, p in logprobs.items()}, step.ends
        )
