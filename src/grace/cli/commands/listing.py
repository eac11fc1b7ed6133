"""`grace list`: what there is, as rows of name and about."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable
from pathlib import Path

from grace.errors import ConfigError, GraceError
from grace.store import RunDir

Rows = list[dict[str, str]]


def listing(what: str, path: Path) -> Rows:
    """Return the rows of one kind of thing.

    Raises:
        ConfigError: nothing of that kind can be listed.
    """
    kinds: dict[str, Callable[[], Rows]] = {
        "runs": lambda: _runs(path),
        "tasks": lambda: _plugins("tasks"),
        "estimators": lambda: _plugins("estimators"),
        "strategies": lambda: _plugins("strategies"),
        "engines": lambda: _plugins("engines"),
        "graders": _graders,
        "recipes": _recipes,
        "settings": _settings,
    }
    if what not in kinds:
        near = difflib.get_close_matches(what, kinds, n=1)
        guess = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(f"cannot list {what!r}; {guess}choose from {', '.join(kinds)}")
    return kinds[what]()


def _runs(path: Path) -> Rows:
    from grace.store import is_run

    folders = [config.parent for config in sorted(path.glob("**/config.json"))]
    return [{"name": str(f), "about": _state(f)} for f in folders if is_run(f)]


def _state(run: Path) -> str:
    from grace.pipeline import STAGES

    try:
        done = [stage for stage in STAGES if RunDir(run).manifest(stage) is not None]
    except GraceError as error:
        return f"broken: {error}; see `grace check {run}`"
    return "finished" if len(done) == len(STAGES) else f"done: {', '.join(done) or 'nothing'}"


def _plugins(folder: str) -> Rows:
    from grace.plugins import find

    return [
        {"name": name, "about": _first_line(plugin.file)}
        for name, plugin in sorted(find(f"grace.{folder}").items())
    ]


def _graders() -> Rows:
    from grace.grading import GRADERS

    rows = []
    for name, grader in GRADERS.items():
        about, *more = map(str.strip, (grader.__doc__ or "").splitlines())
        example = next((line for line in more if line.startswith("Example: ")), "")
        rows.append({"name": name, "about": f"{about} {example}".strip()})
    return rows


def _recipes() -> Rows:
    from grace.config import shipped_recipes

    return [
        {"name": name, "about": file.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")}
        for name, file in shipped_recipes().items()
    ]


def _settings() -> Rows:
    from grace.config import RunSettings, describe
    from grace.plugins import available, load

    rows = list(describe(RunSettings))
    for name in available("grace.estimators"):
        rows += describe(load("grace.estimators", name), f"estimators.{name}.")
    return [{"name": f"{key} = {default}", "about": doc} for key, default, doc in rows]


def _first_line(path: Path) -> str:
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]
