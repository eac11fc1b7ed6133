"""Running tests against a copy of the package, in a process that has not seen the package yet.

The process is a fork of a server that has imported the heavy libraries, which takes longer than
most of these tests. Nothing here may import `grace`.
"""

from __future__ import annotations

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


def failures(root: Path, folder: Path, tests: list[str]) -> set[str]:
    """Return which tests of the checkout `root` fail with the package that is in `folder`."""
    reader, writer = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=_run, args=(writer, root, folder, tests))
    process.start()
    writer.close()
    code, failed, package = reader.recv()
    process.join()
    said = (folder / "said.txt").read_text("utf-8")
    assert code in (0, 1), said  # else the tests were not found, or cannot be read
    assert Path(package).parent == folder / "grace", said
    return set(failed)


def _run(writer: Connection, root: Path, folder: Path, tests: list[str]) -> None:
    import pytest

    assert "grace" not in sys.modules
    for number in (1, 2):
        os.dup2(os.open(folder / "said.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.chdir(root)
    os.environ["PYTHONPATH"] = str(folder)
    sys.path.insert(0, str(folder))
    failed = Failed()
    quiet = ["-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    code = pytest.main([*quiet, *tests], plugins=[failed])
    writer.send((int(code), failed.ids, sys.modules["grace"].__file__))
