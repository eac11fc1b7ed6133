"""The state that the stages of a run share: its directory, settings, task and engines."""

from __future__ import annotations

import dataclasses
import functools
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grace import plugins
from grace.chat import encode_chat, has_chat_template
from grace.config import DataSettings, ModelSettings, RunSettings, from_dict, refuse_earlier
from grace.errors import RunError
from grace.estimators import Answers, Draws, Samples
from grace.pipeline.settings import model_folder, needed_length, settled
from grace.progress import say
from grace.records import Message, Question
from grace.store import RowFile, RunDir, Split, is_run, read_json, runs_in
from grace.tasks import Task, graded_task, load_task, title_of
from grace.tasks.prompts import conversation

if TYPE_CHECKING:
    from grace.engines.base import ModelEngine
    from grace.engines.local.loading import Loaded
    from grace.engines.transformers import TransformersEngine


class Engines:
    """The backbone without and with its trained adapter, each loaded when first used."""

    def __init__(self, directory: RunDir, settings: RunSettings) -> None:
        self._directory = directory
        self._settings = settings

    @functools.cached_property
    def tokenizer(self) -> Any:
        """The backbone's tokenizer, before its weights are loaded."""
        from grace.engines.local.loading import load_tokenizer

        model = self._settings.model
        code = model.trust_remote_code
        return load_tokenizer(
            model_folder(self._settings.model), trust_remote_code=code, date=model.date
        )

    @functools.cached_property
    def prompt_settings(self) -> RunSettings:
        """The settings of the prompts: plain text where the model has no chat template."""
        settings, model = self._settings, self._settings.model
        if settings.data.prompt == "text" or has_chat_template(self.tokenizer):
            return settings
        say(
            f"{model.path} has no chat template, so questions are asked as plain text, and a "
            "newline ends an answer (data.prompt=text)"
        )
        data = dataclasses.replace(settings.data, prompt="text")
        return dataclasses.replace(settings, data=data)

    @functools.cached_property
    def backbone(self) -> Loaded:
        """The weights and the tokenizer that the engines without an adapter share."""
        from grace.engines.local.loading import load

        return load(model_folder(self._settings.model), **_loading(self._settings.model))

    @functools.cached_property
    def base(self) -> TransformersEngine:
        """The backbone without an adapter."""
        return self.asking(self.prompt_settings)

    @functools.cached_property
    def tuned(self) -> TransformersEngine:
        """The backbone with its trained adapter."""
        return self.load(self._directory.adapter)

    @functools.cached_property
    def sampling(self) -> ModelEngine:
        """The engine that samples the backbone's answers: `base`, unless `model.engine` differs."""
        from grace.engines.local.loading import faster

        if self._settings.model.engine != "transformers":
            return load_sampler(self.prompt_settings)
        if hint := faster(self.base.model, self._settings.model.dtype):
            say(hint)
        return self.base

    def load(self, adapter: Path) -> TransformersEngine:
        """Return a backbone of its own with an adapter directory on top."""
        from grace.engines.transformers import TransformersEngine

        return TransformersEngine.load(
            model_folder(self._settings.model),
            adapter=adapter,
            **_loading(self._settings.model),
            batch_size=self._settings.sample.batch_size or None,
            stop=self.prompt_settings.stop,
        )

    def load_trainable(self) -> Loaded:
        """Return a new backbone with its tokenizer, for training to change."""
        from grace.engines.local.loading import load

        return load(
            model_folder(self._settings.model), **_loading(self._settings.model), trainable=True
        )

    def asking(self, settings: RunSettings) -> TransformersEngine:
        """Return the backbone, with the end-of-response tokens of some way to ask."""
        from grace.engines.transformers import TransformersEngine

        size = settings.sample.batch_size or None
        return TransformersEngine.of(self.backbone, batch_size=size, stop=settings.stop)

    def for_settings(self, settings: RunSettings) -> Engines:
        """Return the engines of other settings of the prompts; the backbone is not loaded again."""
        engines = Engines(self._directory, settings)
        if "backbone" in self.__dict__:
            engines.backbone = self.backbone
        return engines

    def forget_sampling(self) -> None:
        """Close the engine that samples the backbone's answers, unless it is `base`."""
        engine = self.__dict__.pop("sampling", None)
        if engine is not None and engine is not self.__dict__.get("base"):
            engine.close()

    def forget_base(self) -> None:
        """Load the backbone again when it is next used: until then its memory is needed."""
        self.forget_sampling()
        self.__dict__.pop("base", None)
        self.__dict__.pop("backbone", None)


def _loading(model: ModelSettings) -> dict[str, Any]:
    """Return the settings that every engine loads a backbone with."""
    names = ("device", "dtype", "trust_remote_code", "thinking", "date")
    return {name: getattr(model, name) for name in names}


def load_sampler(settings: RunSettings, **more: Any) -> ModelEngine:
    """Return the engine that samples with these settings; its model need not have a confidence."""
    from grace.engines.base import load_engine, own_options

    model = settings.model
    return load_engine(
        model.engine,
        model.path,
        **_loading(model),
        batch_size=settings.sample.batch_size or None,
        needs_cnf=False,
        stop=settings.stop,
        **(own_options(model.engine_options, "model.engine_options") | more),
    )


