"""Samples for a request, as they are drawn: text, tokens, and the confidence where each ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from grace.chat import encode_text
from grace.cnf import CNF_TOKEN
from grace.engines import Sampling
from grace.engines.drawing import Drawing, Drawn
from grace.evidence import confidence
from grace.server.words import Stops, Words
from grace.server.worker import Emit, Finished, Job

if TYPE_CHECKING:
    from grace.engines.transformers import TransformersEngine

LOWEST = -9999.0  # what OpenAI writes for a log-probability of minus infinity


class Token(NamedTuple):
    """One step of a choice; `top` are the most probable tokens there, `<CNF>` at the end.

    `offset` counts the characters of the tokens before it.
    """

    text: str
    logprob: float
    top: tuple[tuple[str, float], ...]
    offset: int


class Piece(NamedTuple):
    """What a choice has grown by."""

    choice: int
    text: str
    tokens: tuple[Token, ...] = ()


class Ended(NamedTuple):
    """A choice is complete; its confidence is None where it was cut at its longest."""

    choice: int
    finish_reason: Literal["stop", "length"]
    confidence: float | None


class Completion(Job):
    """Samples of one or several prompts.

    Choice `i * sampling.num_samples + s` is sample s of prompt i. A choice ends where the model
    ends it, or before the first stop string: its confidence is then that of the text up to there,
    as `/v1/score` gives it.

    Args:
        engine: the model.
        encode: makes the token ids of the prompts; called on the thread of the model.
        sampling: how to draw.
        key: names the random numbers; of a request without a seed, it occurs only once.
        stop: strings that end a choice.
        top: how many most probable tokens to report per step; None: no tokens at all.
        emit: takes the events.
    """

    def __init__(
        self,
        engine: TransformersEngine,
        encode: Callable[[], list[list[int]]],
        sampling: Sampling,
        *,
        key: str | None,
        stop: Sequence[str],
        top: int | None,
        emit: Emit,
        num_prompts: int = 1,
    ) -> None:
        super().__init__(emit)
        self.engine, self.sampling = engine, sampling
        self.key, self.stop, self.top = key, stop, top
        self._encode, self._num_prompts = encode, num_prompts
        self.prompts: list[list[int]] = []
        self.left = 0  # choices that have not ended
        self.tokens = 0

    @property
    def group(self) -> Hashable:  # type: ignore[override]
        """Return the sampling: requests with a seed of their own run alone."""
        return self.sampling if self.key is not None else None

    @property
    def size(self) -> int:
        """Return how many samples the job draws at a time."""
        return self._num_prompts * self.sampling.num_samples

    def prompt_keys(self) -> list[str]:
        """Return what names each prompt's random numbers; with a seed, as in `Model.ask`."""
        prefix = "" if self.key is None else f"{self.key}/"
        return [f"{prefix}{number}" for number in range(len(self.prompts))]

    def run(self, together: Sequence[Job]) -> None:
        """Draw the samples of all these requests side by side."""
        jobs = [job for job in together if isinstance(job, Completion)]
        rows: list[_Row] = []
        for job in jobs:
            job.prompts = job._encode()
            job.left = len(job.prompts) * job.sampling.num_samples
            rows += [_Row(job, choice) for choice in range(job.left)]
        prompts = [prompt for job in jobs for prompt in job.prompts]
        keys = [key for job in jobs for key in job.prompt_keys()]
        drawing = Drawing(self.engine, prompts, self.sampling, keys)
        for step in drawing:
            for drawn in step:
                if not rows[drawn.row].add(drawn, drawing):
                    drawing.stop(drawn.row)
        for row, generation in zip(rows, drawing.generations(), strict=True):
            row.close(generation.confidence)


class _Row:
    """One choice while it grows."""

    def __init__(self, job: Completion, choice: int) -> None:
        self._job, self._choice = job, choice
        self._engine = job.engine
        self._prompt = job.prompts[choice // job.sampling.num_samples]
        self._words, self._stops = Words(job.engine.tokenizer), Stops(job.stop)
        self._logprobs: list[float] = []
        self._text = ""
        self._offset = 0
        self._first: float | None = None  # c at the first step
        self._end: Drawn | None = None
        self._end_top: tuple[tuple[str, float], ...] = ()
        self._done = False

    def add(self, drawn: Drawn, drawing: Drawing) -> bool:
        """Take what a step has chosen; return whether the choice goes on."""
        if self._job.cancelled.is_set():
            self._done = True
            return False
        c = self._confidence(drawn.confidence)
        self._first = c if self._first is None else self._first
        top = self._most_probable(drawn.row, drawing)
        if drawn.ended:
            self._end, self._end_top = drawn, top
            if self._engine.read_at != "feed":
                self.close(self._first if self._engine.read_at == "prompt" else c)
            return True
        self._logprobs.append(drawn.logprob)
        self._job.tokens += 1
        shown = self._stops.add(self._words.add(drawn.token))
        self._show(shown.text, self._tokens(drawn, top, c))
        if shown.stopped:
            self._cut()
        return not shown.stopped

    def close(self, confidence: float | None) -> None:
        """End the choice where the model has ended it, or at its longest; again: does nothing."""
        if self._done:
            return
        shown = self._stops.add(self._words.rest(), last=True)
        if shown.stopped:
            self._show(shown.text)
            self._cut()
            return
        ended = self._end is not None
        tokens = self._tokens(self._end, self._end_top, confidence) if self._end else ()
        self._show(shown.text, tokens)
        self._finish("stop" if ended else "length", confidence if ended else None)

    def _cut(self) -> None:
        """End the choice before a stop string, with the confidence of what is left."""
        response = encode_text(self._engine.tokenizer, self._text)
        (c,) = self._engine.confidences([self._prompt], [response])
        if self._job.top is not None and self._engine.cnf is not None:
            self._show("", (Token("", 0.0, ((CNF_TOKEN, _log(c)),), self._offset),))
        self._finish("stop", c)

    def _finish(self, reason: Literal["stop", "length"], confidence: float | None) -> None:
        self._done = True
        self._job.started = True
        self._job.emit(Ended(self._choice, reason, confidence))
        self._job.left -= 1
        if self._job.left == 0:
            self._job.emit(Finished(sum(map(len, self._job.prompts)), self._job.tokens))

    def _show(self, text: str, tokens: tuple[Token, ...] = ()) -> None:
        self._text += text
        if text or tokens:
            self._job.started = True
            self._job.emit(Piece(self._choice, text, tokens))

    def _confidence(self, plain: float) -> float:
        evidence = self._engine.evidence
        return confidence(_log(plain), self._logprobs, evidence) if evidence else plain

    def _most_probable(self, row: int, drawing: Drawing) -> tuple[tuple[str, float], ...]:
        count = self._job.top or 0
        found = drawing.most_probable(row, count) if count else []
        return tuple((self._name(token), max(logprob, LOWEST)) for token, logprob in found)

    def _tokens(
        self, drawn: Drawn, top: tuple[tuple[str, float], ...], c: float | None
    ) -> tuple[Token, ...]:
        if self._job.top is None:
            return ()
        if self._engine.cnf is not None and c is not None:
            top = (*top, (CNF_TOKEN, _log(c)))
        token = Token(self._name(drawn.token), max(drawn.logprob, LOWEST), top, self._offset)
        self._offset += len(token.text)
        return (token,)

    def _name(self, token: int) -> str:
        return cast(str, self._engine.tokenizer.decode([token]))


def _log(probability: Any) -> float:
    return max(math.log(probability), LOWEST) if probability > 0 else LOWEST
