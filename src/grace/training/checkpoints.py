"""Checkpoints of training: made beside their place, renamed in one step, the last two kept.

```
<checkpoint_dir>/
  data.json             fingerprint of the settings and examples that the checkpoints belong to
  checkpoint-<step>/    adapter, optimizer, schedule, random state, log
  best-<step>/          adapter with the smallest validation Brier score (train.keep = best)
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

from grace.config import TrainSettings, to_dict
from grace.errors import RunError
from grace.evidence import Evidence
from grace.store.files import sync
from grace.training.adapter import replace_directory, save_weights
from grace.training.examples import Example

KEPT = 2
EARLIER = {"head": "token"}  # what a setting that an old file leaves out was then
FREE_SETTINGS = ("micro_batch_size", "gradient_checkpointing", "report_to")


def claim(
    root: Path,
    settings: TrainSettings,
    seed: int,
    cnf_id: int,
    examples: Sequence[Example],
    evidence: Evidence | None = None,
) -> None:
    """Bind a checkpoint directory to its settings and examples.

    Raises:
        RunError: it holds checkpoints of other settings or examples.
    """
    digest = hashlib.sha256(repr((seed, cnf_id, evidence)).encode())
    for example in examples:
        digest.update(repr(dataclasses.astuple(example)).encode())
    mine: dict[str, Any] = {
        "settings": _fixed(settings),
        "examples": digest.hexdigest(),
    }
    path = root / "data.json"
    if path.exists() and newest(root) is not None:
        theirs = json.loads(path.read_text(encoding="utf-8"))
        theirs["settings"] = (
            _fixed(TrainSettings()) | EARLIER | theirs["settings"]
        )  # of settings newer than the file
        changed = [
            name
            for name, value in mine["settings"].items()
            if theirs["settings"].get(name) != value
        ]
        if theirs != mine:
            what = ", ".join(f"train.{name}" for name in changed) or "the examples or the seed"
            raise RunError(
                f"{root} holds checkpoints made with other values of {what}; "
                "delete that directory to train from the start"
            )
    root.mkdir(parents=True, exist_ok=True)
    partial = root / "data.json.partial"
    partial.write_text(json.dumps(mine, indent=2) + "\n", encoding="utf-8")
    partial.replace(path)


def _fixed(settings: TrainSettings) -> dict[str, Any]:
    return {k: v for k, v in to_dict(settings).items() if k not in FREE_SETTINGS}


def newest(root: Path) -> Path | None:
    """Return the complete checkpoint with the highest step, if any."""
    found = _numbered(root, "checkpoint")
    return found[-1] if found else None


def staging(root: Path) -> Path:
    """Return the directory in which the next checkpoint is made."""
    return root / ".partial"


def commit(root: Path, step: int, best: int | None) -> None:
    """Put the finished checkpoint in its place, then remove what is no longer needed."""
    final = root / f"checkpoint-{step}"
    shutil.rmtree(final, ignore_errors=True)
    for file in (staging(root) / final.name).iterdir():
        sync(file)
    (staging(root) / final.name).rename(final)
    shutil.rmtree(staging(root))
    for old in _numbered(root, "checkpoint")[:-KEPT]:
        shutil.rmtree(old)
    for other in _numbered(root, "best"):
        if best is not None and other != best_dir(root, best):
            shutil.rmtree(other)


def best_dir(root: Path, step: int) -> Path:
    """Return where the best adapter is kept."""
    return root / f"best-{step}"


def save_best(root: Path, step: int, peft_model: Any, state: dict[str, Any] | None = None) -> None:
    """Keep the adapter of a step that is the best so far."""
    folder = best_dir(root, step)
    replace_directory(folder, lambda partial: save_weights(peft_model, partial, state=state))


def _numbered(root: Path, prefix: str) -> list[Path]:
    found = [path for path in root.glob(f"{prefix}-*") if path.name.rpartition("-")[2].isdigit()]
    return sorted(found, key=lambda path: int(path.name.rpartition("-")[2]))
