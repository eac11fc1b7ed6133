"""`grace label`: sampled, graded responses to every question of a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grace.cli.options import (
    AnswerField,
    Base,
    Device,
    Dtype,
    Json,
    QuestionField,
    Set,
    examples,
    listed,
)
from grace.errors import ConfigError

if TYPE_CHECKING:
    from grace.config import RunSettings

LABEL = examples(
    "grace label questions.parquet labelled --model runs/qwen --samples 16",
    "grace label questions.parquet labelled --model runs/qwen --samples 16 --workers 8",
    "grace label questions.parquet labelled --model Qwen/Qwen2.5-7B-Instruct --engine vllm",
    "grace label questions.parquet labelled --model Qwen/Qwen2.5-7B-Instruct --features mean",
)
DEFAULT_TASK = "jsonl"  # of a model without grace.json: open and multiple-choice questions
MANY = 0.1  # of all responses: cut or empty ones are worth a word


def label(
    questions: Annotated[
        str,
        typer.Argument(
            metavar="QUESTIONS",
            help="a .jsonl, .csv or .parquet file, or hf:OWNER/NAME:CONFIG:SPLIT",
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="directory of the Parquet shards")],
    model: Annotated[
        str,
        typer.Option(
            metavar="MODEL", help="run, adapter or exported model directory, GGUF file or Hub id"
        ),
    ],
    samples: Annotated[int, typer.Option(min=1, help="responses per question")] = 1,
    temperature: Annotated[
        float | None,
        typer.Option(min=0, help="sampling temperature; default: 0 for one response, else 0.8"),
    ] = None,
    features: Annotated[
        list[str] | None,
        typer.Option(metavar="NAMES", help="hidden states to keep: mean,last"),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, help="processes with a model each; more than one need Ray")
    ] = 1,
    engine: Annotated[
        str, typer.Option(help="transformers, vllm, llama or openai")
    ] = "transformers",
    engine_options: Annotated[
        list[str] | None,
        typer.Option(
            "--engine-option",
            metavar="KEY=VALUE",
            help="for the engine: max_model_len=4096 (vllm), url=http://HOST:PORT (openai); repeat",
        ),
    ] = None,
    upstream_key: Annotated[
        str, typer.Option(envvar="GRACE_UPSTREAM_KEY", help="API key of the server (openai)")
    ] = "",
    question_field: QuestionField = "",
    answer_field: AnswerField = "",
    shard_size: Annotated[int, typer.Option(min=1, help="questions per file")] = 256,
    base: Base = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    settings: Set = None,
    as_json: Json = False,
) -> None:
    """Sample, rate and grade responses to many questions, and write Parquet. Resumes."""
    from grace.config import key_values
    from grace.engines.kinds import engine_class
    from grace.model.loading import adapter_folder, recorded_base, recorded_shots
    from grace.pipeline.labelling import SECRET, Labelling
    from grace.pipeline.labelling import label as label_all
    from grace.running import check_packages
    from grace.store import read_card
    from grace.strategies import TEMPERATURE

    check_packages("grace label")
    folder = adapter_folder(Path(model), None)
    card = read_card(folder or Path(model))
    fields = [f"data.question_field={json.dumps(question_field)}"]
    fields += [f"data.answer_field={json.dumps(answer_field)}"]
    run = _settings(Path(model), card, [*fields, *(settings or [])])
    kept = _features(listed(features), engine)
    shots, options = recorded_shots(card), key_values(engine_options or [], "--engine-option")
    if max(run.data.shots, 0) != len(shots):
        raise ConfigError(
            f"data.shots is {run.data.shots}, but {model} was trained with {len(shots)}; leave it"
        )
    if upstream_key and "relay" in engine_class(engine).gives:
        options[SECRET] = upstream_key
    how = Labelling(
        model=_absolute(base or (model if folder is None else recorded_base(folder, card))),
        adapter=str(folder.resolve()) if folder else "",
        engine=engine,
        engine_options=options,
        device=device,
        dtype=dtype,
        batch_size=run.sample.batch_size,
        data=run.data,
        shots=shots,
        stop=run.stop,
        grade=run.grade,
        samples=samples,
        temperature=(0.0 if samples == 1 else TEMPERATURE) if temperature is None else temperature,
        top_p=run.sample.top_p,
        max_new_tokens=run.sample.longest,
        seed=run.seed,
        features=kept,
        shard_size=shard_size,
    )
    done = label_all(questions, out, how, workers=workers)
    if as_json:
        print(json.dumps(done._asdict()))
        return
    print(
        f"{done.responses} responses to {done.questions} questions in {done.shards} files in {out} "
        f"({done.made} made now)"
    )
    if done.graded:
        print(f"{100 * done.right / done.graded:.1f} % of {done.graded} graded responses are right")
    for count, what, remedy in (
        (done.cut, "cut at their longest, so without a confidence", "sample.max_new_tokens"),
        (done.empty, "empty: the prompt may not fit these questions", "data.template"),
    ):
        if count > MANY * done.responses:
            print(f"{count} responses are {what}; --set {remedy}=... in a new directory")


def _settings(model: Path, card: dict[str, Any], overrides: list[str]) -> RunSettings:
    """Return how the model was trained to be asked and judged, changed by `--set`."""
    from grace import plugins
    from grace.config import override_settings, to_dict
    from grace.pipeline import code_in, load_run_settings
    from grace.store import is_run

    plugins.trust(code_in(override_settings({}, overrides)))
    tree: dict[str, Any] = {
        "data": {"task": DEFAULT_TASK, **card.get("data", {})},
        "sample": dict(card.get("sample", {})),
    }
    if is_run(model):
        tree["grade"] = to_dict(load_run_settings(model).grade)
    settings = override_settings(tree, overrides, where=f"{model}/grace.json")
    plugins.refuse_code(code_in(settings), f"{model}/grace.json")
    return settings


def _absolute(model: str) -> str:
    """Return a directory's place for workers that stand elsewhere; a Hub id as it is."""
    return str(Path(model).resolve()) if Path(model).exists() else model


def _features(names: list[str], engine: str) -> tuple[Any, ...]:
    unknown = [name for name in names if name not in ("mean", "last")]
    if unknown:
        raise ConfigError(f"features {unknown[0]!r} is unknown; use mean or last")
    from grace.engines.kinds import engine_class

    if names and "states" not in engine_class(engine).gives:
        raise ConfigError(f"engine {engine} gives no hidden states; use transformers for features")
    return tuple(dict.fromkeys(names))
