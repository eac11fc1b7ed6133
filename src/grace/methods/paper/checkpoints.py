"""Checkpoints of training, each put in place with one rename; the last two are kept.

```
<checkpoint_dir>/
  data.json             fingerprint of the settings and examples that the checkpoints belong to
  checkpoint-<step>/    adapter, optimizer, schedule, random state, log
```
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import load_fsdp_optimizer, save_fsdp_optimizer

from grace.config import (
    FREE_IN_TRAINING,
    PaperSettings,
    RunSettings,
    differences,
    from_dict,
    to_dict,
)
from grace.errors import RunError
from grace.methods.paper.examples import Example
from grace.store.files import sync, write_json

KEPT = 2


def claim(
    root: Path,
    settings: PaperSettings,
    seed: int,
    cnf_id: int,
    examples: Sequence[Example],
) -> None:
    """Record settings and examples in a checkpoint directory."""
    digest = hashlib.sha256(repr((seed, cnf_id)).encode())
    for example in examples:
        digest.update(repr(dataclasses.astuple(example)).encode())
    fixed = {k: v for k, v in to_dict(settings).items() if k not in FREE_IN_TRAINING}
    mine: dict[str, Any] = {"settings": fixed, "examples": digest.hexdigest()}
    path = root / "data.json"
    if path.exists() and newest(root) is not None:
        stored = json.loads(path.read_text(encoding="utf-8"))
        kept = to_dict(from_dict(RunSettings, {"paper": stored["settings"]}).paper)
        stored["settings"] = {k: v for k, v in kept.items() if k in fixed}
        if stored != mine:
            changed = differences(stored["settings"], mine["settings"])
            what = ", ".join(f"paper.{name}" for name in changed) or "the examples or the seed"
            raise RunError(
                f"{root} holds checkpoints made with other values of {what}; "
                "delete that directory to train from the start"
            )
    write_json(path, mine)


def newest(root: Path) -> Path | None:
    """Return the complete checkpoint with the highest step, if any."""
    return max(_numbered(root), key=_step, default=None)


def staging(root: Path, step: int) -> Path:
    """Return the directory in which the files of a checkpoint are written first."""
    folder = root / ".partial" / f"checkpoint-{step}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def commit(root: Path, step: int) -> None:
    """Put the finished checkpoint in its place, then remove older ones."""
    final = root / f"checkpoint-{step}"
    shutil.rmtree(final, ignore_errors=True)
    finished = staging(root, step)
    for file in finished.iterdir():
        sync(file)
    finished.rename(final)
    shutil.rmtree(finished.parent)
    for old in sorted(_numbered(root), key=_step)[:-KEPT]:
        shutil.rmtree(old)


def sharding(accelerator: Accelerator) -> Any:
    """Return Accelerate's plugin where it shards the weights over processes (FSDP), else None."""
    return getattr(accelerator.state, "fsdp_plugin", None)


def save_state(accelerator: Accelerator, wrapped: Any, optimizer: Any, folder: Path) -> None:
    """Write the state of the optimizer, and of every process's random numbers (dropout)."""
    if plugin := sharding(accelerator):
        save_fsdp_optimizer(plugin, accelerator, optimizer, wrapped, str(folder))
    elif accelerator.is_main_process:
        torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    torch.save(states, _random_file(accelerator, folder))


def load_state(accelerator: Accelerator, wrapped: Any, optimizer: Any, folder: Path) -> None:
    """Load the state that `save_state` wrote, in the same number of processes."""
    if plugin := sharding(accelerator):
        load_fsdp_optimizer(plugin, accelerator, optimizer, wrapped, str(folder))
    else:
        device, file = accelerator.device, folder / "optimizer.pt"
        optimizer.load_state_dict(torch.load(file, map_location=device, weights_only=True))
    if not (file := _random_file(accelerator, folder)).exists():
        return
    states = torch.load(file, weights_only=True)
    torch.set_rng_state(states["cpu"])
    if torch.cuda.is_available() and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"])


def _random_file(accelerator: Accelerator, folder: Path) -> Path:
    rank = f"_{accelerator.process_index}" if accelerator.num_processes > 1 else ""
    return folder / f"rng_state{rank}.pth"


def _numbered(root: Path) -> list[Path]:
    return [p for p in root.glob("checkpoint-*") if p.name.rpartition("-")[2].isdigit()]


def _step(folder: Path) -> int:
    return int(folder.name.rpartition("-")[2])
