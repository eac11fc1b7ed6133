"""The state that the stages of a run share: directory, settings, task and engines."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grace.chat import encode_chat, has_chat_template
from grace.config import DataSettings, RunSettings, key_values
from grace.engines.gguf import resolve_model
from grace.estimators import Answers, Draws, Samples
from grace.pipeline.asking import choose, settled
from grace.progress import say
from grace.records import Message, Question
from grace.store import RowFile, RunDir, Split
from grace.tasks import Task, load_task
from grace.tasks.prompts import conversation

if TYPE_CHECKING:
    from grace.engines import ModelEngine
    from grace.engines.local.loading import Loaded
    from grace.engines.transformers import TransformersEngine


class Engines:
    """The backbone as it came and with its trained adapter, each loaded when first used."""

    def __init__(self, directory: RunDir, settings: RunSettings) -> None:
        self._directory = directory
        self._settings = settings

    @functools.cached_property
    def asking(self) -> RunSettings:
        """The settings as questions are asked: as plain text where there is no chat template."""
        from grace.engines.local.loading import load_tokenizer

        settings, model = self._settings, self._settings.model
        if settings.data.prompt == "text":
            return settings
        tokenizer = load_tokenizer(
            resolve_model(model.path), trust_remote_code=model.trust_remote_code
        )
        if has_chat_template(tokenizer):
            return settings
        say(
            f"{model.path} has no chat template, so questions are asked as plain text, and a "
            "newline ends an answer (data.prompt=text)"
        )
        data = dataclasses.replace(settings.data, prompt="text")
        return dataclasses.replace(settings, data=data)

    @property
    def _how(self) -> dict[str, Any]:
        """Return how any engine loads the backbone."""
        model = self._settings.model
        names = ("device", "dtype", "trust_remote_code", "thinking")
        return {name: getattr(model, name) for name in names}

    @functools.cached_property
    def base(self) -> TransformersEngine:
        """The backbone as it came."""
        return self.load(None)

    @functools.cached_property
    def sampling(self) -> ModelEngine:
        """The engine that samples the backbone's answers: itself, or `model.engine`."""
        from grace.engines.kinds import load_engine

        model = self._settings.model
        if model.engine == "transformers":
            return self.base
        options = key_values(model.engine_options, "model.engine_options")
        return load_engine(
            model.engine,
            resolve_model(model.path),
            **self._how,
            batch_size=self._settings.sample.batch_size or None,
            needs_cnf=False,
            stop=self.asking.stop,
            **options,
        )

    def forget_sampling(self) -> None:
        """Let go of what samples the backbone's answers, unless that is the backbone itself."""
        engine = self.__dict__.pop("sampling", None)
        if engine is not None and engine is not self.__dict__.get("base"):
            engine.close()

    @functools.cached_property
    def tuned(self) -> TransformersEngine:
        """The backbone with its trained adapter."""
        return self.load(self._directory.adapter)

    def forget_tuned(self) -> None:
        """Load the tuned backbone anew when it is next used: its adapter has been replaced."""
        self.__dict__.pop("tuned", None)

    def asked(self, data: DataSettings) -> TransformersEngine:
        """Return the backbone as it came, with what ends an answer to questions asked so."""
        from grace.engines.stops import stop_ids
        from grace.engines.transformers import TransformersEngine

        settings, base = dataclasses.replace(self._settings, data=data), self.base
        stops = stop_ids(base.tokenizer, settings.stop)
        return TransformersEngine(
            base.model, base.tokenizer, batch_size=base.batch_size, stops=stops
        )

    def trainable(self) -> Loaded:
        """Return a backbone of its own with its tokenizer, for training to change."""
        from grace.engines.local.loading import load

        return load(resolve_model(self._settings.model.path), **self._how, trainable=True)

    def load(self, adapter: Path | None) -> TransformersEngine:
        """Return the backbone with an adapter directory on top, or as it came."""
        from grace.engines.transformers import TransformersEngine

        return TransformersEngine.load(
            resolve_model(self._settings.model.path),
            adapter=adapter,
            **self._how,
            batch_size=self._settings.sample.batch_size or None,
            stop=self.asking.stop,
        )


class Context:
    """One run in one process."""

    def __init__(
        self,
        directory: RunDir,
        settings: RunSettings,
        engines: Engines | None = None,
        home: str = "train",
    ) -> None:
        self.directory = directory
        self.given = settings
        self.settings = settled(settings, directory)
        self.engines = engines or Engines(directory, self.settings)
        self.task: Task = load_task(settings.data.task)
        self.shots: RowFile[Question] = directory.split(home).shots

    def elsewhere(self, task: str) -> Context:
        """Return this run's models in front of another task's questions.

        A grader of the run's own goes with it where the answers are of the same kind.
        """
        alike = load_task(task).kind == self.task.kind
        grader = self.settings.grade.grader if alike else ""
        grade = dataclasses.replace(self.settings.grade, grader=grader)
        data = dataclasses.replace(self.settings.data, task=task, system="", template="")
        settings = dataclasses.replace(self.settings, data=data, grade=grade)
        return Context(self.directory, settings, self.engines, f"transfer/{task}")

    def settle(self) -> None:
        """Choose how questions are asked, once per run, where the settings leave it open."""
        if choose(self):
            self.settings = settled(self.given, self.directory)
            self.engines = Engines(self.directory, self.settings)

    def say(self, message: str) -> None:
        """Print a message to standard error; results go to standard output."""
        say(message)

    @property
    def data(self) -> DataSettings:
        """The data settings, with the prompt that this backbone can take."""
        return dataclasses.replace(self.settings.data, prompt=self.engines.asking.data.prompt)

    def sampler(self, answers: Answers) -> ModelEngine:
        """Return the engine that samples these answers."""
        return self.engines.tuned if answers == "tuned" else self.engines.sampling

    def engine(self, answers: Answers) -> TransformersEngine:
        """Return the model whose answers these are."""
        return self.engines.tuned if answers == "tuned" else self.engines.base

    def messages(self, questions: Sequence[Question]) -> list[list[Message]]:
        """Return the conversation that asks each question, after those of the examples."""
        shots = self.shots.read() if self.data.shots else []
        return [conversation(self.task, question, self.data, shots) for question in questions]

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
