"""Asking the model for a second opinion on a response, for the estimators that do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from grace.chat import encode_chat, has_chat_template, is_text
from grace.engines import Engine
from grace.errors import DataError
from grace.estimators import Known, Samples, ended_rows
from grace.grading import lettered
from grace.records import Message, Question


class Prompt(NamedTuple):
    """How the model is asked about a response.

    In one turn, `text` names the `{question}` and the `{answer}`. In a second turn it follows the
    conversation in which the model answered. Either way the response is text, whatever it says.
    """

    text: str
    second_turn: bool = False

    def turns(self, samples: Samples, row: int, *, bare: bool = False) -> list[Message]:
        """Return the conversation that asks about one response.

        `bare` leaves out the examples that stood before the question when it was answered.
        """
        answer = samples.responses[row].text.strip()
        if self.second_turn:
            asked = list(samples.messages[row])
            if bare:
                asked = [*(turn for turn in asked if turn["role"] == "system"), asked[-1]]
            said: Message = {"role": "assistant", "content": answer}
            return [*asked, said, {"role": "user", "content": self.text}]
        question = with_options(samples.questions[row])
        return [{"role": "user", "content": self.text.format(question=question, answer=answer)}]


class Shots(NamedTuple):
    """Training responses that are shown first, each with the right reply; `turns` empty: none."""

    turns: Sequence[Message] = ()
    text: bool = False  # written out as plain text rather than as turns of a chat

    def contexts(
        self, tokenizer: Any, prompt: Prompt, samples: Samples, rows: Sequence[int]
    ) -> list[list[int]]:
        """Return the token ids that ask about each response, after the shots."""
        asked = [prompt.turns(samples, row, bare=bool(self.turns)) for row in rows]
        chats = [joined(self.turns, turns) for turns in asked]
        return [encode_chat(tokenizer, as_text(c) if self.text else c) for c in chats]


class Verdicts(NamedTuple):
    """The prompt that shots follow, and the replies to a right and to a wrong response."""

    prompt: Prompt
    right: str
    wrong: str


def draw_shots(
    verdicts: Verdicts, count: int, known: Known, engine: Engine, *, name: str, seed: int
) -> Shots:
    """Return `count` training responses with the right reply to each.

    They are plain text where questions are asked as plain text, or there is no chat template.

    Raises:
        DataError: fewer training responses than shots; `name` is the estimator's.
    """
    if not count:
        return Shots()
    train = known.train
    rows = ended_rows(train)
    if len(rows) < count:
        raise DataError(
            f"{count} shots need as many training responses that ended, there are {len(rows)}; "
            f"lower estimators.{name}.shots"
        )
    turns: list[Message] = []
    for row in np.random.default_rng(seed).choice(rows, size=count, replace=False):
        verdict = verdicts.right if train.correct[row] else verdicts.wrong
        said: Message = {"role": "assistant", "content": verdict}
        turns += [*verdicts.prompt.turns(train, row, bare=True), said]
    return Shots(turns, asks_in_text(train, engine.tokenizer))


def asks_in_text(samples: Samples, tokenizer: Any) -> bool:
    """Return whether questions are asked as plain text rather than as turns of a chat."""
    return not has_chat_template(tokenizer) or any(map(is_text, samples.messages))


def as_text(turns: Sequence[Message]) -> list[Message]:
    """Return a conversation with the user's turns as plain text."""
    return [
        {"role": "text", "content": turn["content"]} if turn["role"] == "user" else turn
        for turn in turns
    ]


def joined(shots: Sequence[Message], asked: Sequence[Message]) -> list[Message]:
    """Return one conversation of the shots and what is asked, with the first system turn alone."""
    turns = [*shots, *asked]
    return [turn for i, turn in enumerate(turns) if i == 0 or turn["role"] != "system"]


def with_options(question: Question) -> str:
    """Return the question's text, with its options below if it has any."""
    lines = lettered(question.choices)
    return "\n".join([question.text, *(["Options:", *lines] if lines else [])])
