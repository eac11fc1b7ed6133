from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from grace.methods.paper import checkpoints


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


SAVED_BEFORE = {1: 0, 2: 0, 3: 2, 4: 3, 5: 4, 6: 4}  # on_step comes before a step's checkpoint


class Killed(BaseException):
    """Not an Exception, so nothing on the way may swallow it."""


def stop_after(step: int) -> Any:
    def on_step(done: int, total: int, logs: Any) -> None:
        if done == step:
            raise Killed

    return on_step


@pytest.fixture
def whole(train: Any) -> dict[str, bytes]:
    return contents(train("llama_untied", folder="whole", save_every=2).adapter)


@pytest.mark.parametrize("step", [1, 4, 6])
def test_a_run_stopped_at_any_step_ends_with_the_same_bytes(
    step: int, train: Any, whole: dict[str, bytes]
) -> None:
    options = {"folder": "cut", "save_every": 2}
    with pytest.raises(Killed):
        train("llama_untied", on_step=stop_after(step), **options)
    steps: list[int] = []
    done = train("llama_untied", on_step=lambda *a: steps.append(a[0]), **options)
    assert contents(done.adapter) == whole
    assert steps == list(range(SAVED_BEFORE[step] + 1, 7))


def test_a_run_with_micro_batches_resumes_too(train: Any) -> None:
    options = {"save_every": 2, "micro_batch_size": 3}
    first = contents(train(folder="whole", **options).adapter)
    with pytest.raises(Killed):
        train(folder="cut", on_step=stop_after(5), **options)
    assert contents(train(folder="cut", **options).adapter) == first


def test_a_kill_while_a_checkpoint_is_written_falls_back_to_the_one_before(
    train: Any, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"folder": "cut", "save_every": 2}
    real = checkpoints.commit

    def killed(root: Path, step: int) -> None:
        if step == 4:
            raise Killed
        real(root, step)

    monkeypatch.setattr(checkpoints, "commit", killed)
    with pytest.raises(Killed):
        train("llama_untied", **options)
    monkeypatch.undo()
    assert contents(train("llama_untied", **options).adapter) == whole


def test_a_finished_run_writes_the_same_bytes_without_training_again(
    train: Any, whole: dict[str, bytes]
) -> None:
    steps: list[int] = []
    done = train(
        "llama_untied",
        folder="whole",
        save_every=2,
        on_step=lambda *a: steps.append(a[0]),
    )
    assert steps == []
    assert contents(done.adapter) == whole


SCRIPT = """
import json, os, signal, sys
from pathlib import Path
sys.path[:0] = json.loads(sys.argv[1])
import torch
torch.set_num_threads(1)
from conftest_training import make_examples, train_in

def on_step(step, total, logs):
    if step == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)

train_in(Path(sys.argv[2]), "llama_tied", make_examples(), [], on_step=on_step, save_every=2)
"""


def test_a_killed_process_resumes_to_the_same_bytes(train: Any, tmp_path: Path) -> None:
    whole = train("llama_tied", folder="whole", held_out=[], save_every=2)
    helper = tmp_path / "conftest_training.py"
    helper.write_text((Path(__file__).parent / "conftest.py").read_text())
    paths = json.dumps([str(tmp_path), str(Path(__file__).parents[1])])

    environment = {**os.environ, "PYTHONHASHSEED": "4"}
    command = [sys.executable, "-c", SCRIPT, paths, str(tmp_path / "cut"), "3"]
    assert subprocess.run(command, env=environment, check=False).returncode == -signal.SIGKILL
    steps: list[int] = []
    options: Any = {"held_out": [], "save_every": 2, "on_step": lambda *a: steps.append(a[0])}
    resumed = train("llama_tied", folder="cut", **options)
    assert steps[0] == 3  # the checkpoint of step 2 was there
    assert resumed.adapter == tmp_path / "cut" / "adapter"
    assert contents(resumed.adapter) == contents(whole.adapter)
