"""report.json as frozen rows: `Report` holds them all; JSON in and out, groups and means."""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
import types
import typing
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np

from grace.report.rows.answers import (
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
from grace.report.rows.votes import (
    Discrimination,
    EqualAccuracy,
    JointStrategy,
    Pooled,
    SeedStrategy,
)

SCHEMA_VERSION = 2  # 1: intervals of ECE and over seeds were others (decision 019)
Parsed = TypeVar("Parsed")
Row = TypeVar("Row")
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The content of report.json; see schema.json."""

    schema_version: int
    name: str
    created: str
    grace_version: str
    hardware: str
    rows: tuple[MetricRow, ...]
    summaries: tuple[Summary, ...]
    transfer: tuple[Transfer, ...]
    scaling: tuple[SeedStrategy, ...]
    scaling_joint: tuple[JointStrategy, ...]
    equal_accuracy: tuple[EqualAccuracy, ...]
    pools: tuple[Pooled, ...]
    discrimination: tuple[Discrimination, ...]
    targets: tuple[TargetRow, ...]
    target_values: tuple[TargetValues, ...]
    comparisons: tuple[Comparison, ...]
    evaluation: dict[str, float]
    settings: dict[str, str]
    notes: tuple[str, ...]
    validation: tuple[Validation, ...]
    examples: tuple[ShownExample, ...]
    traces: tuple[TraceRow, ...]


def group_by(rows: Iterable[Row], key: Callable[[Row], Key]) -> dict[Key, list[Row]]:
    """Group rows by a key, in the order of their appearance."""
    groups: dict[Key, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def mean_of(values: Iterable[Any]) -> float | None:
    """Return the mean of the values that are numbers, None without any."""
    numbers = [value for value in values if isinstance(value, int | float)]
    return statistics.fmean(numbers) if numbers else None


def to_json(value: Any) -> Any:
    """Convert rows, and whatever holds them, to JSON: floats rounded, None for nan and infinity."""
    if dataclasses.is_dataclass(value):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: to_json(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(entry) for entry in value]
    if isinstance(value, float | np.floating):
        return round(float(value), 6) if math.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value


def from_json(row_type: type[Parsed], content: Any) -> Parsed:
    """Build a row from JSON; fields that this version does not have are left out."""
    return cast(Parsed, _parse(row_type, content))


def _parse(kind: Any, value: Any) -> Any:
    """Return a value as a kind of field holds it; one of another type is a `TypeError`."""
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        _check(value, dict)
        fields = _field_types(kind)
        return kind(**{key: _parse(fields[key], value[key]) for key in value if key in fields})
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        return None if value is None else _parse(inner[0], value)
    if kind is float:
        _check(value, int | float | None)  # None stands for nan
    elif isinstance(kind, type) and origin is None:
        _check(value, kind)
    if origin is dict:
        _check(value, dict)
        return {key: _parse(inner[1], value[key]) for key in value}
    if origin is tuple:
        _check(value, list)
        return tuple(_parse(inner[0], entry) for entry in value)
    return value


def _check(value: Any, kind: Any) -> None:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError(f"{value!r} is no {kind}")


_field_types = functools.cache(typing.get_type_hints)
