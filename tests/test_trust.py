"""What others may have written names no code: a run, an adapter, an exported model."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import grace
from grace.chat import encode_chat
from grace.cli import main
from grace.errors import ConfigError, ModelError

PLANTED = "planted_by_others"


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that exists once the planted module, found from here, was imported."""
    mark = tmp_path / "imported"
    code = f"from pathlib import Path\nPath({str(mark)!r}).touch()\nX = 1\n"
    (tmp_path / f"{PLANTED}.py").write_text(code)
    monkeypatch.setenv("GRACE_TRUST", "tiny_run")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield mark
    sys.modules.pop(PLANTED, None)


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    """The tiny run as if downloaded."""
    return Path(shutil.copytree(finished / "run", tmp_path / "run"))


def spoil(file: Path, section: str, name: str, value: object) -> None:
    content = json.loads(file.read_text())
    (content[section] if section else content)[name] = value
    file.write_text(json.dumps(content))


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    error = capsys.readouterr().err
    assert (stopped.value.code, error.count("\n")) == (2, 1), error
    return error


def test_a_loaded_adapter_names_no_code_of_its_own(copy: Path, mark: Path) -> None:
    spoil(copy / "adapter" / "grace.json", "data", "task", f"{PLANTED}:X")
    for path in (copy, copy / "adapter"):
        with pytest.raises(ConfigError, match=f"grace.json wants to run Python code: {PLANTED};"):
            grace.load(path)
    assert not mark.exists()
    with pytest.raises(ConfigError, match="cannot serve as a task"):  # it was imported: the say
        grace.load(copy, trust_remote_code=True)
    assert mark.exists()


@pytest.mark.parametrize("command", ["ask", "serve", "score", "label"])
def test_no_command_imports_what_an_adapter_names(
    command: str, copy: Path, mark: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(copy / "adapter" / "grace.json", "data", "task", f"{PLANTED}:X")
    lines = copy.parent / "lines.jsonl"
    lines.write_text('{"question": "a", "response": "b"}\n')
    given = {
        "ask": [str(copy), "q"],
        "serve": [str(copy), "--port", "0"],
        "score": [str(copy), str(lines)],
        "label": [str(lines), str(copy.parent / "out"), "--model", str(copy)],
    }
    error = fails(capsys, command, *given[command])
    assert f"GRACE_TRUST={PLANTED}" in error
    assert not mark.exists()


SETTINGS = [
    ("data", "task", f"{PLANTED}:X"),
    ("model", "engine", f"{PLANTED}:X"),
    ("grade", "grader", f"{PLANTED}:X"),
    ("report", "estimators", ["grace", f"{PLANTED}:X"]),
    ("report", "transfer", [f"{PLANTED}:X"]),
]


@pytest.mark.parametrize("section, name, value", SETTINGS)
@pytest.mark.parametrize("command", ["run", "scale", "threshold --target-accuracy 0.7", "train"])
def test_no_command_imports_what_a_runs_settings_name(
    command: str,
    section: str,
    name: str,
    value: object,
    copy: Path,
    mark: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = json.loads((copy / "config.json").read_text())
    config["settings"].setdefault(section, {})[name] = value
    (copy / "config.json").write_text(json.dumps(config))
    error = fails(capsys, *command.split(), str(copy))
    assert f"config.json wants to run Python code: {PLANTED};" in error
    assert not mark.exists()


def test_a_runs_settings_do_not_trust_a_models_own_code(
    copy: Path, mark: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads((copy / "config.json").read_text())
    config["settings"]["model"]["trust_remote_code"] = True
    (copy / "config.json").write_text(json.dumps(config))
    path = config["settings"]["model"]["path"]
    assert f"wants to run Python code: {path};" in fails(capsys, "run", str(copy))


def test_code_named_in_the_command_runs(
    copy: Path, mark: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = fails(capsys, "run", str(copy), "--set", f"data.task={PLANTED}:X")
    assert "cannot serve as a task" in error
    assert mark.exists()


@pytest.mark.parametrize("place", ["adapter", "base model"])
def test_what_peft_would_import_is_refused(
    place: str, copy: Path, finished: Path, mark: Path
) -> None:
    config = copy / "adapter" / "adapter_config.json"
    if place == "base model":  # a folder in the run of others, where peft looks for an adapter too
        base = Path(shutil.copytree(finished / "model", copy / "base"))
        for name in (config.name, "adapter_model.safetensors"):
            shutil.copy(copy / "adapter" / name, base / name)
        spoil(copy / "adapter" / "grace.json", "", "base_model", str(base))
        config = base / config.name
    spoil(config, "", "megatron_config", {"tensor_model_parallel_size": 1})
    spoil(config, "", "megatron_core", PLANTED)
    with pytest.raises(ModelError, match=r"adapter_config.json.*Megatron"):
        grace.load(copy / "adapter")
    assert not mark.exists()


def test_a_models_own_code_needs_the_users_word(copy: Path, finished: Path, mark: Path) -> None:
    model = shutil.copytree(finished / "model", copy.parent / "model")
    (model / "own.py").write_text((copy.parent / f"{PLANTED}.py").read_text())
    spoil(model / "config.json", "", "model_type", "own")
    spoil(model / "config.json", "", "auto_map", {"AutoConfig": "own.Config"})
    spoil(model / "tokenizer_config.json", "", "auto_map", {"AutoTokenizer": ["own.T", None]})
    with pytest.raises(ModelError):
        grace.load(model)
    assert not mark.exists()


def test_a_model_named_in_the_environment_runs_its_own_code(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As docs/serving.md says; `grace ask`, `grace serve` and `grace export` have no --set."""
    model = shutil.copytree(finished / "model", tmp_path / "model")
    spoil(model / "config.json", "", "model_type", "own")
    own = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Model"}
    spoil(model / "config.json", "", "auto_map", own)
    (model / "own.py").write_text(
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        "class Own(LlamaConfig):\n    model_type = 'own'\n"
        "class Model(LlamaForCausalLM):\n    config_class = Own\n"
    )
    adapter = shutil.copytree(finished / "run" / "adapter", tmp_path / "adapter")
    spoil(adapter / "grace.json", "", "base_model", str(model))
    with pytest.raises(ModelError, match=f"code of its own; .*GRACE_TRUST={model} in the"):
        grace.load(adapter)
    monkeypatch.setenv("GRACE_TRUST", f"tiny_run,{model}")
    wanted = grace.load(finished / "run").ask("Who wrote Middlemarch?")
    assert grace.load(adapter).ask("Who wrote Middlemarch?") == wanted
    with pytest.raises(SystemExit) as stopped:
        main(["export", str(adapter), str(tmp_path / "out")])
    assert stopped.value.code == 0


def test_a_chat_template_reaches_no_python(finished: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(finished / "model")
    tokenizer.chat_template = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    with pytest.raises(ModelError, match=r"refuses these messages.*unsafe"):
        encode_chat(tokenizer, [{"role": "user", "content": "x"}])
