"""A model whose weights the package knows has a confidence without a run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import grace
import tiny_run
from grace.methods.card import model_card
from grace.model import ready
from grace.store import read_card
from grace.store.files import digest

READY: dict[str, Any] = {
    "version": "0.1.0",
    "sources": [{"name": name, "answers": 40, "licence": "CC0"} for name in ("sums", "lakes")],
    "left_out": [
        {
            "name": "lakes",
            "answers": 40,
            "right": 66,
            "familiar": 0.4,
            "likelihood": "9.1 / 20.3 / 60.5",
            "confidence": "4.2 / 18.7 / 71.9",
        }
    ],
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_run.write_model(tmp_path_factory.mktemp("ready") / "model")


@pytest.fixture(scope="module")
def adapter(model: Path, tmp_path_factory: pytest.TempPathFactory, once: Any) -> Path:
    """An adapter, fitted to two sources."""
    folder, files = tmp_path_factory.mktemp("fitted"), []
    for name, asked in (("sums", "What is {} and 7?"), ("lakes", "Is {} a lake or a sea?")):
        rows = [
            {
                "question": asked.format(n),
                "response": "yes it is" if n % 3 else f"{n} {n * 7} no",
                "correct": bool(n % 3),
            }
            for n in range(40)
        ]
        files.append(tiny_run.write_lines(folder / f"{name}.jsonl", rows))
    once(
        "fit", model, *files, folder / "out", "--set", "data.prompt=text", "--set", "grace.layer=1"
    )
    return folder / "out"


@pytest.fixture
def fitted(model: Path, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The adapter, whose head is the only one that the package has."""
    weights = model / "model.safetensors"
    known = {"file": weights.name, "bytes": weights.stat().st_size, "sha256": digest(weights)}
    record = read_card(adapter) | {"base_model": "model", "ready": READY | {"weights": known}}
    head = tmp_path / "heads" / "tiny"
    head.mkdir(parents=True)
    shutil.copy(adapter / "rows.safetensors", head)
    (head / "grace.json").write_text(json.dumps(record))
    (head / "README.md").write_text(model_card(record))
    monkeypatch.setattr(ready, "HEADS", head.parent)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return adapter


def test_a_model_is_asked_with_the_head_for_its_weights(
    model: Path, fitted: Path, cli: Any, tmp_path: Path
) -> None:
    expected = grace.load(fitted).ask("What is 99 and 7?")
    for moved in (model, shutil.copytree(model, tmp_path / "elsewhere")):
        found = cli("ask", moved, "What is 99 and 7?", "--json")
        assert found.code == 0, found.err
        assert "ready head tiny, fitted on sums, lakes" in found.err
        reply = json.loads(found.out)
        assert reply["text"] == expected.text
        assert reply["confidence"] == expected.confidence
        assert reply["familiar"] == expected.familiar is not None


def test_other_weights_are_refused_in_one_line(
    model: Path, fitted: Path, cli: Any, tmp_path: Path
) -> None:
    other = shutil.copytree(model, tmp_path / "other")
    weights = bytearray((other / "model.safetensors").read_bytes())
    weights[-2] ^= 1  # the same size
    (other / "model.safetensors").write_bytes(weights)
    found = cli("ask", other, "What is 99 and 7?")
    assert found.code == 2 and "there is no ready-made head for its weights" in found.err
    assert "model.safetensors" in found.err and "grace fit" in found.err


def test_a_head_is_exported_and_listed_with_its_sources(
    model: Path, fitted: Path, cli: Any, tmp_path: Path
) -> None:
    assert "fitted on sums, lakes" in cli("list", "heads").out
    out = tmp_path / "exported"
    exported = cli("export", model, out, "--format", "adapter")
    assert exported.code == 0
    card = Path(exported.err.partition("; see ")[2].splitlines()[0]).read_text()
    assert "| sums | 40 | CC0 |" in card and "4.2 / 18.7 / 71.9" in card
    lines = tiny_run.write_lines(
        tmp_path / "new.jsonl", [{"question": "What is 99 and 4?", "response": "yes it is"}]
    )
    scores = []
    for number, place in enumerate((out, fitted)):
        scored = tmp_path / f"{number}.jsonl"
        assert cli("score", place, lines, "--out", scored).code == 0
        scores.append(json.loads(scored.read_text())["confidence"])
    assert scores[0] == scores[1]
    told = "cannot tell prompts that are unlike theirs"
    assert told not in exported.err
    assert told in cli("export", out, tmp_path / "merged", "--base", model).err


@pytest.mark.parametrize("head", sorted(ready.HEADS.glob("*")))
def test_every_head_of_the_package_says_what_it_is(head: Path) -> None:
    record = read_card(head)
    assert (head / "README.md").read_text() == model_card(record)
    assert sum(file.stat().st_size for file in head.iterdir()) < 500_000
    assert {len(record["ready"]["weights"]["sha256"])} == {64}
    named = [one["name"] for one in record["ready"]["sources"]]
    assert len(named) > 3 and "sciq" not in named  # CC BY-NC
    assert {one["name"] for one in record["ready"]["left_out"]} > {*named}
