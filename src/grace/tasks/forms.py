"""The two usual kinds of task: a short free answer, or a letter after step-by-step reasoning.

A task file creates one of them from its source and a function from a row to a question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

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

    kind: ClassVar[answers.Kind]
    grader: ClassVar[str]
    name: str
    source: Source
    parse: Parse

    def questions(self, split: Split, data: DataSettings, seed: int) -> list[Question]:
        """Return questions of a split, drawn by the seed (see `grace.tasks.Task`)."""
        return draw(self.name, self.source(self.name, data), self.parse, split, data, seed)

    def messages(self, question: Question, data: DataSettings) -> list[Message]:
        """Return the paper's prompt for a question of this kind."""
        if question.choices and self.kind == "open":
            raise UserInputError(f"task {self.name} has open questions; leave the choices out")
        if not question.choices and self.kind == "choice":
            raise UserInputError(NO_CHOICES.format(name=self.name))
        return ask(question, data)

    def answer(self, text: str, choices: Sequence[str] = ()) -> str | None:
        """Return what votes count: the short answer in one form, or the letter of an option."""
        return answers.read(text, self.kind, choices)


class OpenTask(_SourceTask):
    """Questions with a short free answer, graded by its words (`auto`)."""

    kind, grader = "open", "auto"


class ChoiceTask(_SourceTask):
    """Multiple-choice questions, answered with an explanation and a letter."""

    kind, grader = "choice", "choice"
