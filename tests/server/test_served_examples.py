"""The examples run against a live server."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from live_server import NAME, Live, running

from grace.cli.demo import DEMO
from grace.pipeline.study import resolve_study
from grace.server import FallbackSettings

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, live: Live, *arguments: str, **environment: str) -> str:
    """Run an example as a program of this process, and return what it printed."""
    with (
        pytest.MonkeyPatch.context() as patch,
        warnings.catch_warnings(action="ignore"),
        contextlib.redirect_stdout(io.StringIO()) as told,
    ):
        patch.setattr(sys, "argv", [name, *arguments])
        for key, value in {"GRACE_URL": live.url, **environment}.items():
            patch.setenv(key, value)
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return told.getvalue()


def test_the_openai_client_asks_votes_and_streams(served: Live) -> None:
    told = run("openai_client.py", served, "What is 7 and 49?")
    reply = served.model.ask("What is 7 and 49?")
    assert repr(reply.text) in told
    assert "the same from logprobs: <CNF>" in told or reply.confidence is None
    assert "stream:" in told


def test_retrieval_abstains_below_its_threshold(live: Live) -> None:
    def unknown(threshold: str) -> int:
        told = run("rag_abstention.py", live, GRACE_THRESHOLD=threshold)
        assert told.count("?  ") == 3
        return told.count("I don't know")

    assert unknown("1.1") == 3
    assert unknown("0") < 3


def test_langchain_keeps_the_confidence(live: Live) -> None:
    pytest.importorskip("langchain_openai", reason="pip install langchain-openai")
    told = run("langchain_confidence.py", live, "What is 7 and 49?")
    assert "confidence " in told


@pytest.mark.parametrize(
    ("name", "package", "records"),
    [
        ("structured.py", "openai", 2),
        ("instructor_records.py", "instructor", 1),
        ("langchain_records.py", "langchain_openai", 1),
        ("pydantic_ai_records.py", "pydantic_ai", 1),
    ],
)
def test_records_have_a_confidence(live: Live, name: str, package: str, records: int) -> None:
    for needed in ("llguidance", package):
        pytest.importorskip(needed, reason=f"{needed} is not installed: see examples/{name}")
    told = run(name, live, "Who wrote Middlemarch?")  # of others the random model finds no end
    assert len(re.findall(r"Person\(.*\)  confidence \d[\d.e-]*", told)) == records


def test_records_of_the_ai_sdk_have_a_confidence(live: Live) -> None:
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    if shutil.which("node") is None or not (EXAMPLES / "node_modules" / "ai").is_dir():
        pytest.skip("node or its packages are not here: see examples/vercel_ai.mjs")
    done = subprocess.run(
        ["node", EXAMPLES / "vercel_ai.mjs", "What is 7 and 49?"],
        env={**os.environ, "GRACE_URL": live.url},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r'{"name":.*,"kind":"\w+"}  confidence 0?\.\d+', done.stdout)


def test_a_cascade_says_who_has_answered(live: Live, finished: Path) -> None:
    big = FallbackSettings(url=live.url, model=NAME, below=1.0)
    with running(live.model, finished / "run", fallback=big) as small:
        told = run("cascade.py", small, "What is 7 and 49?")
    reply = live.model.ask("What is 7 and 49?")
    assert told.startswith(f"{NAME}: {reply.text!r}  confidence None")
    assert f"the small model: {reply.text!r}  confidence " in told


def test_inspect_rates_the_confidence(finished: Path, tmp_path: Path) -> None:
    command = Path(sys.executable).with_name("inspect")
    if not command.exists():
        pytest.skip("Inspect AI is not installed: pip install inspect-ai")
    model = ("--model", f"grace/{finished / 'run'}", "-M", "ask=true")
    log = ("--log-dir", str(tmp_path), "--log-format", "json", "--display", "none")
    done = subprocess.run(
        [command, "eval", "examples/inspect_task.py", *model, *log],
        cwd=EXAMPLES.parent,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = tmp_path.glob("*.json")
    found = json.loads(file.read_text())
    assert found["status"] == "success", found.get("error")
    (brier,) = (one for one in found["results"]["scores"] if one["name"] == "brier")
    assert 0 <= brier["metrics"]["mean"]["value"] <= 1


def test_every_example_is_run_here() -> None:
    tests = Path(__file__).read_text()
    files = [*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*.mjs")]
    assert len(files) > 9 and all(f'{file.name}"' in tests for file in files)


def test_the_run_that_an_example_serves_is_one_that_the_demo_makes() -> None:
    made = resolve_study(Path("runs/none"), DEMO, ()).runs()
    for file in EXAMPLES.glob("*.*"):
        for served in re.findall(r"runs/demo/([\w/]+)", file.read_text()):
            assert Path(served) in made, file.name


@pytest.mark.slow
def test_the_clients_that_are_installed_chat_and_get_records_with_a_confidence(live: Live) -> None:
    pytest.importorskip("llguidance", reason="pip install llguidance")
    script = EXAMPLES.parent / "bench" / "clients.py"
    done = subprocess.run(
        [sys.executable, str(script), live.url], capture_output=True, text=True, timeout=600
    )
    print(done.stdout)  # with the versions, and what is not installed
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines()[2:] if line.startswith("|")]
    # of a random model every way to ask for a record, with a schema of its own, has its own record
    assert lines and all(re.search(r"\| works \| (works|fails: Person\()", one) for one in lines)
