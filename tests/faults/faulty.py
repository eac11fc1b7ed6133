"""Running tests with a fault, in a process that has not seen the package yet.

The process is a fork of a server that has imported the heavy libraries, which takes longer than
most of these tests. Nothing here may import `grace` before that.
"""

from __future__ import annotations

import importlib
import inspect
import multiprocessing
import os
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

HEAVY = ("torch", "transformers", "transformers.trainer", "peft", "scipy.optimize", "sklearn")
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([*HEAVY, "transformers.models.llama.modeling_llama"])


class Failed:
    """A pytest plugin that collects the ids of the tests that fail."""

    def __init__(self) -> None:
        self.ids: set[str] = set()

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and report.when == "call":
            self.ids.add(report.nodeid)


def failures(root: Path, said: Path, tests: list[str], fault: str = "") -> set[str]:
    """Return which tests of the checkout `root` fail with a fault; `said` gets their output."""
    reader, writer = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=_run, args=(writer, root, said, tests, fault))
    process.start()
    writer.close()
    code, failed = reader.recv()
    process.join()
    assert code in (0, 1), said.read_text("utf-8")  # else the tests were not found, or are broken
    return set(failed)


def original(at: str) -> tuple[Any, str, Any]:
    """Return the object that holds what a fault replaces, its name there, and itself."""
    module, _, path = at.partition(":")
    *owners, name = path.split(".")
    owner: Any = importlib.import_module(module)
    for one in owners:
        owner = getattr(owner, one)
    return owner, name, inspect.getattr_static(owner, name)


def put(fault: Any) -> None:
    """Put a fault in its place, also where the original was imported by name, or is in a table."""
    owner, name, right = original(fault.at)
    wrong = fault.wrong(right)
    setattr(owner, name, wrong)
    for module in [m for key, m in sys.modules.items() if key.partition(".")[0] == "grace"]:
        for key, value in list(vars(module).items()):
            if value is right:
                setattr(module, key, wrong)
            elif isinstance(value, dict) and key.isupper():
                value.update({name: wrong for name, one in value.items() if one is right})


def _run(writer: Connection, root: Path, said: Path, tests: list[str], fault: str) -> None:
    import pytest

    assert "grace" not in sys.modules
    for number in (1, 2):
        os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.chdir(root)
    if fault:
        from faults import FAULTS

        put(next(one for one in FAULTS if one.name == fault))
    failed = Failed()
    quiet = ["-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    code = pytest.main([*quiet, *tests], plugins=[failed])
    writer.send((int(code), failed.ids))
