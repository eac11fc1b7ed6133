"""Tasks: question sets, one file each.

To add one, write a file here that assigns `TASK`. The two usual kinds (`forms`) take a source
(`rows`) and a function from a row to a `Question`; see `sciq.py`. A file elsewhere is named as
`module:TASK`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, Protocol, cast, runtime_checkable

from grace import plugins
from grace.answers import Kind
from grace.config import DataSettings, GradeSettings
from grace.errors import ConfigError
from grace.records import Message, Question
from grace.store.inputs import ENDINGS, HUB, ending, is_hub, stem

Split = Literal["train", "validation", "test"]
KINDS = ("number", "yes_no")
"""Kinds of open answers whose votes are not counted as texts; each has a grader of its name."""


@runtime_checkable
class Task(Protocol):
    """A question set: its questions, their prompts, and the answers to extract.

    `kind` is `open` for free text, `choice` for a letter after step-by-step reasoning, `number` for
    numbers, `yes_no` for yes or no; `grader` names the default grader (see `grace.grading`).
    """

    @property
    def name(self) -> str:
        """The name of the file that defines the task."""
        ...

    @property
    def kind(self) -> Kind:
        """Free text, a letter, a number, or yes or no."""
        ...

    @property
    def grader(self) -> str:
        """The default grader."""
        ...

    def questions(self, split: Split, data: DataSettings, seed: int) -> list[Question]:
        """Return the questions of a split, as many as `data` says, drawn by the seed.

        Ids are unique and stable; no question text occurs in two splits.

        Raises:
            DataError: the source cannot be read, or holds fewer questions than asked for.
        """
        ...

    def messages(self, question: Question, data: DataSettings) -> list[Message]:
        """Return the conversation that asks the question."""
        ...

    def answer(self, text: str, choices: Sequence[str] = ()) -> str | None:
        """Return the answer in a response in the form that votes are counted in, None if none.

        `choices` are the options of the question, if it has any: a letter beyond them is no answer.
        """
        ...


def title_of(data: DataSettings) -> str:
    """Return the name of the questions in reports: the task, or the name of the user's file."""
    source = data.file or data.dir
    if data.task != "jsonl" or not source:
        return data.task
    if is_hub(source):
        return source.removeprefix(HUB).partition(":")[0].rpartition("/")[2]
    path = Path(source)
    return stem(path) if ending(path) in ENDINGS else path.name


def graded_task(data: DataSettings, grade: GradeSettings) -> Task:
    """Return the task of a run; its votes compare numbers, or yes and no, if they are graded so."""
    return load_task(data.task, grade.grader if grade.grader in KINDS else "")


def load_task(name: str, kind: str = "") -> Task:
    """Return a task by its name: a file of this folder, or `module:NAME`.

    `kind` is that of the questions that a model was trained on, as grace.json records it; only the
    user's own questions may be of any kind.
    """
    if not name:
        known = ", ".join(plugins.find("grace.tasks"))
        raise ConfigError(f"no task is named; set data.task to one of: {known}")
    if name == "jsonl" and kind in ("choice", *KINDS):
        own: Any = plugins.load("grace.tasks", name)
        return cast(Task, dataclasses.replace(own, kind=kind))
    task = plugins.load("grace.tasks", name)
    if isinstance(task, type) or not isinstance(task, Task):
        wanted = ("name", "kind", "grader", "questions", "messages", "answer")
        missing = [part for part in wanted if not hasattr(task, part)]
        lacks = f"has no {', '.join(missing)}" if missing else "is a class; name an instance of it"
        raise ConfigError(f"{name!r} cannot serve as a task: it {lacks}")
    return _Own(name, task) if ":" in name else task


class _Own:
    """A task from outside the package: what it raises is one line that names it."""

    def __init__(self, reference: str, task: Task) -> None:
        self._reference, self._task = reference, task
        self.name, self.kind, self.grader = task.name, task.kind, task.grader

    def _named(self) -> AbstractContextManager[None]:
        failed = f"task {self._reference} failed"
        return plugins.own_code(self._reference, failed, "correct it")

    def questions(self, split: Split, data: DataSettings, seed: int) -> list[Question]:
        with self._named():
            return list(self._task.questions(split, data, seed))

    def messages(self, question: Question, data: DataSettings) -> list[Message]:
        with self._named():
            return self._task.messages(question, data)

    def answer(self, text: str, choices: Sequence[str] = ()) -> str | None:
        with self._named():
            return self._task.answer(text, choices)
