"""Graded responses made by hand, and an engine that says what a test tells it to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from grace.engines import Features, Sampling
from grace.estimators import Draw, Samples
from grace.records import Question, Response, response_id
from made_up_response import said


class Splits(NamedTuple):
    train: Samples
    validation: Samples


def response(
    number: int = 0,
    text: str = "Paris",
    *,
    logprobs: Sequence[float] = (-0.1,),
    end: float = -0.2,
    cut: bool = False,
) -> Response:
    """The response to question `number`; its only token is its number."""
    return Response(
        id=response_id(f"q{number}", 0),
        question_id=f"q{number}",
        sample=0,
        text=text,
        token_ids=(number,),
        finish_reason="length" if cut else "stop",
        logprobs=tuple(logprobs),
        end_logprob=None if cut else end,
        confidence=None,
    )


def samples(
    responses: Sequence[Response],
    *,
    correct: Sequence[bool] | None = None,
    answers: Sequence[str | None] | None = None,
    draws: Sequence[Sequence[Draw]] | None = None,
    choices: tuple[str, ...] = (),
) -> Samples:
    questions = [
        Question(one.question_id, "trivia_qa", f"What is {one.question_id}?", ("x",), choices)
        for one in responses
    ]
    return Samples(
        questions=questions,
        messages=[
            [{"role": "system", "content": "Be brief."}, {"role": "user", "content": q.text}]
            for q in questions
        ],
        prompts=[[7, 7] for _ in responses],
        responses=responses,
        answers=answers or [one.text.lower() for one in responses],
        correct=correct or [True] * len(responses),
        draw=lambda count: [row[:count] for row in draws or []],
    )


def drawn(*answers: str | None, **kind: Any) -> list[Draw]:
    return [Draw(response(text=answer or "", **kind), answer) for answer in answers]


class ScriptedEngine:
    """Says what it was told; `asked` is what it was asked, in token ids."""

    def __init__(
        self,
        tokenizer: Any = None,
        *,
        probs: dict[int, float] | None = None,
        replies: Sequence[str] = (),
        states: Callable[[Sequence[int]], Any] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.asked: list[list[int]] = []
        self.rows_of_states = 0
        self._probs, self._replies, self._states = probs or {}, replies, states

    def next_token_probs(self, contexts: Any, tokens: Any) -> Any:
        self.asked += contexts
        row = [self._probs.get(token, 0.0) for token in tokens]
        return np.array([row] * len(contexts), dtype=np.float32)

    def generate(
        self, prompts: Any, sampling: Sampling, *, keys: Any = None
    ) -> Iterator[tuple[int, list[Response]]]:
        assert (sampling.temperature, sampling.num_samples) == (0.0, 1)
        self.asked += prompts
        for index in reversed(range(len(prompts))):
            yield index, [said(self._replies[index], token_ids=(1,))]

    def features(self, prompts: Any, responses: Any, layer: int = 0) -> Features:
        """`states(response numbers)` is the mean state; the last one is its square."""
        assert self._states is not None
        mean_ND = np.asarray(self._states([ids[0] for ids in responses]), dtype=np.float32)
        self.rows_of_states += len(mean_ND)
        return Features(mean_ND, mean_ND**2, -mean_ND)
