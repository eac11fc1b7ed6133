"""Several processes: runs or workers side by side, and stage `fit` under `torchrun`.

`accelerate launch` works as `torchrun` does.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TypeVar

from grace.errors import RunError
from grace.pipeline import ORDER, STAGES
from grace.pipeline.context import open_run
from grace.pipeline.stages.paper import make_run_targets, train_on
from grace.store import disk_watched

Chain = TypeVar("Chain")
STAGE = "fit"


def side_by_side(
    work: Callable[[Chain], None],
    chains: Sequence[Chain],
    names: Sequence[str],
    jobs: int,
    *,
    as_one: bool = False,
) -> None:
    """Do the work on every chain, `jobs` at a time; after a failure no further chain is started.

    `as_one`: the chains are parts of one work, so a failure also ends those that are under way.
    """
    jobs = min(jobs, len(chains))
    if jobs == 1:
        for chain in chains:
            work(chain)
        return
    context, others = multiprocessing.get_context("spawn"), multiprocessing.active_children()
    with (
        _threads(max(1, cores() // jobs)),
        ProcessPoolExecutor(jobs, context, _end_with_parent) as pool,
    ):
        futures = [
            pool.submit(_named, work, chain, name)
            for chain, name in zip(chains, names, strict=True)
        ]
        try:
            done, left = wait(futures, return_when=FIRST_EXCEPTION)
            if as_one:
                _raise_first(done)
        except BaseException:  # asked to stop, or of no use: what is under way resumes, too
            for child in multiprocessing.active_children():
                if child not in others:
                    child.terminate()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        for future in left:
            future.cancel()
        _raise_first(done)


def _raise_first(done: Iterable[Future[None]]) -> None:
    try:
        for future in done:
            future.result()
    except BrokenProcessPool:
        raise RunError(
            "a process was killed, as the system does where memory runs out; repeat the command "
            "with fewer processes at a time: it resumes"
        ) from None


def cores() -> int:
    """Return the number of cores that this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(allowed(0)) if allowed else os.cpu_count() or 1


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    """Give processes that start meanwhile so many threads each."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = str(count)
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


def _end_with_parent() -> None:
    """End this process when the one that started it ends, even if that one is killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _named(work: Callable[[Chain], None], chain: Chain, name: str) -> None:
    with contextlib.redirect_stderr(_Prefixed(name)):
        work(chain)


class _Prefixed(io.TextIOBase):
    """Standard error with a name before every line; being no terminal, it gets no progress bar."""

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
    """Train the adapter of a run in all processes at once; the first one writes. Resumes."""
    context = open_run(path)
    directory = context.directory
    if context.settings.method != "paper":
        raise RunError(
            f"{path} has method=grace, whose fit takes seconds and one process; go on: "
            f"grace run {path}"
        )
    for stage in ORDER[: ORDER.index(STAGE)]:
        if not directory.done(stage):
            raise RunError(
                f"stage {stage} of {path} comes before training and is not done; do it first, in "
                f"one process: grace run {path} --until features"
            )
    if directory.done(STAGE):
        return
    try:
        if os.environ.get("RANK", "0") != "0":
            train_on(context, make_run_targets(context)[1].targets.tolist())
            return
        with directory.lock(), disk_watched(path):
            STAGES[STAGE].work(context)
    finally:
        from torch import distributed

        if distributed.is_available() and distributed.is_initialized():
            distributed.destroy_process_group()
