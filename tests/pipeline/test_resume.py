"""What may be wrong with a run directory, and what the next `grace run` makes of it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import made_up_run
import pytest
import trials

import tiny_run
from grace.config import override_settings
from grace.engines import Sampling
from grace.errors import ModelError, RunError
from grace.pipeline import ORDER, STAGES, load_run_settings, refuse_changes
from grace.pipeline import run as make
from grace.pipeline.stages.answers import sample_split
from grace.records import Question
from grace.store import RunDir
from made_up_response import said

SLOW = pytest.mark.slow
TABLES = ("responses.jsonl", "grades.jsonl", "targets.jsonl", "confidences/*.jsonl")
OUTPUTS = {
    "sample": "train/responses.jsonl",
    "grade": "test/grades.jsonl",
    "features": "train/features.safetensors",
    "fit": "adapter/adapter_model.safetensors",
    "answer": "test/tuned/responses.jsonl",
    "score": "test/tuned/confidences/grace.jsonl",
    "report": "report.html",
}


@pytest.fixture
def run(reference: Any, tmp_path: Path) -> Path:
    """A finished run of the test's own."""
    copied: Path = reference.copy(tmp_path)
    return copied


def unfinish(run: Path, stage: str) -> None:
    """Remove the manifests of a stage and of the later ones, and nothing else."""
    for later in trials.STAGES[trials.STAGES.index(stage) :]:
        (run / "stages" / f"{later}.json").unlink()


def test_torn_last_lines_of_all_tables_are_made_again(
    reference: Any, finish: Any, run: Path
) -> None:
    unfinish(run, "sample")
    tables = [p for n in TABLES for p in run.rglob(n)]
    assert len(tables) == 16
    for table, cut in zip(tables, (1, 7, 120) * 6, strict=False):
        os.truncate(table, max(0, table.stat().st_size - cut))
    ended = finish(run)
    assert ended.code == 0, ended.said
    assert reference.differences(run) == []


def test_torn_questions_are_refused_since_all_tables_hang_on_them(finish: Any, run: Path) -> None:
    unfinish(run, "sample")
    questions = run / "train" / "questions.jsonl"
    os.truncate(questions, questions.stat().st_size - 7)
    ended = finish(run)
    assert ended.code == 2
    assert "questions.jsonl:28: not a Question row" in ended.said
    assert "--redo" in ended.said


@pytest.mark.parametrize("stage", ["sample", "fit", "score"])
def test_a_stage_without_its_manifest_is_done_again_from_what_is_stored(
    stage: str, reference: Any, finish: Any, run: Path
) -> None:
    (run / "stages" / f"{stage}.json").unlink()
    timed = run / "stages" / f"{stage}.timing.jsonl"
    times = timed.read_bytes() if timed.exists() else None
    ended = finish(run)
    assert (ended.code, ended.said.split()[:2]) == (0, ["stage", stage])
    assert ended.said.count("stage ") == 1
    assert reference.differences(run) == []
    assert times is None or timed.read_bytes() == times  # nothing was sampled again


@pytest.mark.parametrize("content", ["", '{"inputs": {}}'])
def test_a_torn_manifest_is_refused_by_name_and_its_stage_can_be_done_again(
    content: str, reference: Any, finish: Any, run: Path
) -> None:
    torn = run / "stages" / "report.json"
    torn.write_text(content)
    ended = finish(run)
    assert ended.code == 2
    assert f"{torn} cannot be read" in ended.said
    assert f"do the stage again: grace run {run} --redo report" in ended.said
    ended = finish(run, redo="report")
    assert (ended.code, ended.said.count("stage ")) == (0, 1), ended.said
    assert reference.differences(run) == []


def test_a_cost_that_is_none_is_named_when_the_report_is_made(finish: Any, run: Path) -> None:
    cost = next(run.glob("test/**/*.cost.json"))
    cost.write_text("{}")
    ended = finish(run, redo="report")
    assert ended.code == 2
    assert "--redo score" in ended.said


def test_a_torn_manifest_of_an_earlier_stage_is_named_when_a_later_one_is_redone(
    finish: Any, run: Path
) -> None:
    (run / "stages" / "fit.json").write_text("{")
    ended = finish(run, redo="report")
    assert ended.code == 2
    assert f"grace run {run} --redo fit" in ended.said


