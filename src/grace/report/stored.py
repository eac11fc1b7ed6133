"""report.json: what it holds, as typed rows and back, and what a run says there of its own."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from grace.errors import RunError
from grace.report.names import slug
from grace.report.rows import (
    Comparison,
    MetricRow,
    ShownExample,
    Summary,
    TargetRow,
    TargetValues,
    TraceRow,
    Transfer,
    Validation,
)
from grace.report.scaling.rows import (
    Discrimination,
    EqualAccuracy,
    JointStrategy,
    Pooled,
    SeedStrategy,
)
from grace.store import CARD, read_json

Parsed = TypeVar("Parsed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The content of report.json; see schema.json."""

    schema_version: int
    name: str
    created: str
    grace_version: str
    hardware: str
    rows: tuple[MetricRow, ...]
    summaries: tuple[Summary, ...] = ()
    transfer: tuple[Transfer, ...] = ()
    scaling: tuple[SeedStrategy, ...]
    scaling_joint: tuple[JointStrategy, ...] = ()
    equal_accuracy: tuple[EqualAccuracy, ...] = ()
    pools: tuple[Pooled, ...] = ()
    discrimination: tuple[Discrimination, ...] = ()
    targets: tuple[TargetRow, ...]
    target_values: tuple[TargetValues, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    evaluation: dict[str, float] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    validation: tuple[Validation, ...] = ()
    examples: tuple[ShownExample, ...] = ()
    traces: tuple[TraceRow, ...] = ()


def to_json(value: Any) -> Any:
    """Return rows as JSON, all the way down: floats rounded, None for what is not finite."""
    if dataclasses.is_dataclass(value):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: to_json(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(entry) for entry in value]
    if isinstance(value, float | np.floating):
        return round(float(value), 6) if math.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value


def from_json(kind: type[Parsed], content: Any) -> Parsed:
    """Return JSON as a row; fields that this version does not know are left out.

    Raises:
        TypeError: it is not such a row.
    """
    row: Parsed = _parse(kind, content)
    return row


def _parse(kind: Any, value: Any) -> Any:
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        fields = _fields(kind)
        return kind(**{key: _parse(fields[key], value[key]) for key in value if key in fields})
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if value is None or origin is None:
        return value
    if origin is types.UnionType:
        return _parse(inner[0], value)
    if origin is dict:
        return {key: _parse(inner[1], value[key]) for key in value}
    return tuple(_parse(inner[0], entry) for entry in value)


@functools.cache
def _fields(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def checked_report(result: Any, path: Path) -> Report:
    """Return the report of a run from what its report.json holds.

    Raises:
        RunError: it is not a report.
    """
    try:
        return from_json(Report, result)
    except TypeError:
        raise RunError(
            f"{path}/report.json is not a report; make it again: --redo report"
        ) from None


def own_row(path: Path) -> dict[str, Any] | None:
    """Return the report's row about the trained confidence on the task it was trained for.

    A run has it in report.json, an exported model in grace.json; None where there is none.

    Raises:
        RunError: one of the files is not JSON.
    """
    report = path / "report.json"
    if report.exists():
        content = read_json(report)
        name = content.get("settings", {}).get("report.name", "grace")
        for row in content.get("rows", []):
            if row["estimator"] == name and row["task"] == row["train_task"]:
                found: dict[str, Any] = row
                return found
    card = path / CARD
    kept: dict[str, Any] | None = read_json(card).get("measured") if card.exists() else None
    return kept


def own_diagram(path: Path, task: str) -> Path | None:
    """Return the reliability diagram of a run on the task it was trained for, if it drew one."""
    drawn = path / "figures" / f"reliability-{slug(task)}.png"
    return drawn if drawn.is_file() else None
