"""Several report.json files side by side, when their raw confidences are gone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from grace.errors import UserInputError
from grace.report.merging import joined
from grace.report.rows import SCHEMA_VERSION, Report, sort_rows


def combine(reports: Sequence[Report], name: str) -> Report:
    """Return one report with the rows of several report.json, without joint statistics.

    Those need the raw confidences: see `merge`.

    Raises:
        UserInputError: no report, another schema version, or rows that contradict each other.
    """
    reports = _distinct(reports)
    if not reports:
        raise UserInputError("there are no reports to combine; name at least one run")
    for report in reports:
        if not isinstance(report, dict):
            raise UserInputError(f"a {type(report).__name__} is no report; make it again")
        if report.get("schema_version") != SCHEMA_VERSION:
            raise UserInputError(
                f"report {report.get('name')!r} has schema_version "
                f"{report.get('schema_version')}, expected {SCHEMA_VERSION}; make it again"
            )
    if len(reports) == 1:
        return reports[0] | {"name": name}
    settings = {key: _joined(reports, key) for key in _settings_keys(reports)}
    return {
        "schema_version": SCHEMA_VERSION,
        "name": name,
        "created": max(report["created"] for report in reports),
        "grace_version": joined(report["grace_version"] for report in reports),
        "hardware": joined(report["hardware"] for report in reports),
        "rows": sort_rows(row for report in reports for row in report["rows"]),
        "scaling": _distinct(row for report in reports for row in report["scaling"]),
        "targets": _pool_targets(row for report in reports for row in report["targets"]),
        "comparisons": _distinct(c for report in reports for c in report.get("comparisons", [])),
        "evaluation": reports[0].get("evaluation", {}),
        "settings": settings,
        "notes": _notes(reports),
        "examples": _distinct(e for report in reports for e in report.get("examples", [])),
    }


def _pool_targets(rows: Iterable[Report]) -> list[Report]:
    pooled: dict[tuple[str, float, float], Report] = {}
    for row in rows:
        key = (row.get("task", ""), row["low"], row["high"])
        if key not in pooled:
            pooled[key] = dict(row)
            continue
        old = pooled[key]
        n = old["n"] + row["n"]
        right = sum(part["n"] * (part["accuracy"] or 0.0) for part in (old, row))
        old |= {"n": n, "accuracy": round(right / n, 6) if n else None}
    return [pooled[key] for key in sorted(pooled)]


def _notes(reports: Sequence[Report]) -> list[str]:
    """Return all notes; with several reports each says which one it is about."""
    if len(reports) == 1:
        return list(reports[0].get("notes", []))
    return [f"{report['name']}: {note}" for report in reports for note in report.get("notes", [])]


def _settings_keys(reports: Sequence[Report]) -> list[str]:
    return list(dict.fromkeys(key for report in reports for key in report.get("settings", {})))


def _joined(reports: Sequence[Report], key: str) -> str:
    return joined(r["settings"][key] for r in reports if key in r.get("settings", {}))


def _distinct(items: Iterable[Report]) -> list[Report]:
    kept: list[Report] = []
    for item in items:
        if item not in kept:
            kept.append(item)
    return kept
