"""What an exported run tells its readers."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.repocard import metadata_load

import grace
from grace.cli import main
from grace.evidence import Evidence
from grace.evidence.familiar import Familiar, Own
from grace.export import export_model


@pytest.fixture(scope="module")
def run(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tiny run with a threshold."""
    folder = tmp_path_factory.mktemp("export") / "run"
    shutil.copytree(finished / "run", folder)
    threshold = {
        "mode": "answer", "budget": 1, "temperature": 0.0, "target": 0.9,
        "delta": 0.05, "tau": 0.7, "n": 10, "bound": 0.9, "promise": "told",
    }  # fmt: skip
    (folder / "threshold.json").write_text(json.dumps(threshold))
    vote = {"threshold": 0.7, "fall": 0.2, "weights": [1, 0, 0.2, 0, 0, -0.5]}
    (folder / "vote.json").write_text(json.dumps(vote))
    return folder


def export(run: Path, out: Path, **options: Any) -> str:
    card = json.loads((run / "adapter" / "grace.json").read_text())
    export_model(run, run / "adapter", card["base_model"], out, **options)
    return (out / "README.md").read_text(encoding="utf-8")


def test_a_card_has_the_numbers_of_the_report_and_its_diagram(run: Path, tmp_path: Path) -> None:
    text = export(run, tmp_path / "out")
    rows = json.loads((run / "report.json").read_text())["rows"]
    row = next(row for row in rows if row["estimator"] == "grace")
    assert f"| ECE ↓ | {row['ece'] * 100:.1f} [" in text
    assert f"Measured on {row['n']} answers to test questions" in text
    assert "![Reliability diagram](reliability.png)" in text
    assert (tmp_path / "out" / "reliability.png").read_bytes()[:4] == b"\x89PNG"
    assert "How to read the confidence" in text
    assert str(run) not in text


