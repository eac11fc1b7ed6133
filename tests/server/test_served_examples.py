"""The examples run against a live server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from live_server import Live

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


def test_the_openai_client_asks_votes_and_streams(live: Live) -> None:
    told = run("openai_client.py", live, "What is 7 and 49?")
    reply = live.model.ask("What is 7 and 49?")
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


def test_every_example_is_run_here() -> None:
    names = {path.name for path in EXAMPLES.glob("*.py")}
    assert names == {"openai_client.py", "rag_abstention.py"}
