"""Runs of a study side by side, each chain of them in a process of its own."""

from __future__ import annotations

import io
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from typing import TypeVar

Chain = TypeVar("Chain")


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
