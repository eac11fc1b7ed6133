"""Questions to label, the command that labels them, and what it wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from grace.config import assignment, override_settings
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


GIVEN = {
    "data.prompt": "short",
    "data.task": "jsonl",
    "grade.grader": "tiny_run:coin",
    "sample.test_samples": 3,
    "sample.test_temperature": 0.8,
    "sample.max_new_tokens": 12,
}


def settings(run: Path, changes: dict[str, Any] | None = None, **own: Any) -> Labelling:
    """Return settings that label with the model of a tiny run."""
    named = {"model.path": str(run.parent / "model"), **GIVEN, **(changes or {})}
    resolved = override_settings({}, [assignment(*pair) for pair in named.items()])
    return Labelling(resolved, **{"adapter": str(run / "adapter"), "shard_size": 5, **own})


def rows(out: Path) -> list[dict[str, Any]]:
    """Return all rows of the shards, in order."""
    found: list[dict[str, Any]] = parquet.read_table(out).to_pylist()
    return found


def arguments(questions: Path, out: Path, run: Path, *options: str) -> list[str]:
    """Return those of `grace` that label as `settings` do, in shards of one question each."""
    fixed = ("--samples", "3", "--shard-size", "1", "--features", "mean")
    return ["label", str(questions), str(out), "--model", str(run), *fixed, *options]
