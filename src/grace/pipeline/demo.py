"""`grace demo`: the whole pipeline on the embedded pocket, one run per task, one report."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from grace.pipeline.study import resolve_study, run_study

DEMO = Path(__file__).parents[1] / "pocket" / "demo.toml"
QUICK = ("data.train=200", "data.validation=100", "data.test=100")


def run_demo(path: Path, *, quick: bool = False) -> dict[str, Any]:
    """Run every pocket task of the demo, as many at a time as there are cores.

    Their common report is written into `path`.
    """
    study = resolve_study(path, DEMO, QUICK if quick else ())
    return run_study(path, study, jobs=os.cpu_count() or 1)
