"""What a directory is: a run, or a study of several runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grace.errors import GraceError
from grace.store.files import read_json

CARD = "grace.json"  # of an adapter, or of an exported model
ROWS = "rows.safetensors"  # the weights of an adapter without LoRA
LORA_WEIGHTS, LORA_CONFIG = "adapter_model.safetensors", "adapter_config.json"


def is_run(path: Path) -> bool:
    """Return whether a directory is a single run, finished or not."""
    return "settings" in (config := _read_config(path)) and "study" not in config


def is_study(path: Path) -> bool:
    """Return whether a directory is a study: several runs in folders in it."""
    return "study" in _read_config(path)


def runs_in(path: Path) -> list[Path]:
    """Return the runs below a directory, at any depth, sorted."""
    found = sorted(config.parent for config in path.glob("*/**/config.json"))
    return [folder for folder in found if is_run(folder)]


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = read_json(path / "config.json")
    except GraceError:
        return {}
    known = isinstance(config, dict) and isinstance(config.get("settings"), dict)
    return config if known else {}


def adapter_weights(folder: Path) -> Path:
    """Return the file with the weights of an adapter: its rows alone, or those of a LoRA."""
    rows = folder / ROWS
    return rows if rows.is_file() else folder / LORA_WEIGHTS