@pytest.mark.parametrize(("stage", "happening"), [("sample", "edited"), ("fit", "deleted")])
def test_a_file_that_changed_after_its_stage_is_refused_by_name(
    stage: str, happening: str, reference: Any, finish: Any, tmp_path: Path
) -> None:
    run, name = reference.copy(tmp_path), OUTPUTS[stage]
    if happening == "edited":
        with (run / name).open("ab") as file:
            file.write(b"\n")
    else:
        (run / name).unlink()
    ended = finish(run)
    assert ended.code == 2
    assert f"{name} changed after stage {stage}; restore it" in ended.said
    assert f"--redo {stage}" in ended.said


@pytest.mark.parametrize(
    "stage",
    [s if s == "report" else pytest.param(s, marks=SLOW) for s in trials.STAGES],
)
def test_redo_of_any_stage_gives_the_same_run(
    stage: str, reference: Any, finish: Any, run: Path
) -> None:
    name = OUTPUTS[stage]
    (run / name).write_bytes(b"not what it was\n")
    ended = finish(run, redo=stage)
    assert ended.code == 0, ended.said
    first = trials.STAGES.index(stage)
    told = [line for line in ended.said.splitlines() if line.startswith("stage ")]
    assert told == [f"stage {one}" for one in trials.STAGES[first:]]
    assert reference.differences(run) == []


def test_a_changed_setting_is_refused_with_the_difference_and_both_ways_on(
    reference: Any, finish: Any, run: Path
) -> None:
    ended = finish(run, "paper.epochs=1", "report.bins=5")
    assert ended.code == 2
    for words in ("paper.epochs: 2 -> 1", "report.bins: 10 -> 5", "another directory"):
        assert words in ended.said
    assert "--redo fit" in ended.said
    assert reference.differences(run) == []


def test_a_file_of_questions_edited_since_is_noted_and_not_read_again(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished / "run", tmp_path / "run")
    file = Path(load_run_settings(tmp_path / "run").data.file)
    drawn = tmp_path / "run" / "train" / "questions.jsonl"
    for seconds, noted in ((1, False), (-1, True)):
        moment = file.stat().st_mtime + seconds
        os.utime(drawn, (moment, moment))
        make(tmp_path / "run", load_run_settings(tmp_path / "run"))
        assert (f"{file} is newer than the questions" in capsys.readouterr().err) is noted


def test_a_further_estimator_is_rated_beside_those_that_are_done(finish: Any, run: Path) -> None:
    kept = run / "test" / "confidences" / "platt.jsonl"
    before = kept.stat().st_mtime_ns
    ended = finish(run, 'report.estimators=["grace", "platt", "deepconf"]')
    assert ended.code == 0, ended.said
    assert [line for line in ended.said.splitlines() if line.startswith("stage")] == [
        "stage score",
        "stage report",
    ]
    rows = json.loads((run / "report.json").read_text())["rows"]
    assert {row["estimator"] for row in rows} == {"grace", "grace@base", "platt", "deepconf"}
    assert kept.stat().st_mtime_ns == before
    ended = finish(run, 'report.estimators=["grace", "platt"]')
    assert ended.code == 0, ended.said
    rows = json.loads((run / "report.json").read_text())["rows"]
    assert {row["estimator"] for row in rows} == {"grace", "grace@base", "platt"}
    ended = finish(run, 'report.estimators=["grace"]', "estimators.deepconf.window=3")
    assert ended.code == 2 and "--redo score" in ended.said
    kept.write_text("")
    ended = finish(run, 'report.estimators=["grace"]')
    assert ended.code == 2
    assert "platt.jsonl changed after stage score" in ended.said


def test_unfinished_training_goes_on_with_less_memory_and_finished_training_stays(
    reference: Any, finish: Any, tmp_path: Path
) -> None:
    run = reference.before("fit", tmp_path)
    shutil.copytree(reference.run / "checkpoints", run / "checkpoints")
    *_, before, last = sorted(
        (run / "checkpoints").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1])
    )
    shutil.rmtree(last)  # as if killed after the first epoch
    done = int(before.name.split("-")[1]) + 1
    assert finish(run, "paper.micro_batch_size=2").code == 0
    config = json.loads((run / "config.json").read_text())
    assert config["settings"]["paper"]["micro_batch_size"] == 2
    log = (run / "adapter" / "training_log.jsonl").read_text().splitlines()
    whole = (reference.run / "adapter" / "training_log.jsonl").read_text().splitlines()
    assert log[:done] == whole[:done]  # these steps were not done again
    ended = finish(run, "paper.micro_batch_size=1")
    assert ended.code == 2
    assert "paper.micro_batch_size: 2 -> 1" in ended.said


