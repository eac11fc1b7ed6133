"""Processes of their own that can be killed at any moment, without a start of Python for each.

They are forks of one server that has imported the heavy libraries, in a process of its own, so that
it has no threads, no open servers and another hash seed than the tests.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

CONTEXT = multiprocessing.get_context("forkserver")


def start_server() -> None:
    """Start the process that is forked, with the heavy libraries imported."""
    from multiprocessing.forkserver import ensure_running

    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    CONTEXT.set_forkserver_preload(["forks", "heavy_imports"])
    ensure_running()
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


class Ended(NamedTuple):
    """How a process ended: its exit code, what it said, and the stage that it had reached."""

    code: int | None
    said: str
    stage: str


def start(work: Callable[..., Any], *arguments: Any) -> tuple[Any, Any]:
    """Start a function in a process of its own; return the process and its standard error."""
    start_server()
    reader, writer = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=_child, args=((writer,), work, arguments))
    process.start()
    writer.close()
    return process, os.fdopen(os.dup(reader.fileno()), "rb", buffering=0)


def finish(work: Callable[..., Any], *arguments: Any) -> Ended:
    """Run a function in a process of its own, to its end."""
    process, stderr = start(work, *arguments)
    return _ended(process, stderr, b"")


def kill_in(stage: str, delay: float, work: Callable[..., Any], *arguments: Any) -> Ended:
    """Run a function in a process of its own and kill -9 it `delay` seconds into a stage.

    A faster stage is killed where the next one begins.
    """
    process, stderr = start(work, *arguments)
    said, announced = b"", f"stage {stage}\n".encode()
    end = None
    while end is None or wait([stderr], max(0.0, end - time.monotonic())):
        more = stderr.read(4096)
        if not more or (end is not None and b"stage " in more):
            break
        said += more
        if end is None and announced in said:
            end = time.monotonic() + delay
    process.kill()
    return _ended(process, stderr, said + more)


class Command:
    """A command of `grace` in a process of its own, used as a `subprocess.Popen` is."""

    def __init__(self, *words: str) -> None:
        start_server()
        (out, told_out), (err, told_err) = (CONTEXT.Pipe(duplex=False) for _ in range(2))
        arguments = ((told_err, told_out), _command, words)
        self._process: Any = CONTEXT.Process(target=_child, args=arguments)
        self._process.start()
        told_out.close()
        told_err.close()
        self.stdout, self.stderr = (os.fdopen(os.dup(one.fileno())) for one in (out, err))

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.wait()
        self.stdout.close()
        self.stderr.close()

    def send_signal(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def wait(self, timeout: float | None = None) -> int | None:
        """Return the exit code, None if it is not there in time."""
        self._process.join(timeout)
        code: int | None = self._process.exitcode
        return code


def _ended(process: Any, stderr: Any, said: bytes) -> Ended:
    with stderr:
        said += b"".join(iter(lambda: stderr.read(4096), b""))
    process.join()
    text = said.decode(errors="replace")
    stages = [line.removeprefix("stage ") for line in text.splitlines() if line[:6] == "stage "]
    return Ended(process.exitcode, text, stages[-1] if stages else "start")


def _child(writers: tuple[Any, ...], work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    for writer, place in zip(writers, (2, 1), strict=False):
        os.dup2(writer.fileno(), place)
        writer.close()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    import torch

    torch.set_num_threads(1)
    work(*arguments)


def _command(*words: str) -> None:
    from grace.cli import main

    main(words)
