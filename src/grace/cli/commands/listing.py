"""`grace list`: rows with the name of a thing and what it is."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import json
import shutil
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from grace.cli.options import Json, examples
from grace.errors import ConfigError, GraceError
from grace.store import RunDir, runs_in

Rows = list[dict[str, str]]

EXAMPLES = examples("grace list settings", "grace list runs --path experiments")


def list_(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="heads, tasks, estimators, strategies, engines, graders, recipes, settings or "
            "runs.",
        ),
    ] = "runs",
    path: Annotated[Path, typer.Option(help="Folder in which to look for runs.")] = Path("runs"),
    as_json: Json = False,
) -> None:
    """List your runs, or what is built in: heads, tasks, estimators, settings, ..."""
    rows = listing(what, path)
    if as_json:
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    if not rows:
        print(f"no {what} found" + f" in {path}; `grace demo` makes some" * (what == "runs"))
    # Neither a terminal nor COLUMNS: one line a row, for grep.
    for line in columns(rows, shutil.get_terminal_size(fallback=(100_000, 24)).columns):
        print(line)


def columns(rows: Rows, width: int) -> Iterator[str]:
    """Yield the lines of two columns, wrapped at `width` characters.

    A name that is longer than two fifths of the width has a line of its own.
    """
    left = min(max((len(row["name"]) for row in rows), default=0), width * 2 // 5)
    for row in rows:
        name, about = row["name"], row["about"]
        if about and len(name) > left:
            yield from textwrap.wrap(name, width, subsequent_indent="    ", break_long_words=False)
            name = ""
        yield from textwrap.wrap(
            about,
            width,
            initial_indent=f"{name:<{left}}  ",
            subsequent_indent=" " * (left + 2),
            break_long_words=False,
            break_on_hyphens=False,
        ) or [name]


def listing(what: str, path: Path) -> Rows:
    """Return the rows of one kind of thing."""
    kinds: dict[str, Callable[[], Rows]] = {
        "runs": lambda: [{"name": str(run), "about": _state(run)} for run in runs_in(path)],
        "heads": _heads,
        "tasks": lambda: _plugins("tasks"),
        "estimators": lambda: _plugins("estimators"),
        "strategies": _strategies,
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


def _state(run: Path) -> str:
    from grace.pipeline import STAGES

    directory = RunDir(run)
    done = [stage for stage in STAGES if directory.done(stage)]
    try:
        for stage in done:
            directory.manifest(stage)
    except GraceError as error:
        return f"broken: {error}; see `grace run {run} --dry-run`"
    return "finished" if len(done) == len(STAGES) else f"done: {', '.join(done) or 'nothing'}"


def _heads() -> Rows:
    from grace.model.ready import known_heads

    rows = []
    for folder, ready in known_heads():
        weights, names = ready["weights"], [one["name"] for one in ready["sources"]]
        about = f"{weights['file']} (sha256 {weights['sha256'][:16]}...)"
        rows.append({"name": folder.name, "about": f"{about}, fitted on {', '.join(names)}"})
    return rows


def _plugins(folder: str) -> Rows:
    from grace.plugins import find

    return [
        {"name": name, "about": _about(name, plugin.file)}
        for name, plugin in find(f"grace.{folder}").items()
    ]


def _strategies() -> Rows:
    """Under the names that commands take, with the settings that may follow a name."""
    from grace.plugins import find
    from grace.strategies import policy

    rows = []
    for name, plugin in find("grace.strategies").items():
        shown, strategy, _ = policy(name)
        fields = [field for field in dataclasses.fields(cast(Any, strategy)) if field.repr]
        settings = [f"{field.name}={getattr(strategy, field.name)}" for field in fields]
        about = [_about(name, plugin.file), f"Settings: {', '.join(settings)}." if settings else ""]
        rows.append({"name": shown, "about": " ".join(about).strip()})
    return rows


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
    from grace.plugins import find, load

    rows = list(describe(RunSettings))
    for name in find("grace.estimators"):
        rows += describe(load("grace.estimators", name), f"estimators.{name}.")
    return [{"name": f"{key} = {default}", "about": doc} for key, default, doc in rows]


def _about(name: str, file: Path) -> str:
    """Return the first line about a plug-in: that of its class, if its file has several."""
    tree: Any = ast.parse(file.read_text(encoding="utf-8"))
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == name:
                    tree = classes.get(getattr(value, "id", ""), tree)
    return (ast.get_docstring(tree) or "").partition("\n")[0]
