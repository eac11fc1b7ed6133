from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from grace.training import checkpoints, trainer


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


class Killed(BaseException):
    """Not an Exception, so nothing on the way may swallow it."""


def stop_after(step: int) -> Any:
    def on_step(done: int, total: int, logs: Any) -> None:
        if done == step:
            raise Killed

    return on_step


@pytest.fixture
def whole(train: Any) -> dict[str, bytes]:
    return contents(train("llama_untied", folder="whole", save_every=2, keep="best").adapter)


@pytest.mark.parametrize("step", range(1, 7))
def test_a_run_stopped_at_any_step_ends_with_the_same_bytes(
    step: int, train: Any, whole: dict[str, bytes]
) -> None:
    options = {"folder": "cut", "save_every": 2, "keep": "best"}
    with pytest.raises(Killed):
        train("llama_untied", on_step=stop_after(step), **options)
    steps: list[int] = []
    done = train("llama_untied", on_step=lambda *a: steps.append(a[0]), **options)
    assert contents(done.adapter) == whole
    assert steps[0] == (step - 1) // 2 * 2 + 1 if step < 4 else steps[0] > 1


@pytest.mark.parametrize("micro", [3])
def test_a_run_with_micro_batches_resumes_too(micro: int, train: Any) -> None:
    options = {"save_every": 2, "micro_batch_size": micro, "balance": "sampler"}
    first = contents(train(folder="whole", **options).adapter)
    with pytest.raises(Killed):
        train(folder="cut", on_step=stop_after(5), **options)
    assert contents(train(folder="cut", **options).adapter) == first


def test_a_kill_while_a_checkpoint_is_written_falls_back_to_the_one_before(
    train: Any, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"folder": "cut", "save_every": 2, "keep": "best"}
    real = checkpoints.commit

    def killed(root: Path, step: int, best: int | None) -> None:
        if step == 4:
            raise Killed
        real(root, step, best)

    monkeypatch.setattr(trainer.checkpoints, "commit", killed)
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
        keep="best",
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
import tiny_models
from conftest_training import make_examples
from grace.cnf import add_cnf
from grace.config import TrainSettings
from grace.training.trainer import train_adapter

root, kill_at = Path(sys.argv[2]), int(sys.argv[3])
model, tokenizer = tiny_models.model("llama_tied"), tiny_models.tokenizer()

def on_step(step, total, logs):
    if step == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)

train_adapter(
    model, tokenizer, add_cnf(model, tokenizer), make_examples(), [],
    TrainSettings(learning_rate=5e-3, epochs=2, rank=4), seed=0, output_dir=root / "adapter",
    checkpoint_dir=root / "checkpoints", metadata={}, on_step=on_step, save_every=2,
)
"""


def test_a_killed_process_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    helper = tmp_path / "conftest_training.py"
    helper.write_text((Path(__file__).parent / "conftest.py").read_text())
    paths = json.dumps([str(tmp_path), str(Path(__file__).parents[1])])

    def run(folder: str, kill_at: int) -> int:
        environment = {**os.environ, "PYTHONHASHSEED": str(kill_at + 1)}
        command = [sys.executable, "-c", SCRIPT, paths, str(tmp_path / folder), str(kill_at)]
        return subprocess.run(command, env=environment, check=False).returncode

    assert run("whole", 0) == 0
    assert run("cut", 3) == -9
    assert run("cut", 0) == 0
    assert contents(tmp_path / "cut" / "adapter") == contents(tmp_path / "whole" / "adapter")
