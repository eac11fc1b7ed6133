"""Full disks, read-only disks, Ctrl-C, a second process: one line, exit code, resumable."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import trials

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_RDONLY, MS_REMOUNT, MS_PRIVATE, MS_REC = 1, 32, 1 << 18, 16384
# Stages, and how many bytes the disk has left when they begin; training writes many files.
FAST = [("fit", 30_000)]
SLOW = [(stage, 2_000) for stage in trials.STAGES]
SLOW += [("fit", left) for left in range(12_000, 120_000, 12_000)]
SLOW += [("report", left) for left in (60_000, 150_000, 250_000)]


def command(*arguments: str) -> None:
    """Run the command line with a clock that stands still."""
    from grace.cli import main

    trials.freeze_clock()
    sys.argv = ["grace", *arguments]
    main()


def run_options(reference: Any) -> list[str]:
    """Return the options that repeat the reference run from the command line."""
    from grace.config import to_dict

    tree = to_dict(reference.settings)
    parts = {part: own for part, own in tree.items() if isinstance(own, dict)}
    flat = {f"{part}.{k}": v for part, own in parts.items() for k, v in own.items()}
    flat["method"] = tree["method"]
    return [part for k, v in flat.items() for part in ("--set", f"{k}={json.dumps(v)}")]


def mount(folder: Path, size: str, flags: int = 0) -> None:
    """Mount a small disk that only this process sees.

    Raises:
        OSError: this system does not let us.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def call(name: str, *arguments: Any) -> None:
        if getattr(libc, name)(*arguments) != 0:
            raise OSError(ctypes.get_errno(), f"{name} is not allowed here")

    user, group = os.getuid(), os.getgid()
    if not flags & MS_REMOUNT:
        call("unshare", CLONE_NEWNS | (0 if user == 0 else CLONE_NEWUSER))
        if user != 0:
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"0 {user} 1")
            Path("/proc/self/gid_map").write_text(f"0 {group} 1")
        call("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    call("mount", b"tmpfs", bytes(folder), b"tmpfs", flags, size.encode())


def check_mount(folder: Path) -> None:
    folder.mkdir()
    mount(folder, "size=64k")


@pytest.fixture(scope="module")
def small_disks(reference: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    ended = trials.finish(check_mount, tmp_path_factory.mktemp("disk") / "small")
    if ended.code != 0:
        pytest.skip(f"no small disk on this system: {ended.said.splitlines()[-1]}")


def run_on_full_disk(
    stage: str, left: int, source: Path, target: Path, answer: Path, options: list[str]
) -> None:
    """Do a stage on a disk with no room, then with room; leave the run's files at `answer`."""
    target.mkdir()
    mount(target, "size=8m")
    run = target / "run"
    trials.copy_before(stage, source, run)
    filler = target / "filler"
    free = shutil.disk_usage(target).free
    filler.write_bytes(b"x" * max(0, free - left))
    try:
        command("run", str(run), *options)
    except SystemExit as stop:
        print(f"exit code {stop.code}", file=sys.stderr)
    filler.unlink()
    try:
        command("run", str(run), *options)
    except SystemExit as stop:
        print(f"then {stop.code or 0}", file=sys.stderr)
    shutil.copytree(run, answer)


@pytest.mark.parametrize(
    ("stage", "left"), [*FAST, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)]
)
def test_a_full_disk_is_one_line_and_the_run_resumes(
    stage: str, left: int, reference: Any, small_disks: None, tmp_path: Path
) -> None:
    answer = tmp_path / "answer"
    arguments = (stage, left, reference.run, tmp_path / "disk", answer)
    ended = trials.finish(run_on_full_disk, *arguments, run_options(reference))
    assert ended.code == 0, ended.said
    said = ended.said.splitlines()
    failed = said.index("exit code 2")
    assert said[failed - 1].startswith("grace: error: the disk is full while writing")
    expected = ("warning: 7 of 10 target", "train: rating 10 validation responses")
    before = [line for line in said[: failed - 1] if not line.startswith(expected)]
    assert before == [f"stage {stage}"], ended.said
    assert said[-1] == "then 0"
    assert reference.differences(answer) == []


def run_on_read_only_disk(source: Path, target: Path) -> None:
    target.mkdir()
    mount(target, "size=8m")
    trials.copy_before("score", source, target / "run")
    mount(target, "", MS_RDONLY | MS_REMOUNT)
    command("run", str(target / "run"))


def test_a_read_only_directory_is_one_line(
    reference: Any, small_disks: None, tmp_path: Path
) -> None:
    ended = trials.finish(run_on_read_only_disk, reference.run, tmp_path / "disk")
    assert ended.code == 2
    (line,) = ended.said.splitlines()
    assert line.startswith("grace: error: cannot write")
    assert "Read-only file system" in line


def test_ctrl_c_ends_with_130_and_the_run_resumes(
    reference: Any, finish: Any, tmp_path: Path
) -> None:
    run = reference.before("fit", tmp_path)
    process, stderr = trials.start(command, "run", str(run))
    with stderr:
        assert stderr.readline() == b"stage fit\n"
        os.kill(process.pid, signal.SIGINT)  # at once: a fast machine ends a stage in 0.2 s
        said = stderr.read().decode()
    process.join()
    assert process.exitcode == 130
    assert said == "grace: stopped; the same command resumes where it was\n"
    ended = finish(run)
    assert ended.code == 0, ended.said
    assert reference.differences(run) == []


def test_a_second_process_on_the_same_run_is_refused_at_once(
    reference: Any, finish: Any, tmp_path: Path
) -> None:
    run = reference.before("fit", tmp_path)
    process, stderr = trials.start(trials.run, run, reference.settings)
    with stderr:
        assert stderr.readline() == b"stage fit\n"
        ended = finish(run)
        assert ended.code == 2
        assert "another process is working on" in ended.said
        process.join()
    assert process.exitcode == 0
    assert reference.differences(run) == []
