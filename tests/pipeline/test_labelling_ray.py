"""Labelling on Ray workers: the rows of one process, whoever is killed; `make ray`."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import labelling_trials as trials
import pytest

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]
WORKERS = ("--workers", "2")


@pytest.fixture(scope="module")
def place(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Any]:
    """A run, questions, and the rows that one process writes."""
    folder = tmp_path_factory.mktemp("labelled")
    questions = trials.write_questions(folder / "questions.parquet")
    finish(trials.command(questions, folder / "alone", finished / "run"))
    return finished / "run", questions, trials.rows(folder / "alone")


def finish(arguments: list[str]) -> None:
    process = trials.start(arguments)
    _, said = process.communicate()
    assert process.returncode == 0, said.decode()


def shards(out: Path) -> int:
    return len(list(out.glob("part-*")))


@pytest.fixture
def started() -> Iterator[Callable[[list[str]], subprocess.Popen[bytes]]]:
    """Start commands, and leave nothing of theirs behind."""
    made: list[subprocess.Popen[bytes]] = []

    def start(arguments: list[str]) -> subprocess.Popen[bytes]:
        made.append(trials.start(arguments))
        return made[-1]

    yield start
    for process in made:
        if process.poll() is None:
            process.kill()
            process.communicate()


def wait(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    while not condition() and process.poll() is None:
        time.sleep(0.02)


def worker_of(process: subprocess.Popen[bytes]) -> int:
    """Return a worker that has loaded the model and is labelling."""
    for pid in trials.descendants(process.pid):
        title = Path(f"/proc/{pid}/cmdline").read_bytes()
        if title.startswith(b"ray::MapWorker"):
            return pid
    raise AssertionError("no worker is running")


def test_two_workers_write_the_rows_of_one_process(place: Any, tmp_path: Path) -> None:
    run, questions, alone = place
    finish(trials.command(questions, tmp_path / "out", run, *WORKERS))
    assert trials.rows(tmp_path / "out") == alone
    assert len(alone) == 72


def test_a_killed_worker_is_replaced_and_nothing_is_lost(
    place: Any, tmp_path: Path, started: Any
) -> None:
    run, questions, alone = place
    out = tmp_path / "out"
    process = started(trials.command(questions, out, run, *WORKERS))
    wait(lambda: shards(out) >= 2, process)
    os.kill(worker_of(process), signal.SIGKILL)
    assert shards(out) < 24
    _, said = process.communicate()
    assert process.returncode == 0, said.decode()
    assert trials.rows(out) == alone


def test_questions_at_which_every_worker_dies_end_the_command(
    place: Any, tmp_path: Path, started: Any
) -> None:
    run, questions, _ = place
    deadly = ("--set", "grade.grader=tiny_run:deadly")
    process = started(trials.command(questions, tmp_path / "out", run, *WORKERS, *deadly))
    said = process.communicate()[1].decode().strip().splitlines()[-1]
    assert process.returncode == 2
    assert "5 workers died while they made" in said and "part-00003.parquet; if they lacked" in said


def test_a_terminated_driver_says_that_it_resumes(place: Any, tmp_path: Path, started: Any) -> None:
    run, questions, _ = place
    process = started(trials.command(questions, tmp_path / "out", run, *WORKERS))
    wait(lambda: shards(tmp_path / "out") >= 1, process)
    process.terminate()
    said = process.communicate()[1].decode()
    assert (process.returncode, said.count("the same command resumes where it was")) == (143, 1)


def test_a_cluster_that_is_none_is_one_line(place: Any, tmp_path: Path, started: Any) -> None:
    run, questions, _ = place
    command = trials.command(questions, tmp_path / "out", run, *WORKERS)
    process = started(["env", "RAY_ADDRESS=nonsense", *command])
    said = process.communicate()[1].decode().strip().splitlines()[-1]
    assert process.returncode == 2
    assert "Ray cannot be started or reached (Invalid address format: nonsense)" in said


def test_a_killed_driver_loses_nothing_and_leaves_no_process(
    place: Any, tmp_path: Path, started: Any
) -> None:
    run, questions, alone = place
    out = tmp_path / "out"
    process = started(trials.command(questions, out, run, *WORKERS))
    wait(lambda: shards(out) >= 2, process)
    below = list(trials.descendants(process.pid))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    while any(Path(f"/proc/{pid}").exists() for pid in below):
        time.sleep(0.1)
    assert 2 <= shards(out) < 24
    finish(trials.command(questions, out, run, *WORKERS))
    assert trials.rows(out) == alone


def test_an_error_in_a_worker_is_the_one_line_of_a_single_process(
    place: Any, tmp_path: Path, started: Any
) -> None:
    run, questions, _ = place
    longer = ("--set", "sample.max_new_tokens=4000")
    said = []
    for workers in ((), WORKERS):
        process = started(trials.command(questions, tmp_path / "out", run, *longer, *workers))
        said.append(process.communicate()[1].decode().strip().splitlines()[-1])
        assert process.returncode == 2
    assert said[0] == said[1]
    assert "the model's context is 256" in said[0]
