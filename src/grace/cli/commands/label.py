"""`grace label`: sample, rate and grade responses to every question of a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from grace import plugins
from grace.cli.options import (
    AnswerField,
    Base,
    Device,
    Dtype,
    Json,
    QuestionField,
    Set,
    examples,
    from_one,
    listed,
    refuse_unused,
)
from grace.config import RunSettings, assignment, override_settings, to_dict
from grace.errors import ConfigError
from grace.store import is_run, read_card

EXAMPLES = examples(
    "grace label questions.parquet labelled --model runs/mine",
    "grace label questions.parquet labelled --model runs/mine --samples 16 --workers 8",
    "grace label questions.parquet labelled --model Qwen/Qwen2.5-7B-Instruct --engine vllm",
)
DEFAULT_TASK = "jsonl"  # of a model without grace.json: open and multiple-choice questions
UNUSED = (  # settings of a run alone, and those that an option gives
    *("method", "grace.", "paper.", "report.", "estimators.", "model.", "data.dir", "data.file"),
    *("data.train", "data.validation", "data.test"),
    *("sample.train_", "sample.test_", "sample.draw_"),
)
USED = ("model.thinking", "model.date", "model.trust_remote_code")
MANY = 0.1  # share of cut or empty responses from which on they are mentioned


def label(
    questions: Annotated[
        str,
        typer.Argument(
            metavar="QUESTIONS",
            help="Your questions: a .jsonl, .json, .csv, .tsv or .parquet file, a directory of "
            "such files, or hf:OWNER/NAME:CONFIG:SPLIT.",
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Directory for the Parquet files.")],
    model: Annotated[
        str,
        typer.Option(
            metavar="MODEL",
            help="Directory of a run, an adapter or an exported model; a GGUF file, or a Hub id.",
        ),
    ],
    samples: Annotated[int, from_one(help="Number of responses per question.")] = 1,
    temperature: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="T",
            show_default="0, greedy, for one response; else 0.8",
            help="Sampling temperature.",
        ),
    ] = None,
    features: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMES", help="Hidden states to store with each response: mean, last, or both."
        ),
    ] = None,
    workers: Annotated[
        int,
        from_one(
            help="Number of processes, each with the model and its share of the GPUs or cores."
        ),
    ] = 1,
    engine: Annotated[
        str, typer.Option(help="What runs the model: transformers, vllm or openai.")
    ] = "transformers",
    engine_options: Annotated[
        list[str] | None,
        typer.Option(
            "--engine-option",
            metavar="KEY=VALUE",
            help="Option of the engine, such as max_model_len=4096 for vllm or "
            "url=http://HOST:PORT for openai. Can be repeated.",
        ),
    ] = None,
    upstream_key: Annotated[
        str, typer.Option(envvar="GRACE_UPSTREAM_KEY", help="API key of the server, for openai.")
    ] = "",
    question_field: QuestionField = "",
    answer_field: AnswerField = "",
    shard_size: Annotated[int, from_one(help="Number of questions per file.")] = 256,
    base: Base = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    settings: Set = None,
    as_json: Json = False,
) -> None:
    """Answer many questions with a model, and write the rated and graded answers as Parquet.

    An interrupted command resumes when you repeat it.
    """
    from grace.engines.base import engine_class, own_options
    from grace.model.loading import adapter_folder, backbone
    from grace.pipeline.labelling import Labelling
    from grace.pipeline.labelling import label as label_all
    from grace.pipeline.settings import THOUGHT, absolute_model
    from grace.pipeline.study import check_packages
    from grace.strategies import TEMPERATURE
    from grace.tasks import KINDS
    from grace.tasks.prompts import recorded_shots

    check_packages("grace label")
    what = "grace label answers every question of a file with the model of --model"
    refuse_unused(settings or [], UNUSED, what, USED)
    if out.is_file():
        raise ConfigError(f"{out} is a file; name a directory")
    if samples > 1 and temperature == 0:
        raise ConfigError(
            f"at --temperature 0 all {samples} responses to a question are equal; leave out "
            "--samples, or give a higher temperature"
        )
    folder = adapter_folder(Path(model), None)
    card = read_card(folder or Path(model))
    own_options(engine_options or [], "--engine-option")
    columns = {"data.question_field": question_field, "data.answer_field": answer_field}
    named = [assignment(key, name) for key, name in columns.items()]
    run = _settings(Path(model), card, [*named, *(settings or [])])
    shots, kind = recorded_shots(card), card.get("kind", "")
    if max(run.data.shots, 0) != len(shots):
        raise ConfigError(
            f"data.shots is {run.data.shots}, but {model} was trained with {len(shots)} examples; "
            "leave data.shots out"
        )
    if temperature is None:
        temperature = 0.0 if samples == 1 else TEMPERATURE
    thought = THOUGHT if run.model.thinking and not run.sample.max_new_tokens else 0
    resolved = {
        "model.path": absolute_model(backbone(model, folder, card, base)),
        "model.engine": engine,
        "model.engine_options": engine_options or [],
        "model.device": device,
        "model.dtype": dtype,
        "sample.test_samples": samples,
        "sample.test_temperature": temperature,
        "sample.max_new_tokens": run.sample.longest + thought,
    }
    how = Labelling(
        override_settings(to_dict(run), [assignment(*pair) for pair in resolved.items()]),
        adapter=str(folder.resolve()) if folder else "",
        key=upstream_key if "relay" in engine_class(engine).gives else "",
        shots=shots,
        votes=kind if kind in KINDS else "",
        features=_features(listed(features), engine),
        shard_size=shard_size,
    )
    done = label_all(questions, out, how, workers=workers)
    if as_json:
        print(json.dumps(done._asdict()))
        return
    others = f", {done.left} more are being made by other processes" if done.left else ""
    print(
        f"{done.responses} responses to {done.questions} questions in {done.shards} files in {out} "
        f"({done.made} made now{others})"
    )
    if done.graded:
        print(f"{100 * done.right / done.graded:.1f}% of {done.graded} graded responses are right")
    for count, problem, key in (
        (done.cut, "cut at the length limit, so without a confidence", "sample.max_new_tokens"),
        (done.empty, "empty: the prompt may not fit these questions", "data.template"),
    ):
        if count > MANY * done.responses:
            print(f"{count} responses are {problem}; try --set {key}=... in a new directory")


def _settings(model: Path, card: dict[str, Any], overrides: list[str]) -> RunSettings:
    """Return the settings with which the model was trained, changed by `--set`."""
    from grace.pipeline import code_in, load_run_settings

    plugins.trust(code_in(override_settings({"model": {"path": str(model)}}, overrides)))
    tree: dict[str, Any] = {
        "model": {"path": str(model)},
        "data": {"task": DEFAULT_TASK, **card.get("data", {})},
        "sample": dict(card.get("sample", {})),
    }
    if is_run(model):
        tree["grade"] = to_dict(load_run_settings(model).grade)
    settings = override_settings(tree, overrides, where=f"{model}/grace.json")
    if card and (named := [key for key in ("thinking", "date") if key in tree["model"]]):
        raise ConfigError(
            f"{model} is asked as in its fit, which cannot change; leave model.{named[0]} out"
        )
    plugins.refuse_code(code_in(settings), f"{model}/grace.json")
    return settings


def _features(names: list[str], engine: str) -> tuple[Any, ...]:
    """Return the names of the hidden states to store, each once."""
    from grace.engines.base import engine_class

    unknown = [name for name in names if name not in ("mean", "last")]
    if unknown:
        raise ConfigError(f"--features {unknown[0]} is unknown; use mean or last")
    if names and "states" not in engine_class(engine).gives:
        raise ConfigError(f"engine {engine} gives no hidden states; use transformers for features")
    return tuple(dict.fromkeys(names))
