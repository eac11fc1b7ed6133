"""llama-server: one request per token, which returns the probabilities of the whole vocabulary.

llama-server lists the most probable tokens only, and `<CNF>` is hardly ever among them. So all
tokens are requested, some megabytes per step. They are the raw softmax whatever the sampling
settings, so the token is drawn here. llama-server lists nothing for a step whose text ends within a
character. To avoid such steps, a logit bias makes it draw the end token; the listed probabilities
are those without the bias.

Shapes: V vocabulary.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from typing import ClassVar

import numpy as np

from grace.engines import Ids, Sampling
from grace.engines.http.remote import Remote, Request
from grace.engines.http.upstream import UpstreamError, parsing
from grace.engines.reading import LOWEST, Step

FORCED = 1e4  # logit bias with which a token is always drawn
ROUNDING = 1e-3  # of the sum of all probabilities


class LlamaServer(Remote):
    """A model on llama-server (see `Remote`)."""

    software: ClassVar[str] = "llama-server"
    stepwise: ClassVar[bool] = True
    draws_here: ClassVar[bool] = True

    async def first(self, prompt: Ids, temperature: float) -> Step:
        """Return the step after a prompt."""
        return await self._next(prompt, self.reader.requested)

    async def steps(self, request: Request) -> AsyncGenerator[list[Step], None]:
        """Yield the steps of one sample, one request each; closing this stops the requests."""
        await self.check()
        context, sampling = list(request.prompt), request.sampling
        random, banned = np.random.default_rng(request.seed), list(self.reader.banned)
        for _ in range(sampling.max_new_tokens):
            logprobs_V = await self._logprobs(context)
            drawn_V = logprobs_V.copy()
            drawn_V[banned] = -np.inf
            if request.allowed is not None:
                drawn_V[~request.allowed.next(len(drawn_V))] = -np.inf
            token = draw(drawn_V, sampling, random.random())
            yield [self._step(token, logprobs_V, self.reader.requested)]
            if request.allowed is not None:
                request.allowed.take(token)
            if token in self.reader.stops:
                return
            context.append(token)

    async def _next(self, context: Ids, ids: Ids) -> Step:
        logprobs_V = await self._logprobs(context)
        return self._step(int(logprobs_V.argmax()), logprobs_V, ids)

    def _step(self, token: int, logprobs_V: np.ndarray, ids: Ids) -> Step:
        if any(logprobs_V[i] == LOWEST for i in self.reader.read):
            raise UpstreamError(
                "the upstream's probability of <CNF> is too small to be listed", "unsupported"
            )
        return Step(token, float(logprobs_V[token]), {i: float(logprobs_V[i]) for i in ids})

    async def _logprobs(self, context: Ids) -> np.ndarray:
        """Return log p of every token after a context, shape (V,)."""
        rows = self.served.rows
        body = {
            "prompt": list(context),
            "n_predict": 1,
            "n_probs": rows,
            "temperature": 0.0,
            "samplers": ["temperature"],
            "logit_bias": [[self.reader.eos[0], FORCED]],
            "post_sampling_probs": False,
            "cache_prompt": True,
        }
        answer = await self.upstream.json("/completion", body)
        with parsing("the upstream sent a step in another form than llama-server's"):
            (step,) = answer["completion_probabilities"]
            listed = [(entry["id"], entry["logprob"]) for entry in step["top_logprobs"]]
            ids, values = np.array(listed, dtype=np.float64).reshape(-1, 2).T
            logprobs_V = np.full(rows, np.nan)
            logprobs_V[ids.astype(int)] = np.where(values < -sys.float_info.max / 2, LOWEST, values)
        logprobs_V[logprobs_V < -1e9] = LOWEST  # the log of 0
        if not abs(np.exp(logprobs_V).sum() - 1) < ROUNDING:
            raise UpstreamError(
                f"the upstream listed {len(ids)} of {rows} tokens, whose probabilities do not sum "
                "to 1; if it decodes speculatively, start it without",
                "malformed",
            )
        return logprobs_V


def draw(logprobs_V: np.ndarray, sampling: Sampling, point: float) -> int:
    """Return a token by inverting the cumulative distribution at a point in [0, 1)."""
    if sampling.temperature == 0:
        return int(logprobs_V.argmax())
    scaled_V = logprobs_V / sampling.temperature
    probs_V = np.exp(scaled_V - scaled_V.max())
    probs_V /= probs_V.sum()
    order_V = np.argsort(-probs_V, kind="stable")
    above_V = probs_V[order_V].cumsum() - probs_V[order_V]
    probs_V[order_V[above_V >= sampling.top_p]] = 0
    cumulative_V = probs_V.cumsum()
    return int(np.searchsorted(cumulative_V, point * cumulative_V[-1], side="right"))
