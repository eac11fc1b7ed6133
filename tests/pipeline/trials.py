"""A run that takes seconds, in processes of their own that can be killed at any moment.

The model is random; the grader tosses a coin for each response. The clock stands still: with it,
every byte of a run is determined.
"""

from __future__ import annotations

import datetime
import itertools
import json
import os
import shutil
import signal
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from forks import Ended, finish, kill_in, start

__all__ = ["Ended", "finish", "kill_in", "start"]

STAGES = (
    "sample",
    "grade",
    "features",
    "fit",
    "answer",
    "score",
    "report",
)
QUESTIONS = 52
# What differs between two runs: the log of times (of repeated units), the lock, what resumes.
FREE = ("stages/*.timing.jsonl", ".lock", "checkpoints/*")
CHANGES = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")
WRITES = os.O_WRONLY | os.O_RDWR


def freeze_clock() -> None:
    """Let no time pass while a run works, nor between the starts of runs."""
    from grace import pipeline
    from grace.pipeline.stages import answers, cost, paper, score

    still = SimpleNamespace(perf_counter=lambda: 0.0)
    for module in (answers, cost, paper, score):
        module.time = still  # type: ignore[attr-defined]
    noon = datetime.datetime(2025, 1, 1, 12, tzinfo=datetime.UTC)
    now = SimpleNamespace(now=lambda zone: noon)
    pipeline.datetime = SimpleNamespace(datetime=now, UTC=datetime.UTC)  # type: ignore[assignment]
    pipeline._git_commit = lambda: None  # somebody may commit between two runs


def coin(text: str, question: Any) -> bool:
    """Grade by a hash, so that about half of the answers are right."""
    return zlib.crc32(f"{question.id}{text}".encode()) % 2 == 0


def make_inputs(folder: Path) -> None:
    """Write a tiny random model with its tokenizer, and a file of questions."""
    import tiny_models

    tiny_models.model("llama_untied").save_pretrained(folder / "model")
    tiny_models.tokenizer().save_pretrained(folder / "model")
    rows = [
        {"id": f"q{n}", "question": f"What is {n * 37 % 91} plus {n}?", "answers": [str(n)]}
        for n in range(QUESTIONS)
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "questions.jsonl").write_text(lines, encoding="utf-8")


def settings(inputs: Path, *changes: str) -> Any:
    """Return the settings of a tiny run."""
    from grace.config import override_settings

    fixed = {
        "model.path": str(inputs / "model"),
        "model.device": "cpu",
        "data.task": "jsonl",
        "data.file": str(inputs / "questions.jsonl"),
        "data.train": 28,
        "data.validation": 12,
        "data.test": 12,
        "data.prompt": "short",
        "sample.batch_size": 8,
        "sample.max_new_tokens": 12,
        "grade.grader": "trials:coin",
        "method": "paper",
        "paper.folds": 3,
        "paper.balance": "none",
        "paper.epochs": 2,
        "paper.batch_size": 8,
        "paper.rank": 2,
        "paper.learning_rate": 0.01,
        "report.bootstrap": 10,
        "report.estimators": ["grace", "platt"],
    }
    return override_settings({}, [*(f"{k}={json.dumps(v)}" for k, v in fixed.items()), *changes])


def tree(run: Path, free: tuple[str, ...] = FREE) -> dict[str, bytes]:
    """Return every file of a run that another run with the same settings must repeat."""
    files = (path.relative_to(run) for path in run.rglob("*") if path.is_file())
    kept = (name for name in files if not any(_matches(name, pattern) for pattern in free))
    return {str(name): (run / name).read_bytes() for name in sorted(kept)}


def _matches(name: Path, pattern: str) -> bool:
    first, _, rest = pattern.partition("/")
    return name.parts[0] == first if rest == "*" else name.match(pattern)


def run(path: Path, chosen: Any, redo: str | None = None, seeds: int = 1) -> None:
    """Do a run with a clock that stands still."""
    from grace.config import to_dict
    from grace.pipeline.study import Study, StudySettings, run_study

    freeze_clock()
    try:
        study = chosen
        if not isinstance(chosen, Study):
            study = Study(to_dict(chosen), StudySettings(seeds=seeds))
        run_study(path, study, redo=redo)
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(2)


def run_until_event(number: int, path: Path, *arguments: Any) -> None:
    """Do a run and kill it -9 just before it changes its `number`-th file or folder."""
    left = number

    def hook(event: str, details: tuple[Any, ...]) -> None:
        nonlocal left
        if event not in CHANGES or (event == "open" and not details[2] & WRITES):
            return
        if str(details[0]).startswith(str(path)):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    run(path, *arguments)


def durations(path: Path, chosen: Any) -> dict[str, float]:
    """Do a run and return the seconds between its stages."""
    process, stderr = start(run, path, chosen)
    at = []
    with stderr:
        for line in stderr:
            if line.startswith(b"stage "):
                at.append(time.perf_counter())
    process.join()
    at.append(time.perf_counter())
    assert process.exitcode == 0
    return dict(zip(STAGES, (b - a for a, b in itertools.pairwise(at)), strict=True))


def copy_before(stage: str, source: Path, target: Path) -> None:
    """Copy a finished run as it was before a stage began."""
    from grace.pipeline import STAGES as DECLARED
    from grace.store import RunDir

    shutil.copytree(source, target)
    for later in STAGES[STAGES.index(stage) :]:
        RunDir(target).forget(later, DECLARED[later].writes)


def lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file."""
    yield from path.read_bytes().splitlines(keepends=True)
