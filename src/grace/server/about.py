"""What the page shows of a run: its task, its threshold, its measured calibration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from grace.records import to_json
from grace.report.measured import own_row
from grace.server.completing import Reads

if TYPE_CHECKING:
    from grace.model import Model

MEASURED = ("task", "n", "accuracy", "ece", "brier", "auroc", "interval", "reliability")


def about(model: Model, path: Path, most_tokens: int) -> dict[str, Any]:
    """Return what `/v1/models` tells besides; `path` is what was loaded, a run if possible."""
    row, engine = own_row(path, model.task.name), cast(Reads, model.engine)
    return {
        "created": int(path.stat().st_mtime) if path.exists() else 0,
        "task": model.task.name,
        "kind": model.task.kind,
        "read_at": engine.read_at,
        "evidence": engine.evidence is not None,
        "max_tokens": min(model.sample.max_new_tokens, most_tokens),
        "threshold": to_json(model.promise) if model.promise else None,
        "measured": {key: row[key] for key in MEASURED if key in row} if row else None,
    }
