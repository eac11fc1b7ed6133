"""The registry: a folder, a name, a file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from grace import plugins
from grace.errors import ConfigError


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package of animals: two plug-ins, and five files that are none."""
    folder = tmp_path / "zoo_of_tests" / "animals"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    files = {
        "__init__": "ANIMAL = 'the package itself'",
        "lion": "import zoo_of_tests\nANIMAL = 'Lion'\n",
        "newt": "ANIMAL: str = 'Newt'\n",
        "_parts": "ANIMAL = 'hidden'",
        "food": "FOOD = 'hay'\n",
        "talk": "def f():\n    ANIMAL = 'local'\n",
        "ask": "if ANIMAL == 'x': pass\nANIMAL == 'y'\n",
    }
    for name, source in files.items():
        (folder / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    yield "zoo_of_tests.animals"
    for name in [name for name in sys.modules if name.startswith("zoo_of_tests")]:
        del sys.modules[name]


def test_listing_imports_no_plugin(package: str) -> None:
    plugins.find(package)
    assert not any(name.startswith(f"{package}.") for name in sys.modules)


def test_a_new_file_is_a_new_plugin(package: str, tmp_path: Path) -> None:
    (tmp_path / "zoo_of_tests" / "animals" / "crow.py").write_text("ANIMAL = 'Crow'\n")
    assert list(plugins.find(package)) == ["crow", "lion", "newt"]
    assert plugins.load(package, "crow") == "Crow"


def test_a_plugin_may_be_in_a_folder_below(package: str, tmp_path: Path) -> None:
    birds = tmp_path / "zoo_of_tests" / "animals" / "birds"
    birds.mkdir()
    (birds / "crow.py").write_text("ANIMAL = 'Crow'\n")
    assert list(plugins.find(package)) == ["crow", "lion", "newt"]
    assert plugins.load(package, "crow") == "Crow"
    (birds / "lion.py").write_text("ANIMAL = 'Sea lion'\n")
    with pytest.raises(ConfigError, match=r"two plug-ins have one name: .*lion.py, .*lion.py"):
        plugins.load(package, "crow")


def test_a_file_may_hold_a_family(package: str, tmp_path: Path) -> None:
    folder = tmp_path / "zoo_of_tests" / "animals"
    (folder / "cats.py").write_text('ANIMALS = {\n    "lynx": "Lynx",\n    "puma": "Puma",\n}\n')
    assert list(plugins.find(package)) == ["lion", "lynx", "newt", "puma"]
    assert plugins.load(package, "puma") == "Puma"
    (folder / "fish.py").write_text('ANIMALS: dict[str, str] = {"carp": "Carp"}\n')
    assert plugins.load(package, "carp") == "Carp"
    (folder / "lynx.py").write_text("ANIMAL = 'another'\n")
    with pytest.raises(ConfigError, match=r"two plug-ins have one name: .*cats.py, .*lynx.py"):
        plugins.find(package)


def test_an_unknown_name_is_answered_with_the_closest_and_the_list(package: str) -> None:
    with pytest.raises(
        ConfigError, match=r"unknown animal 'loin'; did you mean 'lion'\?.*lion, newt"
    ):
        plugins.load(package, "loin")
    with pytest.raises(ConfigError, match="unknown animal 'x'; known: lion, newt"):
        plugins.load(package, "x")


@pytest.mark.parametrize("name", ["_parts", "food", "../lion", "", "lion.py", "__init__"])
def test_another_file_or_a_path_is_no_plugin(package: str, name: str) -> None:
    with pytest.raises(ConfigError, match="unknown animal"):
        plugins.load(package, name)


def test_module_and_name_load_what_lives_outside(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert plugins.load(package, f"{package}.food:FOOD") == "hay"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "beast_of_tests.py").write_text(
        "def call():\n    from cave_of_tests import YETI\n    return YETI\n"
    )
    (elsewhere / "cave_of_tests.py").write_text("YETI = 'Yeti'\n")
    monkeypatch.chdir(elsewhere)
    before = [path for path in sys.path if path]  # "" stands for the current directory
    monkeypatch.setattr(sys, "path", list(before))
    with pytest.raises(ConfigError, match="nowhere_of_tests"):
        plugins.load(package, "nowhere_of_tests:YETI")
    assert sys.path == before
    assert plugins.load(package, "beast_of_tests:call")() == "Yeti"
    assert sys.path == [*before, str(elsewhere)]


def test_what_cannot_be_loaded_from_outside_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_of_tests.py").write_text("1 / 0\n")
    (tmp_path / "fine_of_tests.py").write_text("LYNX = 1\n")
    monkeypatch.chdir(tmp_path)
    cases = {
        "nowhere_of_tests:X": "ModuleNotFoundError: No module named 'nowhere_of_tests'",
        "broken_of_tests:X": "ZeroDivisionError: division by zero",
        "fine_of_tests:LINX": "has no 'LINX'; did you mean 'LYNX'",
        "fine_of_tests:": "not of the form module:NAME",
        ":X": "not of the form module:NAME",
        "..:X": "cannot be loaded",
    }
    for reference, message in cases.items():
        with pytest.raises(ConfigError, match=message) as caught:
            plugins.load_object(reference)
        assert "\n" not in str(caught.value)


def test_a_module_that_leaves_the_program_is_said_to_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "leaving_of_tests.py").write_text("raise SystemExit(3)\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="cannot be loaded: SystemExit: 3"):
        plugins.load_object("leaving_of_tests:X")


def test_files_name_only_modules_that_the_user_has_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRACE_TRUST", "lions, tigers")
    code = plugins.code_in(["sciq", "lions:A", "bears:B", "bears:C"])
    assert code == ["lions", "bears"]
    plugins.refuse_code(["lions", "tigers"], "x.json")
    with pytest.raises(ConfigError, match=r"x.json wants to run Python code: bears;.*=bears in"):
        plugins.refuse_code(code, "x.json")
    plugins.trust(["bears"])
    plugins.refuse_code(code, "x.json")