def test_new_settings_in_redo_or_of_stages_not_begun_leave_nothing_of_the_old(
    reference: Any, finish: Any, tmp_path: Path
) -> None:
    """Either way the run is a new one."""
    run, new = reference.before("fit", tmp_path / "old"), tmp_path / "new" / "run"
    shutil.copytree(reference.run / "test/tuned/confidences", run / "test/tuned/confidences")
    (run / "report.md").write_text("of other settings")
    elsewhere = trials.settings(reference.inputs, 'report.transfer=["sciq"]')
    assert refuse_changes(RunDir(run), elsewhere, None) == "answer"
    chosen = ("paper.epochs=1", "estimators.probe.layers=[0]", "report.bins=5")
    redone = reference.copy(tmp_path / "redone")
    for path, redo in ((new, None), (run, None), (redone, "fit")):
        ended = finish(path, *chosen, redo=redo)
        assert ended.code == 0, ended.said
    assert trials.tree(run) == trials.tree(redone) == trials.tree(new)


def test_the_unfinished_stage_itself_takes_no_new_settings(
    reference: Any, finish: Any, tmp_path: Path
) -> None:
    run, again = (reference.before("answer", tmp_path / name) for name in ("run", "again"))
    for one in (run, again):  # as if it had just begun
        begun = one / "test/tuned/responses.jsonl"
        begun.parent.mkdir(exist_ok=True)
        begun.touch()
    ended = finish(run, "sample.draw_temperature=0.5", "report.bins=5")
    assert ended.code == 2
    assert "(sample.draw_temperature: 0.8 -> 0.5)" in ended.said
    assert "--redo answer" in ended.said
    assert reference.differences(run) == reference.differences(again)


@pytest.mark.parametrize(
    ("redo", "changes", "said"),
    [
        ("sample", ("model.path=nobody/nothing",), "nobody/nothing"),
        ("grade", ("grade.grader=choice",), "which has no choices"),
        ("features", ("method=grace", "grace.layer=99"), "use 1 to"),
    ],
)
def test_a_redo_that_must_fail_removes_nothing(
    reference: Any, finish: Any, run: Path, redo: str, changes: tuple[str, ...], said: str
) -> None:
    ended = finish(run, *changes, redo=redo)
    assert ended.code == 2
    assert said in ended.said
    assert reference.differences(run) == []


def test_redo_of_a_later_stage_refuses_settings_of_an_earlier_one(
    reference: Any, finish: Any, run: Path
) -> None:
    ended = finish(run, "sample.max_new_tokens=8", redo="fit")
    assert ended.code == 2
    assert "sample.max_new_tokens: 12 -> 8" in ended.said
    assert "--redo sample" in ended.said
    assert reference.differences(run) == []


def test_a_stage_killed_in_a_redo_does_not_keep_checkpoints_of_other_settings(
    reference: Any, finish: Any, run: Path
) -> None:
    chosen = trials.settings(reference.inputs, "paper.epochs=1")
    ended = trials.kill_in("answer", 0, trials.run, run, chosen, "fit")
    assert (ended.code, ended.stage) == (-9, "answer")
    assert finish(run).code == 2  # the new settings hold now
    shutil.copytree(reference.run / "checkpoints", run / "checkpoints", dirs_exist_ok=True)
    assert finish(run, redo="fit").code == 0
    assert reference.differences(run) == []


def test_a_missing_config_is_refused_while_stages_are_done(finish: Any, run: Path) -> None:
    (run / "config.json").unlink()
    ended = finish(run, "paper.epochs=1")
    assert ended.code == 2
    assert "config.json is missing, but stage sample is done" in ended.said
    assert not (run / "config.json").exists()


