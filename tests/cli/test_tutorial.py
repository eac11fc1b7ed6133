"""The commands of tutorial and README run in their order, with a tiny model in place of theirs."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tiny_run

ROOT = Path(__file__).parents[2]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny model, in a directory that also has the reader's questions and is the current one."""
    monkeypatch.chdir(tmp_path)
    tiny_run.write_questions(Path("questions.jsonl"))
    return tiny_run.write_model(tmp_path / "model")


def shown(page: str) -> list[list[str]]:
    lines = re.findall(r"^grace .+$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    return [shlex.split(line, comments=True)[1:] for line in lines]


def served(arguments: list[str]) -> None:
    """Start a server, ask it whether it is ready, and stop it."""
    command = [sys.executable, "-c", "from grace.cli import main; main()", *arguments]
    with subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            said = server.stdout.readline() + server.stdout.readline()
            (url,) = set(re.findall(r"http://127\.0\.0\.1:\d+", said))
            with urllib.request.urlopen(f"{url}/ready", timeout=60) as answer:
                assert answer.status == 200
            server.send_signal(signal.SIGTERM)
            assert server.wait(60) == 0
        finally:
            server.kill()


def test_the_tutorial_takes_four_commands_and_the_first_three_run_as_written(
    cli: Callable[..., Any], model: Path
) -> None:
    run, ask, threshold, serve = shown("docs/tutorial.md")

    ran = cli(*run[:3], model, *run[4:], *tiny_run.settings())
    assert run[2] == "--model" and ran.code == 0, ran.err
    assert Path("runs/mine/report.html").exists()

    asked = cli(*ask)
    assert asked.code == 0, asked.err

    chosen = cli(*threshold)
    assert chosen.code == 1, chosen.err  # ten questions graded by a coin promise nothing
    assert serve == ["serve", "runs/mine"]  # below: it does not end by itself


@pytest.mark.slow
def test_the_readmes_commands_run_in_their_order(cli: Callable[..., Any], model: Path) -> None:
    rows = [
        {"question": f"What is {n}?", "response": f"{n}", "correct": n % 3 > 0, "confidence": 0.5}
        for n in range(40)
    ]
    for name in ("responses", "answers", "verbal"):
        tiny_run.write_lines(Path(f"{name}.jsonl"), rows)
    tiny_run.write_questions(Path("others.jsonl"))
    done = []
    for name, *words in shown("README.md"):
        given = [str(model) if word.startswith("Qwen/") else word for word in words]
        if name == "run":
            source = ["--model", str(model), "--file", "questions.jsonl", *tiny_run.settings()]
            given = [given[0], *source]
        if name == "fit":
            given += ["--trace", "--set", "data.prompt=short"]
        if name == "cascade":
            shutil.copytree("runs/mine", "runs/larger")
        if name == "serve":
            served([name, *given])
        elif name != "proxy":  # in front of a server: tests/server/test_command.py
            result = cli(name, *given)
            # ten questions graded by a coin promise no accuracy
            assert result.code == (name == "threshold"), (name, given, result.err)
        done.append(name)
    assert {"run", "ask", "serve", "fit", "score", "measure", "export", "label"} <= set(done)
    assert {"recalibrate", "scale", "threshold", "cascade", "grade"} <= set(done)


def test_multiple_choice_questions_of_ones_own_are_asked_with_their_choices_from_then_on(
    cli: Callable[..., Any], model: Path
) -> None:
    rows = [
        {"question": f"Which is {n}?", "choices": [f"{n}", f"{n + 1}"], "answer": "A"}
        for n in range(60)
    ]
    tiny_run.write_lines(Path("choices.jsonl"), rows)
    source = ("--model", model, "--file", "choices.jsonl", "--set", "data.system=Choose.")
    ran = cli("run", "runs/mine", *source, *tiny_run.settings())
    assert ran.code == 0, ran.err
    assert ran.out.endswith('"your question" --choice "..." --choice "..."\n')

    bare = cli("ask", "runs/mine", "Which is 3?")
    assert bare.code == 2 and "give the choices: --choice TEXT" in bare.err
    assert cli("ask", "runs/mine", "Which is 3?", "--choice", "3", "--choice", "4").code == 0

    exported = cli("export", "runs/mine", "exported")
    assert exported.code == 0, exported.err
    assert "{options}" in Path("exported/README.md").read_text(encoding="utf-8")
