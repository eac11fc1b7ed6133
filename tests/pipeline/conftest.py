"""One finished run, which every interrupted one must repeat byte by byte."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trials


class Reference(NamedTuple):
    """A finished run, its settings and inputs, and the seconds of its stages."""

    run: Path
    inputs: Path
    settings: Any
    seconds: dict[str, float]

    def before(self, stage: str, folder: Path) -> Path:
        """Return a copy of the run as it was before a stage began."""
        run = folder / self.run.name
        trials.copy_before(stage, self.run, run)
        return run

    def copy(self, folder: Path) -> Path:
        """Return a copy of the finished run."""
        return Path(shutil.copytree(self.run, folder / self.run.name))

    def differences(self, run: Path, free: tuple[str, ...] = trials.FREE) -> list[str]:
        """Return the files in which a run differs from the unbroken one."""
        ours, theirs = trials.tree(self.run, free), trials.tree(run, free)
        return sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name))


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    folder = tmp_path_factory.mktemp("reference")
    made = trials.finish(trials.make_inputs, folder)
    assert made.code == 0, made.said
    settings = trials.settings(folder)
    run = folder / "whole" / "run"
    seconds = trials.durations(run, settings)
    return Reference(run, folder, settings, seconds)


@pytest.fixture
def finish(reference: Reference) -> Callable[..., trials.Ended]:
    """Do a run to its end in a process of its own."""

    def go(run: Path, *changes: str, redo: str | None = None) -> trials.Ended:
        chosen = trials.settings(reference.inputs, *changes) if changes else reference.settings
        return trials.finish(trials.run, run, chosen, redo)

    return go
