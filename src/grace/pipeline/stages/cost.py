"""The cost of rating answers beyond generating them, counted while an estimator works."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import numpy as np

from grace.engines import LAST, Engine, Features, Sampling
from grace.estimators import Draws, Estimator, Samples, asked_by
from grace.pipeline.stages import paper
from grace.pipeline.stages.fit import FIT, read_layer, stored_layers
from grace.records import Response
from grace.report.names import ACCESS

if TYPE_CHECKING:
    from grace.pipeline.context import Context

Ids = Sequence[int]
Access = Literal["text", "logprobs", "hidden states", "weights"]
StoredStates = Callable[[Sequence[Ids], Sequence[Ids], int], Features | None]


class Meter:
    """Counts the model's work for an estimator.

    `forward_tokens` are the tokens fed to or sampled from the model, `requests` the prompts sent
    to it, `access` the deepest level that was read, and `seconds` the time of earlier, stored
    sampling of the draws that were used, less the time to read them now.
    """

    def __init__(self) -> None:
        self.forward_tokens = 0
        self.requests = 0
        self.seconds = 0.0
        self.access: Access = "text"

    def saw(self, access: Access) -> None:
        """Count that this level was read."""
        self.access = max(self.access, access, key=ACCESS.index)

    def sent(self, requests: int, tokens: int) -> None:
        """Count prompts sent to the model and the tokens that went through it."""
        self.requests += requests
        self.forward_tokens += tokens


class MeteredEngine:
    """An engine that is loaded when it is first used, and whose work is counted."""

    def __init__(
        self, load: Callable[[], Engine], meter: Meter, stored: StoredStates | None = None
    ) -> None:
        self._load = load
        self.meter = meter
        self.stored = stored

    @property
    def tokenizer(self) -> Any:
        """The engine's tokenizer."""
        return self._load().tokenizer

    def generate(
        self, prompts: Sequence[Ids], sampling: Sampling, *, keys: Sequence[str] | None = None
    ) -> Iterator[tuple[int, list[Response]]]:
        """Sample responses; of them, only the text counts as read."""
        for index, samples in self._load().generate(prompts, sampling, keys=keys):
            tokens = sum(len(sample.token_ids) + 1 for sample in samples)
            self.meter.sent(1, len(prompts[index]) + tokens)
            yield index, samples

    def next_token_probs(self, contexts: Sequence[Ids], tokens: Ids) -> np.ndarray:
        """Return probabilities of next tokens."""
        self.meter.saw("logprobs")
        self.meter.sent(len(contexts), sum(map(len, contexts)))
        return self._load().next_token_probs(contexts, tokens)

    def confidences(self, prompts: Sequence[Ids], responses: Sequence[Ids]) -> list[float]:
        """Return c of responses."""
        self._forward("weights", prompts, responses)
        return self._load().confidences(prompts, responses)

    def logprobs(
        self, prompts: Sequence[Ids], responses: Sequence[Ids]
    ) -> list[tuple[list[float], float]]:
        """Return the log-probabilities of responses and of their ends."""
        self._forward("logprobs", prompts, responses)
        return self._load().logprobs(prompts, responses)

    def features(
        self, prompts: Sequence[Ids], responses: Sequence[Ids], layer: int = LAST
    ) -> Features:
        """Return pooled hidden states; the stored ones if all of these responses have them."""
        self._forward("hidden states", prompts, responses)
        states = self.stored(prompts, responses, layer) if self.stored else None
        return self._load().features(prompts, responses, layer) if states is None else states

    def _forward(self, access: Access, prompts: Sequence[Ids], responses: Sequence[Ids]) -> None:
        self.meter.saw(access)
        self.meter.sent(len(prompts), sum(map(len, prompts)) + sum(map(len, responses)))


def stored_training(context: Context) -> StoredStates:
    """Return what finds the states that stage `features` has stored, not to compute them again."""
    split = context.directory.split("train")

    @functools.cache
    def numbers() -> dict[tuple[tuple[int, ...], tuple[int, ...]], int]:
        samples = context.samples(split)
        pairs = zip(samples.prompts, samples.responses, strict=True)
        return {(tuple(p), tuple(r.token_ids)): row for row, (p, r) in enumerate(pairs)}

    def stored(prompts: Sequence[Ids], responses: Sequence[Ids], layer: int) -> Features | None:
        pairs = zip(prompts, responses, strict=True)
        rows = [numbers().get((tuple(prompt), tuple(tokens))) for prompt, tokens in pairs]
        if None in rows or layer not in stored_layers(split.features):
            return None
        return read_layer([split.features], layer, rows).features

    return stored


class _Watched:
    """A response that counts when its probabilities or its confidence are read."""

    READS: ClassVar[dict[str, Access]] = {
        "logprobs": "logprobs",
        "end_logprob": "logprobs",
        "confidence": "weights",
    }

    def __init__(self, response: Response, meter: Meter) -> None:
        self._response = response
        self._meter = meter

    def __getattr__(self, name: str) -> Any:
        if name in self.READS:
            self._meter.saw(self.READS[name])
        return getattr(self._response, name)


def watched(
    samples: Samples, meter: Meter, seconds_per_draw: Callable[[int], float | None]
) -> Samples:
    """Return the same samples; what is read of them, and the cost of their draws, is counted."""

    def draw(count: int) -> Draws:
        start = time.perf_counter()
        draws = samples.draw(count)
        tokens = sum(len(d.response.token_ids) + 1 for row in draws for d in row)
        meter.sent(len(draws), sum(map(len, samples.prompts)) + tokens)
        stored = (seconds_per_draw(count) or 0.0) * sum(map(len, draws))
        meter.seconds += stored - (time.perf_counter() - start)
        return [
            [d._replace(response=cast(Response, _Watched(d.response, meter))) for d in row]
            for row in draws
        ]

    responses = [cast(Response, _Watched(response, meter)) for response in samples.responses]
    return dataclasses.replace(samples, responses=responses, draw=draw)


def fit_cost(
    context: Context, estimator: Estimator, parameters: int, seconds: float
) -> dict[str, float | None]:
    """Return the seconds (None: unknown) and trained parameters of a fit and its adapter."""
    from safetensors import safe_open

    training: float | None = 0.0
    if asked_by(estimator) == "tuned":
        found = [context.directory.seconds_in(unit) for unit in (FIT, paper.STEPS)]
        recorded = [seconds for seconds in found if seconds is not None]
        training = sum(recorded) if recorded else None
        for path in context.directory.adapter.glob("*.safetensors"):
            with safe_open(path, "np") as file:
                shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118
                parameters += sum(map(math.prod, shapes))
    return {
        "fit_seconds": None if training is None else training + seconds,
        "trained_parameters": parameters,
    }