@pytest.mark.parametrize("form", ["merged", "adapter"])
def test_an_export_that_cannot_tell_sources_apart_has_no_threshold_and_no_vote(
    form: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fit to each source alone gives other confidences than the joint fit, which exports have."""
    card = json.loads((run / "adapter" / "grace.json").read_text())
    none = Evidence.none()
    familiar = Familiar(1.0, none.weights, 0.0, (Own(0.5, none.weights, 0.1),))
    card["evidence"] = replace(none, familiar=familiar).to_dict()
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "adapter" / "grace.json").write_text(json.dumps(card))
    text = export(tmp_path / "run", tmp_path / "out", form=form)
    kept, said = form == "adapter", "it gets no threshold and no fitted vote of the run"
    assert (tmp_path / "out" / "threshold.json").exists() == kept
    assert (tmp_path / "out" / "vote.json").exists() == kept
    assert (said in capsys.readouterr().err) == (not kept)
    assert ("measured figures are the adapter's" in text) == (not kept)


@pytest.mark.parametrize("form", ["merged", "adapter"])
def test_an_export_keeps_threshold_prompt_and_measurements(
    form: str, run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    export(run, out, form=form)
    first, second = grace.load(run), grace.load(out)
    assert (second.data, second.sample) == (first.data, first.sample)
    assert second.promise == first.promise
    assert second.promise is not None
    assert second.fitted == first.fitted is not None
    assert json.loads((out / "grace.json").read_text())["measured"]["reliability"]
    question = "What is 7 and 49?"
    assert second.ask(question).confidence == pytest.approx(
        first.ask(question).confidence, abs=1e-5
    )


def test_the_licence_is_the_one_given_or_that_of_the_base(run: Path, tmp_path: Path) -> None:
    assert 'license: "other"' in export(run, tmp_path / "a")
    assert 'license: "mit"' in export(run, tmp_path / "b", license_id="mit")
    base = tmp_path / "base"
    shutil.copytree(json.loads((run / "adapter" / "grace.json").read_text())["base_model"], base)
    (base / "README.md").write_text("---\nlicense: apache-2.0\n---\n# A model\n")
    export_model(run, run / "adapter", str(base), tmp_path / "c")
    assert 'license: "apache-2.0"' in (tmp_path / "c" / "README.md").read_text()


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("license: mit", "mit"),
        ("license:\nlanguage: en", "other"),
        ("license:\n- mit\n- apache-2.0", ["mit", "apache-2.0"]),
        ("license: [mit]", ["mit"]),
        ("license: []", "other"),
        ("license: 3", "other"),
        ("license: 'a: b' # or not", "a: b"),
        ("license: {{ license }}", "other"),
        ("- license", "other"),
        ("tags: a---b\nlicense: mit", "mit"),
    ],
)
def test_a_card_stays_valid_whatever_the_licence_of_the_base_looks_like(
    written: str, expected: Any, run: Path, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    shutil.copytree(json.loads((run / "adapter" / "grace.json").read_text())["base_model"], base)
    (base / "README.md").write_text(f"---\n{written}\n---\n# A model\n")
    export_model(run, run / "adapter", str(base), tmp_path / "out", form="adapter")
    assert metadata_load(tmp_path / "out" / "README.md")["license"] == expected


def test_the_command_says_what_to_do_next(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    for arguments, code, words in (
        ([run, out], 0, f"next:   grace serve {out}"),
        ([run, out], 2, "is not empty"),
        ([run, tmp_path / "x", "--format", "onnx"], 2, "use merged, vllm-lora, gguf, adapter"),
        ([run, tmp_path / "x", "--format", "vllm-lora"], 2, "none to spare"),
        ([tmp_path, tmp_path / "x"], 2, "neither a run nor an adapter"),
        (
            [run, tmp_path / "x", "--format", "adapter", "--base", tmp_path / "gone"],
            2,
            f"adapter is not at {tmp_path}/gone; say where it is now: --base DIR",
        ),
        ([out, tmp_path / "x"], 2, "is an export already (merged); name the run"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(["export", *map(str, arguments)])
        shown = capsys.readouterr()
        assert (stopped.value.code or 0) == code, shown
        assert words in shown.out + shown.err


def test_a_card_shows_the_diagram_of_its_own_task_whatever_else_was_drawn(
    run: Path, tmp_path: Path
) -> None:
    shutil.copytree(run, tmp_path / "run")
    figures = tmp_path / "run" / "figures"
    own = (figures / "reliability-questions.png").read_bytes()
    (figures / "reliability-another-trained-on-questions.png").write_bytes(b"another")
    export(tmp_path / "run", tmp_path / "out")
    assert (tmp_path / "out" / "reliability.png").read_bytes() == own
    (figures / "reliability-questions.png").unlink()
    assert "Reliability diagram" not in export(tmp_path / "run", tmp_path / "none")


def test_the_card_of_a_variant_has_what_was_measured_of_it(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    report = json.loads((run / "report.json").read_text())
    assert report["settings"]["report.name"] == "grace"
    report["settings"]["report.name"] = "grace-paper"
    for row in report["rows"]:
        row["estimator"] = row["estimator"].replace("grace", "grace-paper")
    (tmp_path / "run" / "report.json").write_text(json.dumps(report))
    assert "## Evaluation" in export(tmp_path / "run", tmp_path / "out")


@pytest.mark.parametrize("form", ["merged", "adapter"])
def test_every_file_of_an_export_can_be_read_by_whom_the_umask_lets_in(
    form: str, run: Path, tmp_path: Path
) -> None:
    before = os.umask(0o027)
    try:
        export(run, tmp_path / "out", form=form)
    finally:
        os.umask(before)
    modes = {p.name: p.stat().st_mode & 0o777 for p in (tmp_path / "out").iterdir()}
    assert modes == dict.fromkeys(modes, 0o640)


def test_a_gguf_card_says_that_its_figures_are_those_of_the_unrounded_weights(
    run: Path, tmp_path: Path
) -> None:
    export(run, tmp_path / "out", form="gguf")
    card = (tmp_path / "out" / "README.md").read_text()
    assert "## Evaluation" in card and "This file itself was not\nmeasured" in card
    assert "grace proxy path/to/this/directory" in card and "grace.load" not in card
    assert "llama-server -m path/to/this/directory/model.gguf" in card
