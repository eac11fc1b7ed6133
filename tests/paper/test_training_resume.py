from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tiny_training import Trained, make_checks, make_examples, train_in

import forks
from grace.methods.paper import checkpoints


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


OPTIONS: Any = {"save_every": 2, "micro_batch_size": 3}
SAVED_BEFORE = {1: 0, 2: 0, 3: 2, 4: 3, 5: 4, 6: 4}  # on_step comes before a step's checkpoint


class Killed(BaseException):
    """Not an Exception, so nothing on the way may swallow it."""


def stop_after(step: int) -> Any:
    def on_step(done: int, total: int, logs: Any) -> None:
        if done == step:
            raise Killed

    return on_step


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A training that nothing stopped; leave it as it is."""
    folder = tmp_path_factory.mktemp("whole")
    return train_in(folder, "llama_untied", make_examples(), make_checks(), **OPTIONS)


@pytest.mark.parametrize("step", [1, 4, 6])
def test_a_run_stopped_at_any_step_ends_with_the_same_bytes(
    step: int, train: Any, whole: Trained
) -> None:
    options = {"folder": "cut", **OPTIONS}
    with pytest.raises(Killed):
        train("llama_untied", on_step=stop_after(step), **options)
    steps: list[int] = []
    done = train("llama_untied", on_step=lambda *a: steps.append(a[0]), **options)
    assert contents(done.adapter) == contents(whole.adapter)
    assert steps == list(range(SAVED_BEFORE[step] + 1, 7))


def test_a_kill_while_a_checkpoint_is_written_falls_back_to_the_one_before(
    train: Any, whole: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"folder": "cut", **OPTIONS}
    real = checkpoints.commit

    def killed(root: Path, step: int) -> None:
        if step == 4:
            raise Killed
        real(root, step)

    monkeypatch.setattr(checkpoints, "commit", killed)
    with pytest.raises(Killed):
        train("llama_untied", **options)
    monkeypatch.undo()
    assert contents(train("llama_untied", **options).adapter) == contents(whole.adapter)


def test_a_finished_run_writes_the_same_bytes_without_training_again(whole: Trained) -> None:
    steps: list[int] = []
    folder, before = whole.adapter.parent, contents(whole.adapter)
    rows = (make_examples(), make_checks())
    options: Any = {**OPTIONS, "on_step": lambda *a: steps.append(a[0])}
    assert contents(train_in(folder, "llama_untied", *rows, **options).adapter) == before
    assert steps == []


def train_until_killed(folder: Path) -> None:
    def on_step(step: int, total: int, logs: Any) -> None:
        if step == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    train_in(folder, "llama_tied", make_examples(), [], on_step=on_step, save_every=2)


def test_a_killed_process_resumes_to_the_same_bytes(train: Any, tmp_path: Path) -> None:
    """Of another hash seed, too."""
    whole = train("llama_tied", folder="whole", held_out=[], save_every=2)
    assert forks.finish(train_until_killed, tmp_path / "cut").code == -signal.SIGKILL
    steps: list[int] = []
    options: Any = {"held_out": [], "save_every": 2, "on_step": lambda *a: steps.append(a[0])}
    resumed = train("llama_tied", folder="cut", **options)
    assert steps[0] == 3  # the checkpoint of step 2 was there
    assert resumed.adapter == tmp_path / "cut" / "adapter"
    assert contents(resumed.adapter) == contents(whole.adapter)