def test_leftovers_of_a_killed_write_do_no_harm(
    reference: Any, finish: Any, tmp_path: Path
) -> None:
    run = reference.before("grade", tmp_path)
    written = [n for n in trials.tree(reference.run) if not (run / n).exists()]
    appended = ("test/tuned/responses.jsonl",)
    atomic = [n for n in written if n not in appended and not n.startswith("adapter/")]
    for name in atomic:
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / f"{name}.partial").write_bytes(b"torn")
    for folder in (".adapter.partial", ".adapter.old", "checkpoints/.partial/checkpoint-7"):
        (run / folder).mkdir(parents=True)
        (run / folder / "adapter_model.safetensors").write_bytes(b"torn")
    (run / "checkpoints" / "checkpoint-x").mkdir()
    (run / ".removed" / "checkpoints").mkdir(parents=True)
    assert finish(run).code == 0
    assert reference.differences(run) == []
    assert not (run / ".removed").exists()


def test_every_file_of_a_run_belongs_to_one_stage(reference: Any) -> None:
    owners: dict[str, list[str]] = {}
    for stage, declared in STAGES.items():
        for pattern in (f"stages/{stage}.*", *declared.writes):
            for path in reference.run.glob(pattern):
                files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
                for file in files:
                    owners.setdefault(str(file.relative_to(reference.run)), []).append(stage)
    files = {str(p.relative_to(reference.run)) for p in reference.run.rglob("*") if p.is_file()}
    assert files - set(owners) == {"config.json", ".lock"}
    assert [name for name, stages in owners.items() if len(stages) > 1] == []


@pytest.mark.parametrize(
    ("answers", "folder", "owner"),
    [
        ("base", "test", "sample"),
        ("tuned", "test/tuned", "answer"),
        ("base", "transfer/sciq", "answer"),
        ("tuned", "transfer/sciq/tuned", "answer"),
    ],
)
def test_the_time_of_samples_is_known_as_long_as_they_are_kept(
    answers: Any, folder: str, owner: str, tmp_path: Path
) -> None:
    context = made_up_run.make(tmp_path)
    engine: Any = context.engines.base
    context.engines.tuned = engine
    engine.plan = lambda prompts, *_: [list(range(len(prompts)))]
    engine.generate = lambda prompts, *_, **__: (
        (place, [said("so")]) for place in range(len(prompts))
    )
    directory = context.directory
    pool = directory.split(folder).pool(1, 0.8)
    pool.questions.write([Question("q", "jsonl", "Why?", ("so",))])
    sample_split(context, answers, pool, Sampling())
    for stage in reversed(ORDER):
        kept = ORDER.index(stage) >= ORDER.index(owner)
        assert pool.responses.path.exists() == kept
        assert (directory.seconds_per_answer(pool) is not None) == kept
        directory.forget(stage, STAGES[stage].writes)


def test_tables_do_not_depend_on_where_the_run_is(
    reference: Any, finish: Any, tmp_path: Path
) -> None:
    run = tmp_path / "elsewhere" / "other-name"
    assert finish(run).code == 0
    named = ["report.html", "report.json", "report.md", "stages/report.json"]
    assert reference.differences(run) == named  # the report says the name of the run
    ours, theirs = (json.loads((at / "report.json").read_text()) for at in (reference.run, run))
    assert [key for key in ours if ours[key] != theirs[key]] == ["name"]


def test_a_first_try_that_sampled_nothing_refuses_no_other_settings(
    finished: Path, tmp_path: Path
) -> None:
    """The question that is too long is found before any is answered."""
    rows = [{"question": f"What is {n}?", "answers": ["a"]} for n in range(40)]
    long = tiny_run.write_lines(
        tmp_path / "long.jsonl", [*rows, {"question": "very " * 400, "answers": ["a"]}]
    )
    short = tiny_run.write_lines(tmp_path / "short.jsonl", rows)

    def attempt(file: Path, **changes: int) -> None:
        counts = {"data.train": 20, "data.validation": 10, "data.test": 11} | changes
        where = [f"model.path={finished / 'model'}", "data.task=jsonl", f"data.file={file}"]
        settings = [*tiny_run.FAST, *where, *(f"{k}={v}" for k, v in counts.items())]
        make(tmp_path / "run", override_settings({}, settings), until="sample")

    with pytest.raises(ModelError, match=r"prompt .*long\.jsonl:41 has \d+ tokens"):
        attempt(long)
    assert (tmp_path / "run" / "config.json").exists()
    attempt(short, **{"data.test": 10})
    asked = (tmp_path / "run" / "train" / "questions.jsonl").read_text("utf-8")
    assert "very" not in asked
    with pytest.raises(RunError, match="was started with other settings"):
        attempt(short, **{"data.test": 9})
