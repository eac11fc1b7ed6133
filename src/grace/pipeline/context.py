"""What the stages of one run share: its directory, settings, task and (loaded on demand) engine."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from grace.chat import encode_chat
from grace.config import RunSettings, resolve_model
from grace.estimators import Samples
from grace.records import Question
from grace.store import RunDir, Split
from grace.tasks import Task, load_task

if TYPE_CHECKING:
    from grace.engines.transformers import TransformersEngine


class Context:
    """One run in one process."""

    def __init__(self, directory: RunDir, settings: RunSettings) -> None:
        self.directory = directory
        self.settings = settings
        self.task: Task = load_task(settings.data.task)

    def say(self, message: str) -> None:
        """Tell the person at the terminal something; results never go this way."""
        print(message, file=sys.stderr, flush=True)

    @functools.cached_property
    def base(self) -> TransformersEngine:
        """The backbone as it came."""
        return self._load(adapter=False)

    @functools.cached_property
    def tuned(self) -> TransformersEngine:
        """The backbone with its trained adapter."""
        return self._load(adapter=True)

    def fresh(self) -> TransformersEngine:
        """Return a backbone of its own, for training to change."""
        return self._load(adapter=False)

    def prompts(self, questions: Sequence[Question]) -> list[list[int]]:
        """Return the token ids that ask each question; user text stays text."""
        data, tokenizer = self.settings.data, self.base.tokenizer
        return [encode_chat(tokenizer, self.task.messages(q, data)) for q in questions]

    def samples(self, split: Split, questions: Sequence[Question]) -> Samples:
        """Return a split's responses with their questions, prompts and grades, row by row."""
        responses, grades = split.responses.read(), split.grades.read()
        by_id = {question.id: question for question in questions}
        prompts = dict(zip(by_id, self.prompts(list(by_id.values())), strict=True))
        return Samples(
            questions=[by_id[response.question_id] for response in responses],
            prompts=[prompts[response.question_id] for response in responses],
            responses=responses,
            correct=[grade.correct for grade in grades],
        )

    def _load(self, *, adapter: bool) -> TransformersEngine:
        from grace.engines.transformers import TransformersEngine

        model = self.settings.model
        return TransformersEngine.load(
            resolve_model(model.path),
            adapter=self.directory.adapter if adapter else None,
            device=model.device,
            dtype=model.dtype,
            trust_remote_code=model.trust_remote_code,
            batch_size=self.settings.sample.batch_size or None,
        )
