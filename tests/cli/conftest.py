"""The command line in this process, and directories with something wrong in them."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from grace.cli import main


class Result(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


Grace = Callable[..., Result]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Grace:
    """Run `grace ARGUMENTS` in this process."""

    def run(*arguments: object) -> Result:
        with pytest.raises(SystemExit) as stopped:
            main([str(argument) for argument in arguments])
        shown = capsys.readouterr()
        return Result(int(stopped.value.code or 0), shown.out, shown.err)

    return run


@pytest.fixture(scope="session")
def once() -> Callable[..., str]:
    """Run `grace ARGUMENTS` in this process, which must succeed, and return what it printed."""

    def run(*arguments: object) -> str:
        with (
            contextlib.redirect_stdout(io.StringIO()) as shown,
            pytest.raises(SystemExit) as stopped,
        ):
            main([str(argument) for argument in arguments])
        assert not stopped.value.code
        return shown.getvalue()

    return run


@pytest.fixture(scope="session")
def places(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Directories by name: good ones, and copies with one thing wrong each."""
    root = tmp_path_factory.mktemp("places")
    made = {name: finished / name for name in ("model", "run")}

    def copy(source: Path, name: str, without: str = "") -> Path:
        made[name] = root / name
        shutil.copytree(source, made[name], ignore=shutil.ignore_patterns(without))
        return made[name]

    def adapter(name: str, **changes: Any) -> None:
        card = copy(finished / "run" / "adapter", name) / "grace.json"
        card.write_text(json.dumps(json.loads(card.read_text()) | changes))

    copy(finished / "model", "no_tokenizer", "tokenizer*")
    copy(finished / "model", "no_weights", "*.safetensors")
    copy(finished / "run", "unfinished", "adapter")
    (made["unfinished"] / "report.json").unlink()
    (copy(finished / "run", "torn_threshold") / "threshold.json").write_text('{"tau": 0.5}')
    (copy(finished / "run", "unscored") / "stages" / "report.json").unlink()
    copy(finished / "run" / "adapter", "foreign_adapter", "grace.json")
    adapter("choice_adapter", data={"task": "arc_challenge", "system": "Choose."})
    adapter("open_adapter", data={"task": "trivia_qa"})
    adapter("odd_adapter", data={"task": "jsonl", "colour": "red"})
    adapter("moved_adapter", base_model="/gone/model")
    adapter("torn_adapter")
    (made["torn_adapter"] / "grace.json").write_text('{"base_model": ')
    copy(finished / "model", "torn_weights").joinpath("model.safetensors").write_bytes(b"torn")
    copy(finished / "model", "torn_config").joinpath("config.json").write_text("{")
    for name, template in (("refusing", "{{ raise_exception('no thanks') }}"), ("garbled", "{% x")):
        copy(finished / "model", name).joinpath("chat_template.jinja").write_text(template)
    reports = {"torn_report": '{"rows": [', "odd_report": '{"a": 1}', "list_report": "[]"}
    for name, text in reports.items():
        made[name] = root / name
        made[name].mkdir()
        (made[name] / "report.json").write_text(text)
    made["empty"] = root / "empty"
    made["empty"].mkdir()
    shutil.copytree(finished / "run", root / "runs" / "seed-0")
    made["runs"] = root / "runs"
    return made
