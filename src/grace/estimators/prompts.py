"""Prompts that ask the model about a response, shots before them, and the choice of the best."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from grace.answers import lettered
from grace.calibration import Platt, log_losses
from grace.chat import answering_at_once, encode_chat, has_chat_template, is_text
from grace.engines import Engine
from grace.errors import ComputeError, DataError, ModelError
from grace.estimators import Estimator, Fitted, Rows, Samples, Splits, Values, ended_rows
from grace.estimators.recalibrated import logistic
from grace.records import Message, Question


class Prompt(NamedTuple):
    """The template of a prompt about a response.

    In one turn, `text` contains `{question}` and `{answer}`. As a second turn, it follows the
    conversation in which the model answered. Either way the response is encoded as plain text.
    """

    text: str
    second_turn: bool = False

    def turns(self, samples: Samples, row: int, *, bare: bool = False) -> list[Message]:
        """Return the conversation about one response; `bare`: without the examples before it."""
        answer = samples.responses[row].text.strip()
        if self.second_turn:
            messages = list(samples.messages[row])
            if bare:
                system = [turn for turn in messages if turn["role"] == "system"]
                messages = list(samples.questions[row].messages) or [*system, messages[-1]]
            reply: Message = {"role": "assistant", "content": answer}
            return [*messages, reply, {"role": "user", "content": self.text}]
        question = with_options(samples.questions[row])
        return [{"role": "user", "content": self.text.format(question=question, answer=answer)}]


class Shots(NamedTuple):
    """Examples before a prompt: training responses with the right reply; maybe none."""

    turns: Sequence[Message] = ()
    text: bool = False  # whether prompts are plain text rather than turns of a chat

    def contexts(
        self, tokenizer: Any, prompt: Prompt, samples: Samples, rows: Rows
    ) -> list[list[int]]:
        """Return the token ids of the prompt about each response, after the shots."""
        chats = [
            joined(self.turns, prompt.turns(samples, row, bare=bool(self.turns))) for row in rows
        ]
        quick = answering_at_once(tokenizer)
        return [encode_chat(quick, as_text(c) if self.text else c) for c in chats]


class Verdicts(NamedTuple):
    """A prompt, and the right reply about a right and about a wrong response."""

    prompt: Prompt
    right: str
    wrong: str


def draw_shots(
    verdicts: Verdicts, count: int, splits: Splits, engine: Engine, *, name: str, seed: int
) -> Shots:
    """Draw `count` training responses, with the right reply to each, for the estimator `name`."""
    if not count:
        return Shots()
    train = splits.train
    rows = ended_rows(train)
    if len(rows) < count:
        raise DataError(
            f"{count} shots need as many training responses that ended, there are {len(rows)}; "
            f"lower estimators.{name}.shots"
        )
    turns: list[Message] = []
    for row in np.random.default_rng(seed).choice(rows, size=count, replace=False):
        verdict = verdicts.right if train.correct[row] else verdicts.wrong
        reply: Message = {"role": "assistant", "content": verdict}
        turns += [*verdicts.prompt.turns(train, row, bare=True), reply]
    return Shots(turns, asks_in_text(train, engine.tokenizer))


def asks_in_text(samples: Samples, tokenizer: Any) -> bool:
    """Whether questions are asked as plain text rather than as turns of a chat."""
    return not has_chat_template(tokenizer) or any(map(is_text, samples.messages))


def as_text(turns: Sequence[Message]) -> list[Message]:
    """Return a conversation with the user's turns as plain text."""
    return [
        {"role": "text", "content": turn["content"]} if turn["role"] == "user" else turn
        for turn in turns
    ]


def joined(shots: Sequence[Message], prompt: Sequence[Message]) -> list[Message]:
    """Join shots and a prompt to one conversation; of several system turns the first is kept."""
    turns = [*shots, *prompt]
    return [turn for i, turn in enumerate(turns) if i == 0 or turn["role"] != "system"]


def with_options(question: Question) -> str:
    """Return the question, with its options below if it has any."""
    lines = lettered(question.choices)
    return "\n".join([question.quoted, *(["Options:", *lines] if lines else [])])


SHOTS = (0, 4, 8)
MOST = 200  # validation answers on which prompts are compared
Score = Callable[[float], float]


def candidates(splits: Splits, templates: Iterable[str]) -> list[tuple[Any, int]]:
    """Return every template with every number of shots that the training answers suffice for."""
    available = len(ended_rows(splits.train))
    return list(itertools.product(templates, [count for count in SHOTS if count <= available]))


def tuned(
    choices: Iterable[Estimator], score: Score, splits: Splits, engine: Engine, seed: int
) -> Fitted:
    """Choose the estimator with the best log loss after a logistic map, which stays."""
    few = splits.validation.part(range(min(MOST, len(splits.validation.responses))))
    tried: list[tuple[Fitted, Values]] = []
    refused: ModelError | None = None
    for choice in choices:
        try:
            fitted = choice.fit(splits, engine, seed)
            tried.append((fitted, _scored(fitted, score)(few)))
        except ComputeError:  # says nothing about the prompt
            raise
        except ModelError as error:
            refused = error
    if refused is not None and not tried:
        raise refused
    useful = [one for one in tried if any(value is not None for value in one[1])]
    if not useful:
        return Fitted(lambda samples: [None] * len(samples.responses))
    best, _ = min(useful, key=lambda one: _log_loss(one[1], few.correct))
    return logistic(_scored(best, score), splits)


def _scored(fitted: Fitted, score: Score) -> Callable[[Samples], Values]:
    return lambda samples: [None if v is None else score(v) for v in fitted.rate(samples)]


def _log_loss(scores: Values, correct: Sequence[bool]) -> float:
    """Return the training loss of a logistic regression of correctness on the scores."""
    right_N = np.array(correct, dtype=float)
    scored_N = np.array([value is not None for value in scores])
    p_N = np.full(len(right_N), (right_N.sum() + 1) / (len(right_N) + 2))
    score_K = np.array([value for value in scores if value is not None])
    p_N[scored_N] = Platt.fit(score_K, right_N[scored_N], loss="log").transform(score_K)
    return float(log_losses(p_N, right_N).mean())
