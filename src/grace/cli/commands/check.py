"""`grace check`: is the installation complete, and are a run's files as its stages wrote them?"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from grace.cli.options import Json, examples
from grace.errors import GraceError
from grace.store import RunDir, digest, read_json, runs_in

EXAMPLES = examples("grace check", "grace check runs/demo")
PACKAGES = {"torch": "2.6", "transformers": "5.16", "peft": "0.18", "accelerate": "1.10"}
LIGHT = "measures, recalibrates and asks models on servers; to run models, too"
FREE_GIB = 2


class Finding(NamedTuple):
    """The result of one check."""

    what: str
    ok: bool
    detail: str


def check(
    path: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="A run, or a folder of runs.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check the installation and, if you name one, the files of a run.

    The exit code is 1 if anything is wrong.
    """
    findings = [*_installation(), *_pocket()]
    if path is not None:
        findings += _runs(path)
    if as_json:
        print(json.dumps([finding._asdict() for finding in findings], indent=2))
    else:
        for finding in findings:
            print(f"{'ok  ' if finding.ok else 'FAIL'}  {finding.what}: {finding.detail}")
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)


def _installation() -> Iterator[Finding]:
    version = sys.version_info
    yield Finding("python", version >= (3, 11), f"{version.major}.{version.minor} (needs 3.11)")
    if importlib.util.find_spec("torch") is None:
        yield Finding("light install", True, f"{LIGHT}: pip install 'grace-confidence[local]'")
    else:
        yield from _local()
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    yield Finding("disk", free >= FREE_GIB, f"{free:.1f} GiB free here (wants {FREE_GIB})")


def _local() -> Iterator[Finding]:
    """Check the packages and the device that run models."""
    for package, least in PACKAGES.items():
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            yield Finding(package, False, f"not installed; pip install '{package}>={least}'")
            continue
        yield Finding(package, _parts(version) >= _parts(least), f"{version} (needs {least})")
    yield _device()


def _device() -> Finding:
    import torch

    if torch.cuda.is_available():
        bf16 = "with" if torch.cuda.is_bf16_supported() else "without"
        return Finding("device", True, f"{torch.cuda.get_device_name()}, {bf16} bfloat16")
    return Finding("device", True, f"CPU, {torch.get_num_threads()} threads (no CUDA device)")


def _pocket() -> Iterator[Finding]:
    from grace.pocket import MODEL_DIR

    try:
        digests = read_json(MODEL_DIR / "recipe.json")["sha256"]
    except GraceError as error:
        yield Finding("pocket", False, f"{error}; reinstall GrACE")
        return
    for name, expected in digests.items():
        path = MODEL_DIR / name
        good = path.exists() and digest(path) == expected
        yield Finding(f"pocket {name}", good, "as shipped" if good else "differs; reinstall GrACE")


def _runs(path: Path) -> Iterator[Finding]:
    """Check a run, or every run in a folder of several."""
    from grace.pipeline import STAGES

    runs = runs_in(path)
    if not runs:
        remedy = "it has no config.json of a run; see `grace list runs`"
        yield Finding(str(path), False, remedy if path.exists() else "there is no such directory")
    for run in runs:
        label = f"{run.relative_to(path)} " if len(runs) > 1 else ""
        yield _settings(run)
        yield from (_stage(run, stage, label) for stage in STAGES)


def _settings(run: Path) -> Finding:
    from grace.pipeline import read_run_settings
    from grace.tasks import title_of

    try:
        settings = read_run_settings(run)
    except GraceError as error:
        return Finding(str(run), False, str(error))
    return Finding(str(run), True, f"task {title_of(settings.data)}, model {settings.model.path}")


def _stage(run: Path, stage: str, label: str) -> Finding:
    what, directory = f"{label}stage {stage}", RunDir(run)
    try:
        if not directory.done(stage):
            return Finding(what, True, "not done yet")
        changed = directory.changed_files(stage)
    except GraceError as error:
        return Finding(what, False, str(error))
    remedy = f"changed: {', '.join(changed)}; restore, or --redo {stage}"
    return Finding(what, not changed, remedy if changed else "whole")


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
