"""report.json as typed rows, and back."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from typing import Any, TypeVar

import numpy as np

Parsed = TypeVar("Parsed")


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
