"""A run that stops before training, trains in two processes, and goes on in one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import tiny_run
from grace.config import override_settings
from grace.errors import ConfigError, RunError
from grace.pipeline import run
from grace.pipeline.processes import train_together
from grace.store import RunDir

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")


def settings(finished: Path) -> list[str]:
    where = (f"model.path={finished / 'model'}", f"data.file={finished / 'questions.jsonl'}")
    return [*where, "data.task=jsonl", *tiny_run.FAST, "paper.dropout=0"]


def test_a_run_stops_after_the_stage_that_was_named_and_goes_on_later(
    finished: Path, tmp_path: Path
) -> None:
    how = override_settings({}, settings(finished))
    path = tmp_path / "run"
    assert run(path, how, until="sample") == {}
    assert RunDir(path).done("sample")
    assert not RunDir(path).done("grade")
    with pytest.raises(RunError, match="--until features"):
        train_together(path)
    assert run(path, how, until="fit") == {}
    train_together(path)
    assert RunDir(path).done("fit")
    train_together(path)  # there is nothing left to do
    assert run(path, how)["rows"]
    assert run(path, how, until="sample")["rows"]
    with pytest.raises(ConfigError, match="unknown stage 'tain'"):
        run(path, how, until="tain")


def test_a_run_that_trains_nothing_is_refused(finished: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    run(path, override_settings({}, [*settings(finished), "method=grace"]), until="features")
    with pytest.raises(RunError, match=r"has method=grace.* go on: grace run"):
        train_together(path)


@pytest.mark.slow
def test_two_processes_of_torchrun_train_the_adapter_of_one(finished: Path, tmp_path: Path) -> None:
    how = override_settings({}, settings(finished))
    one, two = tmp_path / "one", tmp_path / "two"
    run(one, how, until="fit")
    run(two, how, until="features")
    here = str(Path(tiny_run.__file__).parent)
    environment = os.environ | {"PYTHONPATH": here, "OMP_NUM_THREADS": "1"}
    grace = str(Path(sys.executable).parent / "grace")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *torchrun, "--no-python", grace, "train", str(two)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("trained; next: grace run") == 1
    found, wanted = (load_file(p / "adapter" / "adapter_model.safetensors") for p in (two, one))
    for key, tensor in wanted.items():
        np.testing.assert_allclose(found[key], tensor, atol=2e-4, err_msg=key)
    assert RunDir(two).changed_files("fit") == []
    assert run(two, how)["rows"]
