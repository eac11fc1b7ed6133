"""llama-server: a request per token, which lists the probabilities of the whole vocabulary.

It lists the most probable tokens only, and `<CNF>` is hardly ever among them, so all are asked for:
some megabytes a token. They are the raw softmax, whatever the sampling, so the token is drawn here,
and llama-server is only told where its text ends: with the end token forced by a bias, which the
list does not show, no character is ever cut in the middle (of such a step it lists nothing).

Shapes: V vocabulary.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Sequence
from typing import Any, ClassVar

import numpy as np

from grace.engines import Sampling
from grace.engines.http.dialect import Json, Request
from grace.engines.http.remote import Remote
from grace.engines.http.said import UpstreamError, short
from grace.engines.reading import LOWEST, Step

FORCED = 1e4  # added to a logit: the token is drawn, whatever the others are
ROUNDING = 1e-3  # of the sum of all probabilities


class LlamaServer(Remote):
    """A model on llama-server, for coroutines."""

    software: ClassVar[str] = "llama-server"
    stepwise: ClassVar[bool] = True

    async def first(self, prompt: Sequence[int], temperature: float) -> Step:
        """Return the step after a prompt."""
        return await self.after(prompt)

    async def steps(self, request: Request) -> AsyncGenerator[list[Step], None]:
        """Yield the steps of one sample as they are made; closing this makes no more.

        Raises:
            UpstreamError: the server fails.
        """
        context, sampling = list(request.prompt), request.sampling
        random, banned = np.random.default_rng(request.seed), list(self.reader.banned)
        for _ in range(sampling.max_new_tokens):
            logprobs_V = await self._logprobs(context)
            drawn_V = logprobs_V.copy()
            drawn_V[banned] = -np.inf
            token = draw(drawn_V, sampling, random.random())
            yield [self._step(token, logprobs_V, self.reader.asked)]
            if token in self.reader.stops:
                return
            context.append(token)

    async def _next(
        self, context: Sequence[int], ids: Sequence[int], **options: Any
    ) -> tuple[Step, Json]:
        logprobs_V = await self._logprobs(context)
        return self._step(int(logprobs_V.argmax()), logprobs_V, ids), {}

    def _step(self, token: int, logprobs_V: np.ndarray, ids: Sequence[int]) -> Step:
        """Return a step.

        Raises:
            UpstreamError: a token that is read is less probable than float32 can say.
        """
        read = self.reader.readout.ids if self.reader.readout else ()
        if any(logprobs_V[i] == LOWEST for i in read):
            raise UpstreamError(
                "the upstream's probability of <CNF> is too small to be listed", "unsupported"
            )
        return Step(token, float(logprobs_V[token]), {i: float(logprobs_V[i]) for i in ids})

    async def _logprobs(self, context: Sequence[int]) -> np.ndarray:
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
        answer = await self.upstream.post("/completion", body)
        try:
            (step,) = answer["completion_probabilities"]
            listed = [(entry["id"], entry["logprob"]) for entry in step["top_logprobs"]]
            ids, values = np.array(listed, dtype=np.float64).reshape(-1, 2).T
            found_V = np.full(rows, np.nan)
            found_V[ids.astype(int)] = np.where(values < -sys.float_info.max / 2, LOWEST, values)
        except (AttributeError, TypeError, KeyError, ValueError, IndexError) as error:
            raise UpstreamError(
                "the upstream sent no step as llama-server does",
                "malformed",
                said=short(str(error)),
            ) from None
        found_V[found_V < -1e9] = LOWEST  # what float32 has for the log of 0
        if not abs(np.exp(found_V).sum() - 1) < ROUNDING:
            raise UpstreamError(
                f"the upstream listed {len(ids)} of {rows} tokens, whose probabilities do not sum "
                "to 1; it may decode speculatively, which c cannot be read with",
                "malformed",
            )
        return found_V


def draw(logprobs_V: np.ndarray, sampling: Sampling, point: float) -> int:
    """Return a token by the inverse of the cumulative distribution at a point in [0, 1)."""
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
