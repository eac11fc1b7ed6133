"""`grace demo`: the whole pipeline on the embedded pocket, one run per task, one report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grace.config import RunSettings, load_settings
from grace.pipeline import run
from grace.pipeline.reporting import read_reports
from grace.tasks import load_task

QUICK = ("data.train=200", "data.validation=100", "data.test=100")
STEPS = (
    "data.train=500",
    "data.validation=200",
    "data.test=300",
    "train.learning_rate=1e-4",
    "train.gamma=1.0",
)
DEMO = Path(__file__).parents[1] / "pocket" / "demo.toml"


def run_demo(path: Path, *, quick: bool = False) -> dict[str, Any]:
    """Run every pocket task of the demo and write their common report into `path`."""
    from grace.pocket import TASKS

    folders = []
    for task in TASKS:
        folders.append(path / task)
        run(folders[-1], demo_settings(task, quick=quick))
    return read_reports(folders, path)


def demo_settings(task: str, *, quick: bool = False) -> RunSettings:
    """Return the settings of the demo for one pocket task.

    Step-by-step answers are ten times as long as closed-book ones, so there are fewer of them;
    they are also easily lost in training, so it goes gently.
    """
    steps = STEPS if load_task(task).kind == "choice" else ()
    return load_settings(DEMO, [f"data.task={task}", *steps, *(QUICK if quick else ())])
