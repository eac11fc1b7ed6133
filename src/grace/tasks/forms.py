"""The two usual shapes of a task: a short free answer, and a letter after step-by-step reasoning.

A task file fills one of them in with its source and a function from a row to a question.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from grace.config import DataSettings
from grace.errors import UserInputError
from grace.grading import letter, normalise, short_answer
from grace.records import Message, Question
from grace.tasks import Split
from grace.tasks.draw import Parse, draw
from grace.tasks.prompts import ask_choice, ask_open
from grace.tasks.rows import Source


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Questions that are drawn from a source."""

    name: str
    source: Source
    parse: Parse

    def questions(self, split: Split, data: DataSettings, seed: int) -> list[Question]:
        """Return the drawn questions of a split (see `grace.tasks.Task`)."""
        return draw(self.name, self.source(self.name, data), self.parse, split, data, seed)


class OpenTask(_Drawn):
    """Questions with a short free answer, graded by ROUGE-L."""

    kind: ClassVar[Literal["open"]] = "open"
    grader: ClassVar[str] = "rouge"

    def messages(self, question: Question, data: DataSettings) -> list[Message]:
        """Return the paper's prompt for open-ended generation, in one user turn.

        Raises:
            UserInputError: the question has choices.
        """
        if question.choices:
            raise UserInputError(f"task {self.name} asks open questions; leave the choices out")
        return ask_open(question, data)

    def answer(self, text: str) -> str | None:
        """Return the normalised short answer."""
        return normalise(short_answer(text)) or None


class ChoiceTask(_Drawn):
    """Multiple-choice questions, answered with an explanation and a letter."""

    kind: ClassVar[Literal["choice"]] = "choice"
    grader: ClassVar[str] = "choice"

    def messages(self, question: Question, data: DataSettings) -> list[Message]:
        """Return the paper's prompt for test-time scaling: instructions, then the options.

        Raises:
            UserInputError: the question has no choices.
        """
        if not question.choices:
            raise UserInputError(
                f"task {self.name} asks multiple choice; give its choices: --choice TEXT for each, "
                "or choices= in Python"
            )
        return ask_choice(question, data)

    def answer(self, text: str) -> str | None:
        """Return the letter after `Answer:`."""
        return letter(text)
