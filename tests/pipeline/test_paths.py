"""Paths in settings are absolute, so that a run can be resumed from another directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from grace.config import override_settings
from grace.pipeline.settings import absolute_model, absolute_override


def test_the_path_of_a_model_is_made_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "blob").write_bytes(b"GGUF")
    (tmp_path / "tiny.gguf").symlink_to(
        "blob"
    )  # as in the Hub's cache: only the link has an ending
    assert absolute_model("tiny.gguf") == absolute_model("~/tiny.gguf") == f"{tmp_path}/tiny.gguf"
    assert absolute_model("~nobody-at-all/tiny.gguf") == "~nobody-at-all/tiny.gguf"
    assert absolute_model("owner/name") == "owner/name"
    (tmp_path / "pocket").mkdir()
    assert absolute_model("pocket") == "pocket"


@pytest.mark.parametrize("name", ["own.csv", "fragen 😀.jsonl", 'a "b" \\ c.jsonl', "é\tñ.jsonl"])
def test_the_name_of_a_file_stays_what_it_is(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = override_settings({}, [absolute_override(f"data.file={name}")])
    assert settings.data.file == str(tmp_path / name)
