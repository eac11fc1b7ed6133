"""Every command that takes a model takes a GGUF file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tiny_gguf
import tiny_models
import tiny_run


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A GGUF file, named from the folder it is in, with a cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    model, tokenizer = tiny_models.model("llama_untied"), tiny_models.tokenizer()
    return tiny_gguf.write(tmp_path / "tiny.gguf", model, tokenizer)


def test_a_gguf_file_goes_through_every_command(
    file: Path, tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions = tiny_run.write_questions(tmp_path / "questions.jsonl")
    arguments = tiny_run.run_arguments(Path("run"), Path("tiny.gguf"), questions)
    planned = cli(*arguments, "--dry-run")
    assert planned.code == 0 and "report" in planned.out, planned.err
    assert not (tmp_path / "cache").exists() and not Path("run").exists()  # nothing is unpacked
    ran = cli(*arguments)
    assert ran.code == 0, ran.err
    assert ran.err.count("unpacking") == 1 and "Converting" not in ran.err
    monkeypatch.chdir("/")
    run = tmp_path / "run"
    card = json.loads((run / "adapter" / "grace.json").read_text())
    assert card["base_model"] == str(file)
    asked = cli("ask", run, "What is 1?", "--json")
    lines = [{"question": "What is 1?", "response": "one"}]
    tiny_run.write_lines(tmp_path / "answers.jsonl", lines)
    for arguments in (
        ("score", run, tmp_path / "answers.jsonl"),
        ("export", run, tmp_path / "merged"),
        ("label", questions, tmp_path / "labelled", "--model", run),
        ("label", questions, tmp_path / "by-base", "--model", file, "--set", "data.prompt=short"),
    ):
        result = cli(*arguments)
        assert result.code == 0 and "unpacking" not in result.err, (arguments, result.err)
    again = cli("ask", tmp_path / "merged", "What is 1?", "--json")
    ours, merged = json.loads(asked.out), json.loads(again.out)
    assert ours["text"] == merged["text"]
    # an export that carries a block to the end is as close as tests/export/test_widening.py says
    assert ours["confidence"] == pytest.approx(merged["confidence"], abs=1e-4)
    assert 'license: "apache-2.0"' in (tmp_path / "merged" / "README.md").read_text()


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"PK not gguf", "is not a GGUF file"), (None, "does not exist"), (b"GGUF\x03", "cut short")],
)
def test_a_bad_file_is_one_line_and_exit_code_2(
    tmp_path: Path, cli: Any, content: bytes | None, says: str
) -> None:
    questions = tiny_run.write_questions(tmp_path / "questions.jsonl")
    bad = tmp_path / "bad.gguf"
    if content is not None:
        bad.write_bytes(content)
    for arguments in (
        tiny_run.run_arguments(tmp_path / "run", bad, questions),
        ["ask", bad, "Who?"],
        ["label", questions, tmp_path / "labelled", "--model", bad],
        ["serve", bad, "--port", "0"],
    ):
        result = cli(*arguments)
        last = result.err.splitlines()[-1]
        assert result.code == 2 and last.startswith("grace: error: "), result.err
        assert says in last and str(bad) in last and "Traceback" not in result.err
