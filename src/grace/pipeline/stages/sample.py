"""Stage `sample`: the backbone answers the questions of every split."""

from __future__ import annotations

import dataclasses

from grace.config import RunSettings, to_dict
from grace.engines.base import check_contexts
from grace.grading import grader_of
from grace.pipeline.context import Context
from grace.pipeline.prompting import settle
from grace.pipeline.sampling import is_sampled, sample_split, sampling_for
from grace.pipeline.settings import model_folder
from grace.pipeline.stages.grade import show_first
from grace.progress import say
from grace.store import SPLITS, Split
from grace.tasks import Split as SplitName
from grace.tasks.draw import MOST
from grace.tasks.jsonl import Jsonl
from grace.tasks.prompts import draw_training


def sample(context: Context) -> None:
    """Draw the questions of each split and sample their responses."""
    settle(context)
    settings = context.settings
    outputs = [context.directory.asking] if context.directory.asking.exists() else []
    for name in SPLITS:
        draw_questions(context, context.directory.split(name), name)
        _refuse_too_long(context, name)
    _say_sizes(context)
    _preview(context)
    for name in SPLITS:
        split = context.directory.split(name)
        sampling = sampling_for(context.settings, name)
        sample_split(context, "base", split, sampling)
        outputs += [split.questions.path, split.responses.path]
    context.engines.forget_sampling()
    if settings.data.shots:
        outputs.append(context.shots.path)
    tree = to_dict(settings)
    context.directory.finish(
        "sample", {key: tree[key] for key in ("seed", "model", "data", "sample")}, [], outputs
    )


def check_model(settings: RunSettings) -> None:
    """Refuse a model that is not there, or has no tokenizer; no weights are loaded."""
    from grace.engines.local.loading import load_tokenizer, read_config

    model, code = settings.model, settings.model.trust_remote_code
    path = model_folder(model)
    load_tokenizer(path, trust_remote_code=code, date=model.date)
    read_config(path, trust_remote_code=code)


def draw_questions(context: Context, split: Split, name: SplitName) -> None:
    """Draw a split's questions, once per run; with those of `train`, the few-shot examples."""
    if split.questions.path.exists():
        return
    data, seed = context.settings.data, context.settings.seed
    if name == "train":
        shots, drawn = draw_training(context.task, data, seed)
        if shots:
            context.shots.write(shots)
    else:
        drawn = context.task.questions(name, data, seed)
    split.questions.write(drawn)


def _say_sizes(context: Context) -> None:
    """Print the sizes of the splits where the settings leave them open."""
    data = context.settings.data
    if data.train and data.validation and data.test:
        return
    sizes = [f"{len(context.directory.split(name).questions.read()):,} {name}" for name in SPLITS]
    shots = f", and {len(context.shots.read())} as examples in every prompt" if data.shots else ""
    most = ", ".join(f"{most:,}" for most in MOST.values())
    say(
        f"questions: {', '.join(sizes)}{shots} (at most {most}, unless data.train, data.validation "
        "and data.test are set)"
    )


def _preview(context: Context) -> None:
    """Show the first prompt, its answer and the grade, unless some questions are answered."""
    split = context.directory.split("train")
    if split.responses.path.exists():
        return
    question = split.questions.read()[0]
    (chat,) = context.messages([question])
    grader = grader_of(context.settings.grade, context.task.grader)
    show_first(
        context.sampler("base"), question, chat, sampling_for(context.settings, "train"), grader
    )


def draw_shots(context: Context) -> None:
    """Draw the few-shot examples of a task that is not trained on, once per run."""
    data = dataclasses.replace(context.settings.data, train=1, validation=1)
    if data.shots and not context.shots.path.exists():
        context.shots.write(draw_training(context.task, data, context.settings.seed)[0])


def _refuse_too_long(context: Context, name: str) -> None:
    """Refuse a question that is too long for the model before any is answered; name its line."""
    split, sampling = context.directory.split(name), sampling_for(context.settings, name)
    if is_sampled(split, sampling.num_samples):
        return
    questions, limit = split.questions.read(), context.sampler("base").limit
    for question, prompt in zip(questions, context.prompts(questions), strict=True):
        if limit is not None and len(prompt) + sampling.max_new_tokens > limit:
            task, data = context.task, context.settings.data
            lines = task.places(data) if isinstance(task, Jsonl) else {}
            place = lines.get(question.id, question.id)
            check_contexts([prompt], limit, sampling.max_new_tokens, [place])
