"""The light install: what it does without PyTorch and its kin, and what it says of the rest.

`LIGHT_PYTHON` names the interpreter of an environment that holds the wheel alone (`make light`).
Without it this interpreter is used, and may import none of the packages of the extra `local`.
"""

from __future__ import annotations

import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tiny_run
from fake_upstream import Server, serving
from grace.cli import main
from grace.errors import LOCAL
from grace.model import Model, load

PYTHON = os.environ.get("LIGHT_PYTHON")
QUESTION = "What is 3 and 21?"
PROMISE = ["threshold", "run", "--target-accuracy", "0.3", "--json"]
HIDE = "" if PYTHON else f"import sys; sys.modules.update(dict.fromkeys({[*LOCAL, 'pandas']}));"
COMMANDS = """
import contextlib, io, json, sys
from grace.cli import main
found = []
for arguments in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        with contextlib.redirect_stderr(io.StringIO()) as err:
            try:
                main(arguments)
            except SystemExit as stopped:
                code = stopped.code
    found.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(found))
"""


class Result(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


def start(code: str, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start Python code where the packages of `local` are not there."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if not PYTHON:
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    return subprocess.Popen(
        [PYTHON or sys.executable, "-c", HIDE + code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment,
    )


def light(code: str, folder: Path, given: str = "") -> str:
    """Return what Python code prints there."""
    with start(code, folder) as process:
        out, err = process.communicate(given, timeout=120)
    assert process.returncode == 0, err
    return out


def grace(folder: Path, *commands: list[str]) -> list[Result]:
    """Run commands there, one after the other in one process."""
    return [Result(*found) for found in json.loads(light(COMMANDS, folder, json.dumps(commands)))]


def timeless(text: str) -> str:
    """Return what a command printed without the time at which it did."""
    return re.sub(r'"created": "[^"]*"', "", text)


@pytest.fixture(scope="module")
def folder(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished `run`, whose settings name no code, and `graded.jsonl`."""
    place = tmp_path_factory.mktemp("light")
    shutil.copytree(finished / "run", place / "run")
    config = place / "run" / "config.json"
    config.write_text(config.read_text().replace("tiny_run:coin", "exact"))
    rng = random.Random(0)
    rows = [
        {"question": f"q{n}", "response": "a", "confidence": c, "correct": rng.random() < c}
        for n, c in enumerate(rng.random() for _ in range(60))
    ]
    tiny_run.write_lines(place / "graded.jsonl", rows)
    tiny_run.write_lines(place / "questions.jsonl", [{"question": QUESTION, "answers": ["3"]}])
    return place


@pytest.fixture(scope="module")
def model(finished: Path) -> Model:
    return load(finished / "run")


@pytest.fixture(scope="module")
def upstream(model: Model) -> Iterator[Server]:
    engine: Any = model.engine
    with serving(engine.model, engine.tokenizer, list(engine.reader.eos)) as s:
        yield s


def test_every_package_is_in_the_light_install_or_in_the_extra_that_messages_name() -> None:
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extra = {re.split("[>=<]", one)[0] for one in project["optional-dependencies"]["local"]}
    assert extra == {"scikit-learn" if name == "sklearn" else name for name in LOCAL}
    base = {re.split("[>=<]", one)[0].replace("-", "_") for one in project["dependencies"]}
    with_base = {"anyio", "huggingface_hub", "markupsafe", "pydantic", "starlette"}
    own_message = {"inspect_ai", "llguidance", "math_verify", "vllm"}
    found = {
        name.partition(".")[0]
        for file in (root / "src").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
        )
    }
    assert found - set(sys.stdlib_module_names) - {"grace"} <= {
        *base, *with_base, *own_message, *LOCAL
    }  # fmt: skip


def test_none_of_the_heavy_packages_is_there(folder: Path) -> None:
    code = "import grace, importlib.util; print(*(n for n in {} if importlib.util.find_spec(n)))"
    assert light(code.format(list(LOCAL)), folder).split() == []


def test_files_and_runs_are_measured_as_in_the_full_install(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commands = [
        ["measure", "graded.jsonl", "--json"],
        ["measure", "graded.jsonl"],
        ["grade", "graded.jsonl"],
        ["report", "run"],
        PROMISE,
        ["recalibrate", "run", "graded.jsonl", "adapted", "--json"],
        ["list", "recipes"],
        ["list", "settings"],
    ]
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit):
        main(PROMISE)  # the answers to calibrate on
    capsys.readouterr()
    found = grace(folder, *commands)
    assert [(one.code, one.err) for one in found if one.code not in (0, 1)] == []
    changed = json.loads((folder / "adapted" / "grace.json").read_text())
    shutil.rmtree("adapted")
    for command, result in zip(commands, found, strict=True):
        with pytest.raises(SystemExit) as stopped:
            main(command)
        shown = capsys.readouterr().out
        assert (stopped.value.code or 0, timeless(shown)) == (result.code, timeless(result.out))
    assert json.loads((folder / "adapted" / "grace.json").read_text()) == changed


def test_a_model_on_a_server_is_asked_from_python(
    folder: Path, model: Model, upstream: Server
) -> None:
    code = f"""
from grace.model.loading import connect
model = connect({upstream.url!r}, "run")
reply = model.ask({QUESTION!r})
print(repr((reply.text, reply.confidence)))
print(len(model.vote({QUESTION!r}, budget=4).votes))
model.engine.close()
"""
    said, votes = light(code, folder).splitlines()
    reply = model.ask(QUESTION)
    text, confidence = eval(said)
    assert text == reply.text and confidence == pytest.approx(reply.confidence, abs=1e-5)
    assert votes == "4"


def test_a_proxy_serves_a_model_on_a_server(folder: Path, model: Model, upstream: Server) -> None:
    code = "from grace.cli import main; main()"
    options = ["--upstream", upstream.url, "--port", "0", "--name", "tiny"]
    with start(code, folder, "proxy", "run", *options) as process:
        assert process.stdout and process.stderr
        said = "".join(process.stdout.readline() for _ in range(3))
        url = re.search(r"http://127\.0\.0\.1:\d+", said)
        assert url, process.stderr.read()
        body = {"model": "tiny", "messages": model.messages(QUESTION), "temperature": 0}
        request = urllib.request.Request(
            f"{url.group()}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            (choice,) = json.load(answer)["choices"]
        process.terminate()
        assert process.wait(60) == 0
    reply = model.ask(QUESTION)
    assert choice["message"]["content"].strip() == reply.text
    assert choice["confidence"] == pytest.approx(reply.confidence, abs=1e-5)


def test_what_needs_more_says_in_one_line_which_extra_and_writes_nothing(folder: Path) -> None:
    own = ["--model", "run", "--task", "jsonl", "--file", "questions.jsonl"]
    commands = [
        ["demo", "new"],
        ["run", "new", *own],
        ["run", "new", *own, "--dry-run"],
        ["fit", "run", "graded.jsonl", "new"],
        ["ask", "run", QUESTION],
        ["score", "run", "graded.jsonl"],
        ["serve", "run", "--port", "0"],
        ["export", "run", "new"],
        ["label", "questions.jsonl", "new", "--model", "run"],
        ["scale", "run"],
        ["measure", "graded.jsonl", "--out", "new"],
        ["measure", "not-even-read.jsonl", "--out", "new"],
        ["report", "run", "--out", "new"],
        ["measure", "graded.parquet"],
    ]
    for command, found in zip(commands, grace(folder, *commands), strict=True):
        assert found.code == 2 and found.out == "", (command, found)
        said = r"grace: error: .+ needs .+, which is not installed: pip install '(.+)'\n"
        match = re.fullmatch(said, found.err)
        assert match and match.group(1) == "grace-confidence[local]", (command, found)
    assert not (folder / "new").exists()


def test_python_says_in_one_line_which_extra_it_needs(folder: Path) -> None:
    code = """
import grace
for ask in (
    lambda: grace.load("run"),
    lambda: grace.run("new", model="pocket"),
    lambda: grace.measure("graded.jsonl", out="new"),
    lambda: grace.measure("graded.parquet"),
):
    try:
        ask()
    except grace.GraceError as error:
        print(error)
"""
    said = light(code, folder).splitlines()
    assert len(said) == 4
    assert all(line.endswith("pip install 'grace-confidence[local]'") for line in said)
    assert not (folder / "new").exists()
