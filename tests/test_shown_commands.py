"""What README, docs and help texts show to be typed is taken by the program that it is typed for.

Nothing runs here: each command line is parsed by its own program's parser. `tests/cli/
test_tutorial.py` runs those of the tutorial and the README.
"""

from __future__ import annotations

import argparse
import itertools
import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
import typer

from grace.cli import USAGE_ERROR, app
from grace.cli.options import listed
from grace.config import override_settings, read_recipe
from grace.errors import GraceError
from grace.pipeline import study as studies
from grace.strategies import policy

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")),
    ROOT / "src/grace/pocket/README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PROGRAMS = ("grace", "make", "pytest", "python")
PLACEHOLDER = re.compile(r"[A-Z]+")  # RUN, N: a reader puts something there


class Shown(NamedTuple):
    """A command line; `whole` where it stands on a line of its own, to be copied."""

    words: list[str]
    whole: bool


def shell_lines(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the lines of blocks without a language or set in by four spaces, and inline code."""
    text = re.sub(r"\\\n *", " ", text)
    for language, block in BLOCK.findall(text):
        if not language:
            yield from ((line, True) for line in block.splitlines())
    prose = BLOCK.sub("", text)
    yield from ((line, True) for line in re.findall(r"^ {4}(\S.*)$", prose, re.MULTILINE))
    yield from ((" ".join(code.split()), False) for code in re.findall(r"`([^`]+)`", prose))


def commands(text: str) -> Iterator[Shown]:
    """Yield the command lines of our programs, `grace` also behind a launcher such as torchrun."""
    for line, whole in shell_lines(text):
        try:
            words = shlex.split(line, comments=True)
        except ValueError:  # an apostrophe: no command
            continue
        while words and re.match(r"[A-Z_]+=", words[0]):
            words.pop(0)
        pairs = list(itertools.pairwise(words))
        inside = [n for n, (one, two) in enumerate(pairs) if one == "grace" and two in COMMANDS]
        if inside and whole:
            words = words[inside[-1] :]
        if len(words) > 1 and words[0] in PROGRAMS:
            yield Shown(words, whole)


def grace_takes(shown: Shown) -> None:
    """Parse with the command's own parser; look up the names that it leaves to the library."""
    _, name, *given = shown.words
    command = COMMANDS[name]
    given = ["1" if PLACEHOLDER.fullmatch(word) else word for word in given]
    values = {o for p in command.params if not getattr(p, "is_flag", False) for o in p.opts}
    if not shown.whole and given and given[-1] in values:
        given.append("1")
    try:
        found = command.make_context(name, given).params
    except USAGE_ERROR as error:
        assert not shown.whole and type(error).__name__ == "MissingParameter", error
        return
    except typer.Exit:  # --help
        return
    override_settings({}, found.get("settings") or [])
    if found.get("recipe"):
        read_recipe(found["recipe"])
    strategies = found.get("strategy") or []
    if name == "run" and shown.whole and (found["recipe"] or found["model"]):
        resolve_run(found)
    for strategy in listed([strategies] if isinstance(strategies, str) else strategies):
        policy(strategy)


def resolve_run(found: dict[str, Any]) -> None:
    """Resolve the settings of a new run, of a model and questions that need not be there."""
    task = found["task"] or ("jsonl" if found["file"] else None)
    named = {"model": found["model"], "task": task}
    checks = ("check_place", "check_names", "check_questions")
    with mock.patch.multiple(studies, **{name: mock.Mock() for name in checks}):
        more = found["settings"] or []
        studies.resolve(Path("none"), found["recipe"], named, more, seeds=found["seeds"])


def make_takes(shown: Shown) -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for word in shown.words[1:]:
        variable, assigned, _ = word.partition("=")
        pattern = rf"\b{variable}\b" if assigned else rf"^{word}:"
        assert re.search(pattern, makefile, re.MULTILINE), word


def pytest_takes(shown: Shown) -> None:
    options = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["pytest"]
    markers = {marker.partition(":")[0] for marker in options["ini_options"]["markers"]}
    for before, word in itertools.pairwise(shown.words):
        if before == "-m":
            assert word in markers
        elif not word.startswith("-"):
            assert (ROOT / word).exists()


class ParsedError(Exception):
    """The script has understood its arguments; what it does with them is not wanted."""


def python_takes(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a script up to where it has parsed its arguments."""
    parse = argparse.ArgumentParser.parse_args

    def parse_only(parser: argparse.ArgumentParser) -> None:
        parse(parser)
        raise ParsedError

    def refuse(_: argparse.ArgumentParser, message: str) -> None:
        required = message.startswith("the following arguments are required")
        raise ParsedError if required and not shown.whole else AssertionError(message)

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_only)
    monkeypatch.setattr(argparse.ArgumentParser, "error", refuse)
    script, *given = shown.words[1:]
    module = given.pop(0) if script == "-m" else ""
    monkeypatch.setattr(sys, "argv", [script, *given])
    monkeypatch.syspath_prepend(ROOT if module else (ROOT / script).parent)
    with pytest.raises(ParsedError):
        if module:
            monkeypatch.delitem(sys.modules, module, raising=False)  # if a test has imported it
            runpy.run_module(module, run_name="__main__")
        else:
            runpy.run_path(str(ROOT / script), run_name="__main__")


CHECKS = {"grace": grace_takes, "make": make_takes, "pytest": pytest_takes}


def takes(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    if shown.words[0] == "python":
        with monkeypatch.context() as patch:
            python_takes(shown, patch)
    else:
        CHECKS[shown.words[0]](shown)


def texts() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        yield page.relative_to(ROOT).as_posix(), page.read_text("utf-8")
    for name, command in COMMANDS.items():
        lines = re.findall(r"\[bold\](.+?)\[/bold\]", command.epilog or "")
        yield f"grace {name} --help", "".join(f"    {line}\n" for line in lines)


TEXTS = dict(texts())


@pytest.mark.parametrize("where", TEXTS)
def test_every_command_shown_is_taken(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for shown in commands(TEXTS[where]):
        takes(shown, monkeypatch)


@pytest.mark.parametrize(
    "where", ["README.md", "docs/tutorial.md", "docs/serving.md", "docs/exporting.md"]
)
def test_the_commands_of_a_page_are_found(where: str) -> None:
    assert sum(shown.whole for shown in commands(TEXTS[where])) >= 4


def test_make_bench_runs_scripts_that_are_there() -> None:
    listed = re.search(r"for name in (.+); do", (ROOT / "Makefile").read_text("utf-8"))
    assert listed is not None
    assert [name for name in listed[1].split() if not (ROOT / f"bench/{name}.py").exists()] == []


@pytest.mark.parametrize(
    "line",
    [
        "grace answer runs/qwen",
        "grace ask runs/qwen",
        "grace ask runs/qwen 'Who?' --budgets 8",
        "grace ask runs/qwen 'Who?' --strategy guess",
        "grace threshold RUN --target-accuracy high",
        "grace run runs/qwen --recipe paper/none",
        "grace run runs/qwen --set train.epoch=5",
        "grace run runs/sums --recipe pocket-steps --task sciq",
        "GRACE_TRUST=mine torchrun --no-python grace train",
        "make nothing",
        "make real FOLDER=DIR",
        "pytest tests/test_nothing.py",
        "pytest -m slowest",
        "python bench/replay.py --rows 3",
        "python tools/nothing.py",
    ],
)
def test_a_wrong_command_is_noticed(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (shown,) = commands(f"```\n{line}  # of a page\n```")
    with pytest.raises((AssertionError, GraceError, KeyError, OSError)):
        takes(shown, monkeypatch)
