"""The two usual kinds of task: a short free answer, or a letter after step-by-step reasoning.

A task file creates one of them from its source and a function from a row to a question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from grace import answers
from grace.config import DataSettings
from grace.errors import UserInputError
from grace.records import Message, Question
from grace.tasks import Split
from grace.tasks.draw import Parse, draw
from grace.tasks.prompts import ask
from grace.tasks.rows import Source

NO_CHOICES = (
    "task {name} has multiple-choice questions; give the choices: --choice TEXT for each, "
    '"choices" in a file or a request, or in Python choices= (for `score`: '
    "model.messages(question, choices))"
)


@dataclass(frozen=True, slots=True)
class _SourceTask:
    """A task whose questions are drawn from a source."""

    name: str
    source: Source
    parse: Parse

    def questions(self, split: Split, data: DataSettings, seed: int) -> list[Question]:
        """Return questions of a split, drawn by the seed (see `grace.tasks.Task`)."""
        return draw(self.name, self.source(self.name, data), self.parse, split, data, seed)


class OpenTask(_SourceTask):
    """Questions with a short free answer, graded by its words (`auto`)."""

    kind: ClassVar[Literal["open"]] = "open"
    grader: ClassVar[str] = "auto"

    def messages(self, question: Question, data: DataSettings) -> list[Message]:
        """Return the paper's prompt for open-ended generation, in one user turn."""
        if question.choices:
            raise UserInputError(f"task {self.name} has open questions; leave the choices out")
        return ask(question, data)

    def answer(self, text: str, choices: Sequence[str] = ()) -> str | None:
        """Return the short answer in one form."""
        return answers.read(text, "open")


class ChoiceTask(_SourceTask):
    """Multiple-choice questions, answered with an explanation and a letter."""

    kind: ClassVar[Literal["choice"]] = "choice"
    grader: ClassVar[str] = "choice"

    def messages(self, question: Question, data: DataSettings) -> list[Message]:
        """Return the paper's prompt for test-time scaling: instructions, question and options."""
        if not question.choices:
            raise UserInputError(NO_CHOICES.format(name=self.name))
        return ask(question, data)

    def answer(self, text: str, choices: Sequence[str] = ()) -> str | None:
        """Return the letter of the option that is named, None for one that no option has."""
        return answers.read(text, "choice", choices)
