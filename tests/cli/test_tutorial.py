"""The commands of the tutorial run in its order, with a tiny model in place of the reader's."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tiny_run

TUTORIAL = Path(__file__).parents[2] / "docs/tutorial.md"


def test_the_tutorial_takes_four_commands_and_the_first_three_run_as_written(
    cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = tiny_run.write_model(tmp_path / "model")
    tiny_run.write_questions(tmp_path / "questions.jsonl")
    shown = re.findall(r"^grace .+$", TUTORIAL.read_text(encoding="utf-8"), re.MULTILINE)
    run, ask, threshold, serve = (shlex.split(line)[1:] for line in shown)

    ran = cli(*run[:3], model, *run[4:], *tiny_run.settings())
    assert run[2] == "--model" and ran.code == 0, ran.err
    assert (tmp_path / "runs/mine/report.html").exists()

    asked = cli(*ask)
    assert asked.code == 0, asked.err

    chosen = cli(*threshold)
    assert chosen.code == 1, chosen.err  # ten questions graded by a coin promise nothing
    assert serve == ["serve", "runs/mine"]  # tests/server runs it: it does not end by itself
