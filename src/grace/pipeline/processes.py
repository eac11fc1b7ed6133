"""Stage `train` in every process that `torchrun` or `accelerate launch` starts."""

from __future__ import annotations

import os
from pathlib import Path

from grace.errors import RunError
from grace.pipeline import STAGES, load_run_settings
from grace.pipeline.context import Context
from grace.pipeline.stages.train import train_run_adapter
from grace.store import RunDir, disk_watched

STAGE = "train"


def train_together(path: Path) -> None:
    """Train the adapter of a run in all processes at once; the first one writes. Resumes.

    The stages before it are done already, in one process (`grace run RUN --until fit`), and
    those after it follow in one process. On several machines they share the run's directory.

    Raises:
        RunError: there is no run, an earlier stage is missing, or another process is at work.
        TrainingError, ConfigError: as `grace.training.trainer.train_adapter`.
    """
    directory, settings = RunDir(path), load_run_settings(path)
    for stage in STAGES:
        if stage == STAGE:
            break
        if directory.manifest(stage) is None:
            raise RunError(
                f"stage {stage} of {path} comes before training and is not done; do it first, in "
                f"one process: grace run {path} --until fit"
            )
    context = Context(directory, settings)
    if directory.manifest(STAGE) is not None:
        return
    try:
        if os.environ.get("RANK", "0") != "0":
            train_run_adapter(context)
            return
        with directory.lock(), disk_watched(path):
            STAGES[STAGE].work(context)
    finally:
        _leave()


def _leave() -> None:
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
