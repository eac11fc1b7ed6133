"""Settings as frozen dataclasses, whose fields have a help text and a range, built from dicts.

The error for an unknown key has the closest name, the one for a bad value what is accepted.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import re
import tomllib
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any, Literal, TypeVar

from grace.errors import ConfigError

Settings = TypeVar("Settings")
KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
FIXED = {
    "paper.schedule": "linear",
    "paper.warmup": 0.0,
    "paper.max_grad_norm": 1.0,
    "paper.min_count": None,  # was for a warning only
    "with_end": True,
}
"""Settings of earlier versions, with the value that they always have now; None: no value counts."""


def setting(
    default: Any,
    doc: str,
    *,
    low: float | None = None,
    high: float | None = None,
    texts: bool = False,
) -> Any:
    """Declare a field with its help and inclusive range; only `texts` may hold commas."""
    return field(default=default, metadata={"doc": doc, "low": low, "high": high, "texts": texts})


def sections(doc: str) -> Any:
    """Declare a field that holds sections of settings by name; they are checked when used."""
    return field(default_factory=dict, metadata={"doc": doc})


def to_dict(settings: Any) -> dict[str, Any]:
    """Return the settings tree as JSON-ready dicts (tuples become lists)."""
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(settings)))
    return plain


def from_dict(kind: type[Settings], tree: Mapping[str, Any], where: str = "settings") -> Settings:
    """Build a settings dataclass from nested dicts, refusing unknown keys and bad values."""
    return _build(kind, tree, where, "")


def key_values(pairs: Iterable[str], where: str) -> dict[str, Any]:
    """Return `KEY=VALUE` pairs as a dict; values are read as TOML, or else as text."""
    values: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = map(str.strip, pair.partition("="))
        if not equals or not key.isidentifier():
            raise ConfigError(f"{where} {pair!r} has no name or no value; write KEY=VALUE")
        values[key] = parse_value(text)
    return values


def parse_value(text: str) -> Any:
    """Parse a text as a TOML value, or a number like .9; return the text itself if it is none."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return float(text) if re.fullmatch(r"[+-]?(?:\d+\.|\.\d+)", text) else text


def assignment(key: str, value: Any) -> str:
    """Return `KEY=VALUE` as `parse_value` reads it; what is no value of JSON becomes its text."""
    return f"{key}={json.dumps(value, default=str, ensure_ascii=False)}"


def describe(kind: type, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield (dotted key, default, help text) of every setting, in order."""
    hints = typing.get_type_hints(kind)
    for f in dataclasses.fields(kind):
        if dataclasses.is_dataclass(hints[f.name]):
            yield from describe(hints[f.name], f"{prefix}{f.name}.")
        else:
            default = {} if f.default is dataclasses.MISSING else f.default
            yield f"{prefix}{f.name}", json.dumps(default), f.metadata["doc"]


def _build(kind: type[Settings], tree: Any, where: str, prefix: str) -> Settings:
    if not isinstance(tree, Mapping):
        name = f"{where}: {prefix.rstrip('.')!r}" if prefix else where
        raise ConfigError(
            f"{name} is {tree!r}, expected a section; set one of its settings: {prefix}NAME"
        )
    hints = typing.get_type_hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, value in tree.items():
        name = prefix + key
        if key not in fields and name in FIXED:
            if FIXED[name] not in (None, value):
                raise ConfigError(
                    f"{where}: {name} is {value!r}, and always {FIXED[name]!r} now; leave it out, "
                    "in a new run if this one was started with it"
                )
            continue
        if key not in fields:
            closest = _closest(prefix, key, fields)
            raise ConfigError(f"{where}: unknown setting {name!r}{closest}")
        if dataclasses.is_dataclass(hints[key]):
            values[key] = _build(hints[key], value, where, f"{name}.")
        else:
            values[key] = _check(hints[key], value, fields[key].metadata, f"{where}: {name}")
    return kind(**values)


def _closest(prefix: str, key: str, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    if near:
        return f"; did you mean {prefix + near[0]!r}?"
    return f"; known: {', '.join(known)}" if known else "; there are none"


def _check(hint: Any, value: Any, metadata: Mapping[str, Any], where: str) -> Any:
    origin = typing.get_origin(hint)
    if origin is dict:
        return _table(value, where)
    if origin is tuple:
        items = value
        if isinstance(value, str):
            named = filter(None, map(str.strip, value.split(",")))
            items = [value] if metadata.get("texts") else list(named)
        if not isinstance(items, list | tuple) or (not items and metadata.get("low") != 0):
            raise ConfigError(f"{where} is {value!r}, expected a list with at least one entry")
        return tuple(_check(typing.get_args(hint)[0], item, metadata, where) for item in items)
    if origin is Literal:
        choices = typing.get_args(hint)
        if value not in choices:
            raise ConfigError(f"{where} is {value!r}, expected one of {', '.join(choices)}")
        return value
    return _check_scalar(hint, value, metadata, where)


def _table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(v, Mapping) for v in value.values()):
        raise ConfigError(f"{where} is {value!r}, expected sections of settings, one per name")
    return {name: dict(section) for name, section in value.items()}


def _check_scalar(hint: Any, value: Any, metadata: Mapping[str, Any], where: str) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not hint:
        quoted = hint is str and not isinstance(value, list | dict)
        remedy = f"""; a text in double quotes is one: '"{value}"'""" if quoted else ""
        raise ConfigError(f"{where} is {value!r}, expected {KINDS[hint]}{remedy}")
    if hint in (int, float):
        low, high = metadata.get("low"), metadata.get("high")
        if not math.isfinite(value) or (low is not None and value < low):
            raise ConfigError(f"{where} is {value}, expected a finite number of at least {low}")
        if high is not None and value > high:
            raise ConfigError(f"{where} is {value}, expected at most {high}")
    return value


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the settings that differ between two trees, both values by name; None: not there."""
    one, other = flatten(before), flatten(after)
    pairs = {key: (one.get(key), other.get(key)) for key in one | other}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of a tree by dotted name."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