class Context:
    """One run in one process.

    `settings` leave nothing open: they hold the prompt, answer length and grader that the run has
    chosen where the user's settings (`open_settings`) do not.
    """

    def __init__(
        self,
        directory: RunDir,
        settings: RunSettings,
        engines: Engines | None = None,
        home: str = "train",
    ) -> None:
        self.directory = directory
        self.open_settings = settings
        self.settings = settled(settings, directory)
        self.engines = engines or Engines(directory, self.settings)
        self.task: Task = graded_task(settings.data, self.settings.grade)
        self.shots: RowFile[Question] = directory.split(home).shots
        self._encoded_by: Any = None
        self._encoded: dict[tuple[tuple[str, str], ...], array[int]] = {}

    def elsewhere(self, task: str) -> Context:
        """Return this run's models on another task, graded alike if its answers are of one kind."""
        other, sample = load_task(task), self.settings.sample
        alike = other.kind == self.task.kind
        grade = dataclasses.replace(
            self.settings.grade, grader=self.settings.grade.grader if alike else ""
        )
        data = dataclasses.replace(self.settings.data, task=task, system="", template="")
        kept = alike and self.open_settings.sample.max_new_tokens
        if not kept and not self.directory.done("score"):  # later nothing is sampled
            drawn = self.directory.split(f"transfer/{task}").questions
            asked = (
                drawn.read()
                if drawn.path.exists()
                else other.questions("test", data, self.settings.seed)
            )
            needed = needed_length(self.engines.tokenizer, asked, self.settings.model)
            longest = max(sample.max_new_tokens, needed)
            sample = dataclasses.replace(sample, max_new_tokens=longest, open_tokens=0)
        settings = dataclasses.replace(self.settings, data=data, sample=sample, grade=grade)
        return Context(self.directory, settings, self.engines, f"transfer/{task}")

    def take_chosen(self) -> None:
        """Go on with the prompt, answer length and grader that the run has chosen since."""
        self.settings = settled(self.open_settings, self.directory)
        self.task = graded_task(self.settings.data, self.settings.grade)
        self.engines = self.engines.for_settings(self.settings)

    @property
    def data(self) -> DataSettings:
        """The data settings, with the prompt that this backbone can take."""
        return dataclasses.replace(
            self.settings.data, prompt=self.engines.prompt_settings.data.prompt
        )

    @property
    def about(self) -> dict[str, Any]:
        """The task and the backbone, as the rows of a report name them."""
        title, backbone = title_of(self.settings.data), Path(self.settings.model.path).name
        return {"task": title, "backbone": backbone}

    def sampler(self, answers: Answers) -> ModelEngine:
        """Return the engine that samples these answers."""
        return self.engines.tuned if answers == "tuned" else self.engines.sampling

    def engine(self, answers: Answers) -> TransformersEngine:
        """Return the model whose answers these are."""
        return self.engines.tuned if answers == "tuned" else self.engines.base

    def messages(self, questions: Sequence[Question]) -> list[list[Message]]:
        """Return each question as a conversation, after the few-shot examples."""
        shots = self.shots.read() if self.data.shots else []
        return [conversation(self.task, question, self.data, shots) for question in questions]

    def prompts(self, questions: Sequence[Question]) -> list[list[int]]:
        """Return the token ids of each question's prompt; user text makes no special tokens."""
        tokenizer, prompts = self.engines.base.tokenizer, []
        if tokenizer is not self._encoded_by:
            self._encoded_by, self._encoded = tokenizer, {}
        for chat in self.messages(questions):  # each estimator asks for the same ones again
            said = tuple((message["role"], message["content"]) for message in chat)
            if said not in self._encoded:
                self._encoded[said] = array("i", encode_chat(tokenizer, chat))
            prompts.append(self._encoded[said].tolist())
        return prompts

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


def open_run(path: Path, device: str | None = None) -> Context:
    """Return the context of an existing run, with its model on the run's device or another."""
    return Context(RunDir(path), load_run_settings(path, device))


def load_run_settings(path: Path, device: str | None = None) -> RunSettings:
    """Return the settings of a run to work with, with its own device or another."""
    settings = read_run_settings(path)
    plugins.refuse_code(code_in(settings), RunDir(path).config)
    model = dataclasses.replace(settings.model, device=device or settings.model.device)
    return dataclasses.replace(settings, model=model)


def read_run_settings(path: Path) -> RunSettings:
    """Return the settings of a run to look at; code that they name is not checked."""
    config = RunDir(path).config
    stored = read_json(config) if config.exists() else {}
    if not is_run(path):
        runs = runs_in(path)
        which = f"holds several runs; name one of them, e.g. {runs[0]}" if runs else "is not a run"
        raise RunError(f"{path} {which}; see `grace list runs`")
    refuse_earlier([stored["settings"]], config)
    return from_dict(RunSettings, stored["settings"], where=str(config))


def code_in(settings: RunSettings) -> list[str]:
    """Return the modules that settings name, and the model whose own code they let run."""
    model, report = settings.model, settings.report
    parts = (model.engine, settings.data.task, settings.grade.grader)
    names = (*parts, *report.transfer, *report.estimators)
    own = [model.path] if model.trust_remote_code else []
    return [*plugins.code_in(names), *own]
