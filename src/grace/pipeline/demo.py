"""`grace demo`: both halves of the mission on the embedded pocket, one run per task, one report."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any, NamedTuple

from grace.pipeline.scaling import ScaleSettings, replay_run
from grace.pipeline.study import Study, resolve_study, run_study
from grace.strategies import BUDGET

DEMO = Path(__file__).parents[1] / "pocket" / "demo.toml"
QUICK = ("data.train=200", "data.validation=100", "data.test=100")
CPU_MINUTES = {True: 7, False: 18}
"""Quick, measured on a busy machine; in full, 11 without votes, and what these add (estimated)."""


class Total(NamedTuple):
    """What a demo is going to do."""

    tasks: int
    questions: int
    answers: int
    samples: int
    minutes: float


def plan_demo(path: Path, *, quick: bool = False) -> tuple[Study, Total]:
    """Return the demo's runs and what they come to."""
    study = resolve_study(path, DEMO, QUICK if quick else ())
    main = [own for own in study.runs().values() if own.report.name == study.main]
    data = [own.data for own in main]
    cores = min(os.cpu_count() or 1, len(main))
    return study, Total(
        tasks=len(main),
        questions=sum(each.train + each.validation + each.test for each in data),
        answers=sum(each.train + 2 * (each.validation + each.test) for each in data),
        samples=sum(BUDGET * each.test for each in data),
        minutes=CPU_MINUTES[quick] / cores,
    )


def run_demo(path: Path, study: Study) -> dict[str, Any]:
    """Fit a confidence to every pocket task, replay votes, and return the common report in `path`.

    As many runs as there are cores go on at a time.
    """
    vote = functools.partial(replay_run, chosen=ScaleSettings(samples=BUDGET))
    return run_study(path, study, jobs=os.cpu_count() or 1, scored=vote)
