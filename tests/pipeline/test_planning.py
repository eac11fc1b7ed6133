"""`grace run --dry-run`: token counts against those of a real run, and what changes them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import tiny_run
from grace.chat import encode_chat
from grace.cli import main
from grace.config import RunSettings, override_settings
from grace.errors import ModelError
from grace.pipeline import STAGES, planning, run
from grace.pipeline.context import Context
from grace.store import SPLITS, RunDir


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> RunSettings:
    folder = tmp_path_factory.mktemp("planned")
    model = tiny_run.write_model(folder / "model")
    file = tiny_run.write_questions(folder / "questions.jsonl")
    where = (f"model.path={model}", "data.task=jsonl", f"data.file={file}")
    return override_settings({}, [*where, *tiny_run.FAST])


def tokens(settings: RunSettings, stage: str) -> int:
    (steps,) = planning.plan_runs([(settings, STAGES)])
    assert [step.stage for step in steps] == list(STAGES)
    return next(step.tokens for step in steps if step.stage == stage)


def changed(settings: RunSettings, **changes: Any) -> RunSettings:
    import dataclasses

    sections = {name: dict(value) for name, value in changes.items()}
    parts = {
        name: dataclasses.replace(getattr(settings, name), **values)
        for name, values in sections.items()
    }
    return dataclasses.replace(settings, **parts)


def test_tokens_are_those_of_a_run_but_for_answers_that_end_early(
    settings: RunSettings, tmp_path: Path
):
    run(tmp_path / "run", settings, until="sample")
    directory = RunDir(tmp_path / "run")
    context = Context(directory, settings)
    prompts = longest = 0
    for name in SPLITS:
        questions = directory.split(name).questions.read()
        asked = context.messages(questions)
        prompts += sum(len(encode_chat(context.engine("base").tokenizer, a)) for a in asked)
        longest += len(directory.split(name).responses.read()) * settings.sample.max_new_tokens
    assert tokens(settings, "sample") == prompts + longest
    ((first, *_),) = planning.plan_runs([(settings, STAGES)])
    assert first.answers == sum(len(directory.split(s).responses.read()) for s in SPLITS)


def test_examples_that_all_prompts_begin_with_are_not_counted_for_every_question(
    settings: RunSettings,
):
    fewer = changed(settings, data={"train": 12})
    shown = changed(settings, data={"train": 12, "shots": 3})
    assert tokens(shown, "features") <= tokens(fewer, "features")


def test_an_answer_takes_at_most_half_the_context_as_in_the_run(settings: RunSettings):
    half = changed(settings, sample={"max_new_tokens": 128})  # of 256
    left_open = {"sample": {"max_new_tokens": 0}, "model": {"thinking": True}}
    assert tokens(changed(settings, **left_open), "sample") == tokens(half, "sample")


def test_the_plan_follows_the_settings(settings: RunSettings):
    twice = changed(settings, paper={"epochs": 2 * settings.paper.epochs})
    assert tokens(twice, "fit") == 2 * tokens(settings, "fit")
    more = changed(settings, sample={"train_samples": 3})
    assert tokens(more, "features") == 3 * tokens(settings, "features")
    away = changed(settings, report={"transfer": ("sciq",)})
    assert tokens(away, "answer") == 2 * tokens(settings, "answer")


def test_a_model_that_is_not_there_is_named(settings: RunSettings, tmp_path: Path):
    with pytest.raises(ModelError, match="nowhere does not exist"):
        gone = changed(settings, model={"path": str(tmp_path / "nowhere")})
        planning.plan_runs([(gone, STAGES)])


def test_a_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    model = tiny_run.write_model(tmp_path / "model")
    file = tiny_run.write_questions(tmp_path / "questions.jsonl")
    where = ["--model", str(model), "--file", str(file), *tiny_run.settings()]
    for options in (["--dry-run"], ["--dry-run", "--json"], ["--dry-run", "--seeds", "2"]):
        with pytest.raises(SystemExit) as stopped:
            main(["run", str(tmp_path / "run"), *where, *options])
        assert not stopped.value.code
        shown = capsys.readouterr().out
        assert not (tmp_path / "run").exists()
        if "--json" in options:
            stages = json.loads(shown)["."]
            assert [step["stage"] for step in stages][:2] == ["sample", "grade"]
        else:
            assert (
                "tokens" in shown and "seed-0" in shown if "--seeds" in options else "fit" in shown
            )


def test_a_dry_run_plans_only_what_is_left(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    def planned(*options: str) -> str:
        with pytest.raises(SystemExit) as stopped:
            main(["run", str(tmp_path / "run"), "--dry-run", *options])
        shown = capsys.readouterr()
        assert not stopped.value.code, shown.err
        return shown.out

    def stages(*options: str) -> list[str]:
        return [step["stage"] for step in json.loads(planned("--json", *options))["."]]

    shutil.copytree(finished / "run", tmp_path / "run")
    for stage in ("answer", "score", "report"):
        (tmp_path / "run" / "stages" / f"{stage}.json").unlink()
    assert stages() == ["answer", "score", "report"]
    assert stages("--until", "score") == ["answer", "score"]
    assert planned("--until", "fit").startswith(f"{tmp_path}/run: stage fit is done; next: grace")
    shutil.copytree(finished / "run", tmp_path / "run", dirs_exist_ok=True)
    assert "is finished, so nothing is left to do" in planned()
    assert stages("--redo", "score") == ["score", "report"]
    assert stages("--set", 'report.estimators=["grace", "platt"]') == ["score", "report"]
    assert json.loads(planned("--json")) == {}
