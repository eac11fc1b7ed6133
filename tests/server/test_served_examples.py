"""The examples run against a live server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from live_server import Live

from grace.cli.demo import DEMO
from grace.pipeline.study import resolve_study

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, live: Live, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        env={**os.environ, "GRACE_URL": live.url, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


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


def test_records_have_a_confidence(live: Live) -> None:
    pytest.importorskip("llguidance", reason="pip install llguidance")
    told = run("structured.py", live, "What is 7 and 49?")
    assert len(re.findall(r"Person\(.*\)  confidence 0?\.\d+", told)) == 2


def test_every_example_is_run_here() -> None:
    names = {path.name for path in EXAMPLES.glob("*.py")}
    assert names == {
        "langchain_confidence.py",
        "openai_client.py",
        "rag_abstention.py",
        "structured.py",
    }


def test_the_run_that_an_example_serves_is_one_that_the_demo_makes() -> None:
    made = resolve_study(Path("runs/none"), DEMO, ()).runs()
    for file in EXAMPLES.glob("*.py"):
        (served,) = re.findall(r"^    grace serve runs/demo/(\S+)", file.read_text(), re.MULTILINE)
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
    assert lines and all(
        line.endswith("| works | reachable | works | reachable |") for line in lines
    )
