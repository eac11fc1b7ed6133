"""What the stages of one run share: its directory, settings, task and (loaded on demand) engine."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from grace.chat import encode_chat
from grace.config import RunSettings
from grace.engines.gguf import resolve_model
from grace.estimators import Answers, Draws, Samples
from grace.records import Message, Question
from grace.store import RunDir, Split
from grace.tasks import Task, load_task

if TYPE_CHECKING:
    from grace.engines.loading import Loaded
    from grace.engines.transformers import TransformersEngine


class Engines:
    """The backbone as it came and with its trained adapter, each loaded when first used."""

    def __init__(self, directory: RunDir, settings: RunSettings) -> None:
        self._directory = directory
        self._settings = settings

    @functools.cached_property
    def base(self) -> TransformersEngine:
        """The backbone as it came."""
        return self._load(adapter=False)

    @functools.cached_property
    def tuned(self) -> TransformersEngine:
        """The backbone with its trained adapter."""
        return self._load(adapter=True)

    def trainable(self) -> Loaded:
        """Return a backbone of its own with its tokenizer, for training to change."""
        from grace.engines.loading import load

        model = self._settings.model
        return load(
            resolve_model(model.path),
            device=model.device,
            dtype=model.dtype,
            trust_remote_code=model.trust_remote_code,
            trainable=True,
        )

    def _load(self, *, adapter: bool) -> TransformersEngine:
        from grace.engines.transformers import TransformersEngine

        model = self._settings.model
        return TransformersEngine.load(
            resolve_model(model.path),
            adapter=self._directory.adapter if adapter else None,
            device=model.device,
            dtype=model.dtype,
            trust_remote_code=model.trust_remote_code,
            batch_size=self._settings.sample.batch_size or None,
        )


class Context:
    """One run in one process."""

    def __init__(
        self, directory: RunDir, settings: RunSettings, engines: Engines | None = None
    ) -> None:
        self.directory = directory
        self.settings = settings
        self.engines = engines or Engines(directory, settings)
        self.task: Task = load_task(settings.data.task)

    def elsewhere(self, task: str) -> Context:
        """Return this run's models in front of another task's questions.

        A grader of the run's own goes with it where the answers are of the same kind.
        """
        alike = load_task(task).kind == self.task.kind
        grader = self.settings.grade.grader if alike else ""
        grade = dataclasses.replace(self.settings.grade, grader=grader)
        data = dataclasses.replace(self.settings.data, task=task, system="")
        settings = dataclasses.replace(self.settings, data=data, grade=grade)
        return Context(self.directory, settings, self.engines)

    def say(self, message: str) -> None:
        """Tell the person at the terminal something; results never go this way."""
        print(message, file=sys.stderr, flush=True)

    def engine(self, answers: Answers) -> TransformersEngine:
        """Return the model whose answers these are."""
        return self.engines.tuned if answers == "tuned" else self.engines.base

    def messages(self, questions: Sequence[Question]) -> list[list[Message]]:
        """Return the conversation that asks each question."""
        return [self.task.messages(question, self.settings.data) for question in questions]

    def prompts(self, questions: Sequence[Question]) -> list[list[int]]:
        """Return the token ids that ask each question; user text stays text."""
        tokenizer = self.engines.base.tokenizer
        return [encode_chat(tokenizer, asked) for asked in self.messages(questions)]

    def samples(self, split: Split, draw: Callable[[int], Draws] | None = None) -> Samples:
        """Return a split's graded responses with their questions and prompts, row by row."""
        responses, grades = split.responses.read(), split.grades.read()
        questions = split.questions.read()
        row = {question.id: i for i, question in enumerate(questions)}
        messages, prompts = self.messages(questions), self.prompts(questions)
        at = [row[response.question_id] for response in responses]
        return Samples(
            questions=[questions[i] for i in at],
            messages=[messages[i] for i in at],
            prompts=[prompts[i] for i in at],
            responses=responses,
            answers=[grade.answer for grade in grades],
            correct=[grade.correct for grade in grades],
            **({"draw": draw} if draw else {}),
        )
