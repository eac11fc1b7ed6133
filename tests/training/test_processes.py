"""Two processes of `torchrun` take the steps of one process, and say what all of them saw."""

from __future__ import annotations

import json
import os
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


def run(folder: Path, processes: int, **options: Any) -> list[list[dict[str, float]]]:
    """Train in so many processes; return the values of every step as each process saw them."""
    folder.mkdir(exist_ok=True)
    given = {"name": "llama_untied", "dropout": 0.0, **options}
    command = [*TORCHRUN, str(processes), str(HERE / "torchrun_script.py")]
    environment = os.environ | {"PYTHONPATH": f"{HERE}:{HERE.parent}", "OMP_NUM_THREADS": "1"}
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
        {"read_at": "predict"},
        {"read_at": "feed", "name": "llama_tied"},
        {"micro_batch_size": 2, "keep": "best", "batch_size": 6},
    ],
    ids=["predict", "feed-tied", "accumulated-best"],
)
def test_two_processes_take_the_steps_of_one(options: dict[str, Any], tmp_path: Path) -> None:
    (alone,) = run(tmp_path / "one", 1, **options)
    together = run(tmp_path / "two", 2, **options)
    assert len(alone) > 4
    for seen in together:
        for found, wanted in zip(seen, alone, strict=True):
            assert found == pytest.approx(wanted, rel=1e-3, abs=1e-5)
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    moved = 0.0
    for key, tensor in one.items():
        np.testing.assert_allclose(two[key], tensor, atol=2e-4, err_msg=key)
        moved = max(moved, float(tensor.abs().max())) if "lora_B" in key else moved
    assert moved > 1e-3
