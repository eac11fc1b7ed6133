"""Imports only point down, and siblings in a layer do not import each other."""

import ast
from pathlib import Path

import grace

PACKAGE = Path(grace.__file__).parent
PARTS = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in PACKAGE.rglob("*.py")}

# From the top: a module may import only from lines below its own.
LAYERS = [
    {"cli", "inspection"},
    {"server", "running"},
    {"model", "pipeline", "export", "measuring"},
    {"tasks", "training", "estimators", "report"},
    {"grading", "probe", "pocket", "scaling"},
    {"engines", "strategies"},
    {
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
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
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
        for path in sorted(PACKAGE.rglob("*.py"))
        if _unit(path) != "__init__"
        for target in _imports(path)
        if target != _unit(path) and _depth(target) <= _depth(_unit(path))
    ]
    assert wrong == []


def test_what_shows_a_report_reads_its_rows_and_not_what_they_are_made_from():
    made_by = {"inputs", "summary", "summary.significance", "summary.votes"}
    folder = PACKAGE / "report"
    reads = {
        ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__"): {
            ".".join(parts)
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
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
        known = made_by | {"names", "rows", "rows.answers", "rows.votes"}
        assert reads[name] & set(reads) <= known, name
