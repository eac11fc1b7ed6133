"""Several processes: runs of a study side by side, and stage `train` under `torchrun`.

`accelerate launch` starts the processes of a training as `torchrun` does.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from pathlib import Path
from typing import TypeVar

from grace.errors import RunError
from grace.pipeline import STAGES, load_run_settings
from grace.pipeline.context import Context
from grace.pipeline.stages.train import train_run_adapter
from grace.store import RunDir, disk_watched

Chain = TypeVar("Chain")
STAGE = "train"


def side_by_side(
    work: Callable[[Chain], None], chains: Sequence[Chain], names: Sequence[str], jobs: int
) -> None:
    """Do the work on every chain, `jobs` at a time; the first failure stops what has not begun.

    Each process gets an equal share of the processor's cores and says its chain's name before
    every line of progress.
    """
    if jobs == 1 or len(chains) == 1:
        for chain in chains:
            work(chain)
        return
    threads = max(1, (os.cpu_count() or 1) // jobs)
    os.environ["OMP_NUM_THREADS"] = str(threads)  # for the processes to come
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(chains)), context, _end_with_parent) as pool:
        futures = [
            pool.submit(_named, work, chain, name)
            for chain, name in zip(chains, names, strict=True)
        ]
        try:
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        for future in futures:
            if future not in done:
                future.cancel()
        for future in done:
            future.result()


def _end_with_parent() -> None:
    """End this process when the one that started it is gone, perhaps killed; stages resume."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _named(work: Callable[[Chain], None], chain: Chain, name: str) -> None:
    stderr = sys.stderr
    sys.stderr = _Prefixed(name)
    try:
        work(chain)
    finally:
        sys.stderr = stderr


class _Prefixed(io.TextIOBase):
    """Standard error with a name before every line; it never shows a progress bar."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._line = ""

    def write(self, text: str) -> int:
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            sys.__stderr__.write(f"{self._name}: {line}\n")  # type: ignore[union-attr]
        return len(text)

    def flush(self) -> None:
        sys.__stderr__.flush()  # type: ignore[union-attr]


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
