"""Runs side by side, in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from parallel_work import end, fail_beside, write_threads

from grace.errors import RunError
from grace.pipeline import processes
from grace.pipeline.processes import side_by_side

PARENT = """
import signal, sys
from pathlib import Path
from grace.pipeline.processes import side_by_side
from parallel_work import write_pid_and_stay

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background
    side_by_side(write_pid_and_stay, [folder / "a", folder / "b"], ["a", "b"], 2)
"""


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0]
    except OSError:
        return False


def await_end(pids: list[int]) -> None:
    until = time.monotonic() + 30
    while any(map(alive, pids)):
        assert time.monotonic() < until, "orphans go on"
        time.sleep(0.05)


def test_no_core_is_kept_for_a_process_that_there_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(processes, "cores", lambda: 8)
    files = [tmp_path / "a", tmp_path / "b"]
    side_by_side(write_threads, files, ["a", "b"], jobs=8)
    assert [file.read_text() for file in files] == ["4", "4"]
    assert os.environ["OMP_NUM_THREADS"] == "1"


def test_a_process_that_is_killed_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="a process was killed"):
        side_by_side(end, [tmp_path / "a", tmp_path / "b"], ["a", "b"], jobs=2)


def test_a_failure_in_one_part_of_a_work_ends_the_others(tmp_path: Path) -> None:
    parts = [tmp_path / "stays", tmp_path / "fails"]
    with pytest.raises(ValueError, match="no answer fits"):
        side_by_side(fail_beside, parts, ["a", "b"], jobs=2, as_one=True)
    await_end([int((tmp_path / "stays").read_text())])


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs CPU affinity")
def test_only_the_cores_that_a_process_may_use_are_shared() -> None:
    script = "import os; from grace.pipeline.processes import cores; os.sched_setaffinity(0, "
    script += "[min(os.sched_getaffinity(0))]); print(cores())"
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert told.stdout == "1\n"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGINT])
def test_the_workers_of_a_parent_that_is_stopped_end(sign: int, tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(PARENT)
    places = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, places))}
    parent = subprocess.Popen([sys.executable, tmp_path / "parent.py", tmp_path], env=environment)
    files = [tmp_path / "a", tmp_path / "b"]
    until = time.monotonic() + 120
    while not all(file.exists() and file.read_text() for file in files):
        assert time.monotonic() < until and parent.poll() is None
        time.sleep(0.05)
    pids = [int(file.read_text()) for file in files]
    assert all(map(alive, pids))
    parent.send_signal(sign)
    parent.wait(60)
    await_end(pids)
