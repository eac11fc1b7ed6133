"""Questions to label, the command that labels them, and what it wrote."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

import tiny_run
from grace.config import DataSettings, GradeSettings
from grace.pipeline.labelling import Labelling

QUESTIONS = [
    {"id": f"q{n}", "question": f"What is {n} and {n * 7}?", "answers": [str(n)], "source": "me"}
    for n in range(24)
]


def write_questions(path: Path, rows: list[dict[str, Any]] | None = None) -> Path:
    """Write questions in several row groups."""
    table = pyarrow.Table.from_pylist(QUESTIONS if rows is None else rows)
    parquet.write_table(table, path, row_group_size=7)
    return path


def settings(run: Path, **changes: Any) -> Labelling:
    """Return settings that label with the model of a tiny run."""
    given: dict[str, Any] = {
        "model": str(run.parent / "model"),
        "adapter": str(run / "adapter"),
        "data": DataSettings(task="jsonl", prompt="short"),
        "grade": GradeSettings(grader="tiny_run:coin"),
        "samples": 3,
        "temperature": 0.8,
        "max_new_tokens": 12,
        "shard_size": 5,
    }
    return Labelling(**(given | changes))


def rows(out: Path) -> list[dict[str, Any]]:
    """Return all rows of the shards, in order."""
    found: list[dict[str, Any]] = parquet.read_table(out).to_pylist()
    return found


def arguments(questions: Path, out: Path, run: Path, *options: str) -> list[str]:
    """Return those of `grace` that label as `settings` do, in shards of one question each."""
    fixed = ("--samples", "3", "--shard-size", "1", "--features", "mean")
    return ["label", str(questions), str(out), "--model", str(run), *fixed, *options]


def command(questions: Path, out: Path, run: Path, *options: str) -> list[str]:
    """Return the command line of `arguments`."""
    code = "from grace.cli import main; main()"
    return [sys.executable, "-c", code, *arguments(questions, out, run, *options)]


def start(arguments: list[str]) -> subprocess.Popen[bytes]:
    """Start a command with a Ray cluster of its own and with the tests' graders at hand."""
    here = str(Path(tiny_run.__file__).parent)
    environment = os.environ | {"PYTHONPATH": here, "RAY_ADDRESS": "local", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(arguments, env=environment, stderr=subprocess.PIPE)


def descendants(pid: int) -> Iterator[int]:
    """Yield the processes below one that are still there."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(entry.parent.name))
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        yield from below
        waiting += below
