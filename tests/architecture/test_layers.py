"""Imports only point down, siblings in a layer do not import each other, and there is no circle."""

import ast
from pathlib import Path

from sources import FILES, PACKAGE, nodes

PARTS = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in FILES}

# From the top: a module may import only from lines below its own.
LAYERS = [
    {"cli", "inspection"},
    {"server"},
    {"model", "pipeline", "export", "measuring"},
    {"tasks", "estimators", "report"},
    {"methods"},
    {"grading", "probe", "pocket", "scaling"},
    {"engines", "strategies"},
    {
        "answers",
        "config",
        "store",
        "plugins",
        "calibration",
        "thresholds",
        "cnf",
        "chat",
        "evidence",
        "progress",
    },
    {"records", "metrics"},
    {"errors"},
    {"notebook"},
]


def _unit(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _imports(path: Path) -> set[str]:
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("grace."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.ImportFrom) and node.module == "grace":
            found |= {alias.name for alias in node.names} & PARTS
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith("grace.")]
            found |= {name.split(".")[1] for name in names}
    return found


def _depth(unit: str) -> int:
    return next(depth for depth, layer in enumerate(LAYERS) if unit in layer)


def test_every_module_has_a_layer():
    units = PARTS - {"__init__"}
    assert units == set().union(*LAYERS)


def test_imports_only_point_down():
    wrong = [
        f"{path.relative_to(PACKAGE)} imports grace.{target}"
        for path in FILES
        if _unit(path) != "__init__"
        for target in _imports(path)
        if target != _unit(path) and _depth(target) <= _depth(_unit(path))
    ]
    assert wrong == []


def _module(path: Path, root: Path) -> str:
    """Return the dotted name of a file below the package `grace`, "" for the package itself."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(path: Path, modules: set[str]) -> set[str]:
    """Return the modules that a file imports anywhere, also in functions and for types alone."""
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "grace":
            module = (node.module or "").partition(".")[2]
            named = {f"{module}.{alias.name}".lstrip(".") for alias in node.names}
            found |= (named & modules) or {module}
        elif isinstance(node, ast.Import):
            found |= {alias.name.removeprefix("grace.") for alias in node.names}
    return found & modules - {""}  # `grace` itself holds the version and passes names on


def _circles(root: Path) -> list[set[str]]:
    """Return the sets of modules that import each other, directly or through others."""
    files = {_module(path, root): path for path in root.rglob("*.py")}
    imports = {name: _imported(path, {*files}) - {name} for name, path in files.items()}
    reached: dict[str, set[str]] = {}
    for name in files:
        left, reached[name] = [name], set()
        while left:
            new = imports[left.pop()] - reached[name]
            reached[name] |= new
            left += new
    found = {frozenset(m for m in reached[n] if n in reached[m]) for n in files if n in reached[n]}
    return sorted(map(set, found), key=min)


def test_imports_form_no_circle():
    assert _circles(PACKAGE) == []


def test_a_circle_is_found_in_a_function_and_for_types_and_through_a_third_module(tmp_path):
    for name, line in {
        "__init__": "from grace.a import f",
        "a": "def f():\n    from grace import b",
        "b": "if TYPE_CHECKING:\n    from grace.c.d import x",
        "c/__init__": "",
        "c/d": "import grace.a, grace",
        "e": "from grace.b import f",
    }.items():
        file = tmp_path / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(line)
    assert _circles(tmp_path) == [{"a", "b", "c.d"}]


def test_what_shows_a_report_reads_its_rows_and_not_what_they_are_made_from():
    made_by = {"inputs", "summary", "significance"}
    folder = PACKAGE / "report"
    reads = {
        ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__"): {
            ".".join(parts)
            for node in nodes(path)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("grace.report")
            for module in [node.module.split(".")[2:]]
            for parts in [module, *([*module, alias.name] for alias in node.names)]
        }
        for path in folder.rglob("*.py")
    }
    shows = set(reads) - made_by - {"__init__"}
    assert {name: found & made_by for name, found in reads.items() if name in shows} == {
        name: set() for name in shows
    }
    for name in made_by:
        known = made_by | {"names", "rows"}
        assert reads[name] & set(reads) <= known, name
