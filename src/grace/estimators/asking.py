"""Asking the model for a second opinion on a response, for the estimators that do."""

from __future__ import annotations

from typing import NamedTuple

from grace.estimators import Samples
from grace.grading import LETTERS
from grace.records import Message, Question


class Prompt(NamedTuple):
    """How the model is asked about a response.

    In one turn, `text` names the `{question}` and the `{answer}`. In a second turn it follows the
    conversation in which the model answered. Either way the response is text, whatever it says.
    """

    text: str
    second_turn: bool = False

    def turns(self, samples: Samples, row: int) -> list[Message]:
        """Return the conversation that asks about one response."""
        answer = samples.responses[row].text.strip()
        if self.second_turn:
            said: Message = {"role": "assistant", "content": answer}
            return [*samples.messages[row], said, {"role": "user", "content": self.text}]
        question = with_options(samples.questions[row])
        return [{"role": "user", "content": self.text.format(question=question, answer=answer)}]


def with_options(question: Question) -> str:
    """Return the question's text, with its options below if it has any."""
    options = zip(LETTERS, question.choices, strict=False)
    lines = [f"{letter}. {text}" for letter, text in options]
    return "\n".join([question.text, *(["Options:", *lines] if lines else [])])
