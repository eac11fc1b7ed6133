"""Finding a task by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grace.config import DataSettings
from grace.errors import ConfigError
from grace.tasks import load_task, title_of


def test_without_a_name_all_are_named() -> None:
    with pytest.raises(ConfigError, match=r"no task is named; set data\.task to one of: arc"):
        load_task("")


def test_a_task_of_ones_own_is_loaded_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_task_module.py").write_text(
        "from dataclasses import replace\n"
        "from grace.tasks.sciq import TASK\n"
        "RIDDLES = replace(TASK, name='riddles')\n"
        "KIND = type(TASK)\n"
        "NOTHING = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    assert load_task("own_task_module:RIDDLES").name == "riddles"
    with pytest.raises(ConfigError, match="it is a class; name an instance of it"):
        load_task("own_task_module:KIND")
    with pytest.raises(ConfigError, match="it has no name, kind, grader, questions"):
        load_task("own_task_module:NOTHING")


def test_a_task_of_ones_own_that_raises_is_named_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing_task_module.py").write_text(
        "class Failing:\n"
        "    name, kind, grader = 'failing', 'open', 'rouge'\n"
        "    def questions(self, split, data, seed):\n"
        "        return [1 / 0 for _ in 'ab']\n"
        "    def messages(self, question, data):\n"
        "        raise KeyError(question)\n"
        "    answer = messages\n"
        "TASK = Failing()\n"
    )
    monkeypatch.chdir(tmp_path)
    task = load_task("failing_task_module:TASK")
    for call, said in (
        (lambda: task.questions("test", DataSettings(), 0), "ZeroDivisionError: division by zero"),
        (lambda: task.messages("Q?", DataSettings()), "KeyError: 'Q\\?'"),  # type: ignore[arg-type]
        (lambda: task.answer("a", ()), "KeyError: 'a'"),
    ):
        wanted = rf"^task failing_task_module:TASK failed \({said}, at .*module.py:[46]\); correct"
        with pytest.raises(ConfigError, match=wanted):
            call()


@pytest.mark.parametrize(
    ("data", "title"),
    [
        ({"task": "sciq", "file": "own.jsonl"}, "sciq"),
        ({"task": "jsonl", "file": "/data/geography.v2.csv"}, "geography.v2"),
        ({"task": "jsonl", "file": "hf:me/history:small:train"}, "history"),
        ({"task": "jsonl", "dir": "/data/set.v1"}, "set.v1"),
        ({"task": "jsonl"}, "jsonl"),
    ],
)
def test_reports_call_ones_own_questions_by_the_name_of_their_file(data: Any, title: str) -> None:
    assert title_of(DataSettings(**data)) == title
