"""SGLang: its own `/generate`, which lists the log-probabilities of any token ids.

They are those of the model only where the server runs with SGLANG_RETURN_ORIGINAL_LOGPROB=1; else
the temperature has changed them, which a request at the start shows. A logit bias changes them in
any case, so tokens that are read and never drawn get one of known size, which is taken off again.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, ClassVar

from grace.engines import Sampling
from grace.engines.http.dialect import Json, Request, number
from grace.engines.http.remote import Remote
from grace.engines.http.said import UpstreamError, short
from grace.engines.reading import Step

GREEDY = Sampling(max_new_tokens=1)
BIAS = -30.0  # never drawn in practice, and float32 still says 1e-5 of what is read


class SGLang(Remote):
    """A model on SGLang, for coroutines."""

    software: ClassVar[str] = "SGLang"
    remedy: ClassVar[str] = "start the server with SGLANG_RETURN_ORIGINAL_LOGPROB=1"
    stepwise: ClassVar[bool] = True

    async def first(self, prompt: Sequence[int], temperature: float) -> Step:
        """Return the step after a prompt, drawn at a temperature."""
        sampling = Sampling(temperature=temperature, max_new_tokens=1)
        body = self._body(Request(prompt, sampling, 0), self.reader.asked, self.reader.banned)
        (step,) = self._read(await self.upstream.post("/generate", body), 0)
        return self._unbiased(step)

    async def steps(self, request: Request) -> AsyncGenerator[list[Step], None]:
        """Yield the steps of one sample as they arrive; closing this hangs up.

        Raises:
            UpstreamError: the server fails.
        """
        body, seen = self._body(request, self.reader.asked, self.reader.banned), 0
        if not request.stream:
            yield self._checked(self._read(await self.upstream.post("/generate", body), 0))
            return
        async with aclosing(self.upstream.events("/generate", body)) as parts:
            async for part in parts:
                if steps := self._read(part, seen):
                    seen += len(steps)
                    if seen > request.sampling.max_new_tokens:
                        raise UpstreamError("the upstream sent more tokens than asked", "malformed")
                    yield self._checked(steps)

    async def _next(
        self, context: Sequence[int], ids: Sequence[int], **options: Any
    ) -> tuple[Step, Json]:
        answer = await self.upstream.post("/generate", self._body(Request(context, GREEDY), ids))
        steps = self._read(answer, 0)
        if len(steps) != 1:
            raise UpstreamError(
                f"the upstream made {len(steps)} tokens where 1 was asked for", "malformed"
            )
        return self._listing(steps[0], ids), answer

    def _body(self, request: Request, ids: Sequence[int], banned: Sequence[int] = ()) -> Json:
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

    def _read(self, answer: Mapping[str, Any], seen: int) -> list[Step]:
        """Return the steps of an answer after the first `seen`; parts of a stream may repeat them.

        Raises:
            UpstreamError: log-probabilities are missing, or the server has given up.
        """
        try:
            meta = answer["meta_info"]
            new = meta["completion_tokens"] - seen
            drawn = meta["output_token_logprobs"][-new:] if new else []
            listed = meta["output_token_ids_logprobs"][-new:] if new else []
            if new < 0 or not len(drawn) == len(listed) == new:
                raise ValueError(f"{len(drawn)} and {len(listed)} lists for {new} tokens")
            steps = [
                Step(
                    self.names.checked(token),
                    number(logprob),
                    {self.names.checked(i): number(value) for value, i, _ in known or ()},
                )
                for (logprob, token, _), known in zip(drawn, listed, strict=True)
            ]
            reason = (meta.get("finish_reason") or {}).get("type")
        except (AttributeError, TypeError, KeyError, ValueError) as error:
            raise UpstreamError(
                "the upstream sent no answer as SGLang does", "malformed", said=short(str(error))
            ) from None
        if reason not in (None, "stop", "length"):
            raise UpstreamError(
                "the upstream gave up a sample",
                "failed",
                said=f"finish_reason {short(str(reason))}",
            )
        if reason == "stop" and steps:
            steps[-1] = steps[-1]._replace(ends=True)
        return steps

    def _checked(self, steps: list[Step]) -> list[Step]:
        """Return the steps of a sample as the model gave them.

        Raises:
            UpstreamError: one lacks an id.
        """
        return [self._unbiased(self._listing(step, self.reader.asked)) for step in steps]

    def _unbiased(self, step: Step) -> Step:
        """Return a step without the bias: of the banned tokens, and of the sum of all."""
        banned = self.reader.banned
        known = {i: p - BIAS if i in banned else p for i, p in step.logprobs.items()}
        rest = math.log1p(
            -math.expm1(BIAS) * sum(math.exp(known.get(i, -math.inf)) for i in banned)
        )
        return Step(
            step.token, step.logprob - rest, {i: p - rest for i, p in known.items()}, step.ends
        )

    def _listing(self, step: Step, ids: Sequence[int]) -> Step:
        if missing := [i for i in ids if i != step.token and i not in step.logprobs]:
            raise UpstreamError(
                f"the upstream did not list ids {missing} although it was asked for them",
                "malformed",
            )
        return step
