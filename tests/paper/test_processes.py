"""Two processes of `torchrun` take the steps of one process, and say what all of them saw."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

HERE = Path(__file__).parent
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


FSDP = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_TRANSFORMER_CLS_TO_WRAP": "LlamaDecoderLayer",
    "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
}


def run(
    folder: Path, processes: int, *, sharded: bool = False, **options: Any
) -> list[list[dict[str, float]]]:
    """Train in so many processes; return the values of every step as each process saw them."""
    folder.mkdir(exist_ok=True)
    given = {"name": "llama_untied", "dropout": 0.0, **options}
    script = HERE / ("sharded_script.py" if sharded else "torchrun_script.py")
    command = [*TORCHRUN, str(processes), str(script)]
    environment = os.environ | {"PYTHONPATH": f"{HERE}:{HERE.parent}", "OMP_NUM_THREADS": "1"}
    environment |= FSDP if sharded else {}
    done = subprocess.run(
        [sys.executable, *command, str(folder), json.dumps(given)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"seen-{rank}.json").read_text()) for rank in range(processes)]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = load_file(folder / "adapter" / "adapter_model.safetensors")
    return tensors


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"variant": "grace"},
        {"variant": "feed", "name": "llama_tied"},
        {"micro_batch_size": 2, "batch_size": 6},
    ],
    ids=["predict", "feed-tied", "accumulated-best"],
)
def test_two_processes_take_the_steps_of_one(options: dict[str, Any], tmp_path: Path) -> None:
    (alone,) = run(tmp_path / "one", 1, **options)
    together = run(tmp_path / "two", 2, **options)
    assert len(alone) > 4
    same_steps(together, alone)
    same_weights(weights(tmp_path / "two"), weights(tmp_path / "one"))


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"micro_batch_size": 2}])
def test_sharded_weights_take_the_same_steps_and_resume(
    options: dict[str, Any], tmp_path: Path
) -> None:
    folder = tmp_path / "two"
    (alone,) = run(tmp_path / "one", 1, **options)
    same_steps(run(folder, 2, sharded=True, **options), alone)
    wanted = weights(tmp_path / "one")
    same_weights(weights(folder), wanted)
    shutil.rmtree(folder / "adapter")
    shutil.rmtree(folder / "checkpoints" / "checkpoint-6")
    same_steps(run(folder, 2, sharded=True, **options), alone[3:])
    same_weights(weights(folder), wanted)


def same_steps(processes: list[list[dict[str, float]]], alone: list[dict[str, float]]) -> None:
    for seen in processes:
        for found, wanted in zip(seen, alone, strict=True):
            assert found == pytest.approx(wanted, rel=1e-3, abs=1e-5)


def same_weights(two: dict[str, torch.Tensor], one: dict[str, torch.Tensor]) -> None:
    assert two.keys() == one.keys()
    moved = 0.0
    for key, tensor in one.items():
        np.testing.assert_allclose(two[key], tensor, atol=2e-4, err_msg=key)
        moved = max(moved, float(tensor.abs().max())) if "lora_B" in key else moved
    assert moved > 1e-3
