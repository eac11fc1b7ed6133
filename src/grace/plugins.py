"""Plug-ins: a task, an estimator, a strategy or an engine is one file in its folder.

A plug-in of `grace.tasks` is a file NAME.py, there or in a folder below, that assigns `TASK` at top
level; one of `grace.estimators` assigns `ESTIMATOR`, and so on: the folder's name in the singular,
in upper case. A family of several is a file that assigns their names, `ESTIMATORS = {"name": ...}`.
Files without such an assignment, or with a name that starts with an underscore, are not plug-ins. A
plug-in outside the package is named `module:NAME`, e.g. `my_tasks:RIDDLES`.

Importing a module runs its code. A user may name modules in a command, a recipe or Python; names
that others may have written, such as the settings of a run or an adapter, must pass `refuse_code`.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import difflib
import functools
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from grace.errors import ConfigError, GraceError, packages_for

TRUSTED = "GRACE_TRUST"
"""Environment variable: modules that files may name, and models whose own code may run."""


class Plugin(NamedTuple):
    """The module of a plug-in and its file."""

    module: str
    file: Path


def find(package: str) -> dict[str, Plugin]:
    """Return the plug-ins of a package by name, sorted, without importing them."""
    one, family = _attributes(package)
    plugins: dict[str, Plugin] = {}
    for folder in _folders(package):
        for file in sorted(folder.rglob("*.py")):
            if file.name.startswith("_"):
                continue
            seen = file.stat()
            for name in _assigned(file, (seen.st_mtime_ns, seen.st_size), one, family):
                if name in plugins:
                    raise ConfigError(f"two plug-ins have one name: {plugins[name].file}, {file}")
                parts = file.relative_to(folder).with_suffix("").parts
                plugins[name] = Plugin(".".join((package, *parts)), file)
    return dict(sorted(plugins.items()))


def load(package: str, name: str) -> Any:
    """Return the plug-in `name` of a package, or the object at `module:NAME`."""
    if ":" in name:
        return load_object(name)
    known, (one, family) = find(package), _attributes(package)
    kind = one.lower()
    if name not in known:
        raise ConfigError(f"unknown {kind} {name!r}{suggest(name, list(known))}")
    with packages_for(f"{kind} {name}"):
        module = importlib.import_module(known[name].module)
    members = getattr(module, family, {})
    return members[name] if name in members else getattr(module, one)


def load_class(package: str, name: str, *methods: str) -> type[Any]:
    """Return the plug-in `name` of a package, a dataclass whose fields are its settings."""
    found = load(package, name)
    lacks = not dataclasses.is_dataclass(found) or any(not hasattr(found, one) for one in methods)
    if not isinstance(found, type) or lacks:
        kind, wanted = _attributes(package)[0].lower(), " and ".join(f"{one}()" for one in methods)
        raise ConfigError(
            f"{name!r} is no {kind}: it must be a dataclass with {wanted}, the class itself and no "
            "object of it"
        )
    return found


def load_object(reference: str) -> Any:
    """Return the object at `module:NAME`; the current directory then stays in `sys.path`."""
    module_name, _, name = reference.partition(":")
    if not module_name or not name:
        raise ConfigError(f"{reference!r} is not of the form module:NAME, e.g. my_module:my_name")
    module = _import(module_name, reference)
    if not hasattr(module, name):
        public = [known for known in vars(module) if not known.startswith("_")]
        raise ConfigError(f"module {module_name!r} has no {name!r}{suggest(name, public)}")
    return getattr(module, name)


@contextlib.contextmanager
def own_code(name: str, what: str, remedy: str) -> Iterator[None]:
    """Turn any exception of a user's own code into one line; that of a plug-in of ours stays."""
    try:
        yield
    except GraceError:
        raise
    except Exception as error:  # a user's own code raises whatever it likes
        if ":" not in name:
            raise
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise ConfigError(
            f"{what} ({type(error).__name__}: {error}, at {place.filename}:{place.lineno}); "
            f"{remedy}"
        ) from error


def code_in(names: Iterable[str]) -> list[str]:
    """Return the modules among these names, each once: those of `module:NAME`."""
    return list(dict.fromkeys(name.partition(":")[0] for name in names if ":" in name))


def trust(code: Iterable[str]) -> None:
    """Allow files to name modules that the user has named, here and in processes from here."""
    os.environ[TRUSTED] = ",".join(dict.fromkeys([*_trusted(), *code]))


def refuse_code(code: Iterable[str], where: object) -> None:
    """Refuse a file that names modules, or a model's own code, which the user has not allowed."""
    for name in code:
        if name not in _trusted():
            raise ConfigError(
                f"{where} wants to run Python code: {name}; if you know what it does, allow it: "
                f"{TRUSTED}={name} in the environment"
            )


def trusts(model: str | Path) -> bool:
    """Return whether the user has allowed this model's own code, by its path or Hub id."""
    return str(model) in _trusted()


def _trusted() -> list[str]:
    return [name.strip() for name in os.environ.get(TRUSTED, "").split(",") if name.strip()]


def _import(module_name: str, reference: str) -> Any:
    here = str(Path.cwd())
    added = here not in sys.path and "" not in sys.path
    if added:
        sys.path.append(here)
    try:
        return importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        if added:
            sys.path.remove(here)
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ConfigError(
            f"{reference!r} cannot be loaded: {reason}; run from the module's folder or install it"
        ) from error


def _attributes(package: str) -> tuple[str, str]:
    """Return the names of what a file with one plug-in assigns, and a file with several."""
    folder = package.rpartition(".")[2].upper()
    return folder[:-3] + "Y" if folder.endswith("IES") else folder.removesuffix("S"), folder


@functools.cache
def _assigned(file: Path, seen: tuple[int, int], one: str, family: str) -> list[str]:
    """Return the names of the plug-ins in a file, which is read again once it has changed."""
    names: list[str] = []
    for node in ast.parse(file.read_bytes()).body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            assigned = [getattr(target, "id", "") for target in targets]
            names += [file.stem] if one in assigned else []
            if family in assigned and isinstance(node.value, ast.Dict):
                names += [ast.literal_eval(key) for key in node.value.keys if key]
    return names


def _folders(package: str) -> list[Path]:
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"there is no package {package!r} to look for plug-ins in")
    return [Path(folder) for folder in spec.submodule_search_locations]


def suggest(name: str, known: Sequence[str], own: str = "module:NAME") -> str:
    """Return the end of an error message about an unknown name: the closest name and all names."""
    near = difflib.get_close_matches(name, known, n=1)
    guess = f"; did you mean {near[0]!r}?" if near else ";"
    return f"{guess} known: {', '.join(known) or 'none'}, or {own} for one of your own"
