"""`grace label`: what it prints, and what it refuses."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    rows = [{"id": f"q{n}", "question": f"What is {n}?", "answers": [str(n)]} for n in range(5)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "q.parquet")
    return tmp_path / "q.parquet"


def test_a_run_labels_questions_as_it_was_trained_to_ask_them(
    finished: Path, questions: Path, tmp_path: Path, cli: Any
) -> None:
    out = tmp_path / "out"
    command = ["label", questions, out, "--model", finished / "run", "--shard-size", 3]
    result = cli(*command)
    first, *prompt, answer = result.err.splitlines()
    assert (result.code, first) == (0, "first prompt:")
    assert prompt == ["  | user: Question: What is 0?", "  | Guess:"]
    shown = r"first answer(, cut after 24 tokens)?: .+ \((right|wrong); accepted: 0\)"
    assert re.fullmatch(shown, answer)
    rows = parquet.read_table(out).to_pylist()
    right, cut = (
        sum(row["correct"] for row in rows), sum(row["finish_reason"] == "length" for row in rows)
    )  # fmt: skip
    head, rate, *more = result.out.splitlines()
    assert head == f"5 responses to 5 questions in 2 files in {out} (2 made now)"
    assert rate == f"{20 * right:.1f}% of 5 graded responses are right"
    assert len(more) == (cut > 0)
    record = json.loads((out / "_label.json").read_text())["settings"]
    assert (record["data.task"], record["data.prompt"]) == ("jsonl", "short")
    assert (record["sample.max_new_tokens"], record["grade.grader"]) == (24, "tiny_run:coin")
    assert (record["sample.test_samples"], record["sample.test_temperature"]) == (1, 0)
    assert json.loads(cli(*command, "--json").out) == {
        "questions": 5,
        "responses": 5,
        "shards": 2,
        "made": 0,
        "left": 0,
        "graded": 5,
        "right": right,
        "cut": cut,
        "empty": 0,
    }
    next(out.glob("part-*")).unlink()
    assert cli(*command).err == "label: going on after 3/5 questions\n"  # it has been shown
    refused = cli(*command, "--samples", 2)
    assert refused.code == 2
    assert "sample.test_samples (1 -> 2)" in refused.err


def test_of_a_model_whose_votes_compare_numbers_an_answer_without_one_casts_none(
    finished: Path, questions: Path, tmp_path: Path, cli: Any
) -> None:
    answers = {}
    for kind in ("open", "number"):
        adapter = shutil.copytree(finished / "run/adapter", tmp_path / kind)
        card = json.loads((adapter / "grace.json").read_text())
        (adapter / "grace.json").write_text(json.dumps(card | {"kind": kind}))
        out = tmp_path / f"of-{kind}"
        grader = ("--set", "grade.grader=tiny_run:coin")
        assert cli("label", questions, out, "--model", adapter, *grader).code == 0
        rows = parquet.read_table(out).to_pylist()
        assert not any(re.search(r"\d", row["text"]) for row in rows)
        answers[kind] = {row["answer"] for row in rows}
    assert answers["number"] == {None} and None not in answers["open"]


def test_shards_of_another_model_in_the_same_place_are_refused(
    finished: Path, questions: Path, tmp_path: Path, cli: Any
) -> None:
    adapter = Path(shutil.copytree(finished / "run" / "adapter", tmp_path / "adapter"))
    where = ["label", questions, tmp_path / "out", "--model", adapter, "--shard-size", 2]
    assert cli(*where).code == 0
    (tmp_path / "out" / "part-00001.parquet").unlink()
    card = json.loads((adapter / "grace.json").read_text())
    (adapter / "grace.json").write_text(json.dumps(card | {"note": "fitted again"}))
    result = cli(*where)
    assert result.code == 2 and f"the content of {adapter}" in result.err


def test_a_command_that_failed_before_its_first_file_binds_the_directory_to_nothing(
    finished: Path, questions: Path, tmp_path: Path, cli: Any
) -> None:
    command = ["label", questions, tmp_path / "out", "--model", finished / "run"]
    assert "unknown engine 'other'" in cli(*command, "--engine", "other").err
    assert cli(*command).code == 0


def test_a_model_thinks_if_it_is_told_to(
    finished: Path, questions: Path, tmp_path: Path, cli: Any
) -> None:
    model = shutil.copytree(finished / "model", tmp_path / "model")
    template = model / "chat_template.jinja"
    switch = "{% if not enable_thinking %}{{ raise_exception('it is off') }}{% endif %}"
    template.write_text(switch + template.read_text())
    command = ["label", questions, tmp_path / "out", "--model", model, "--set"]
    short = ["sample.max_new_tokens=6", "--set"]
    assert "it is off" in cli(*command, *short, "model.thinking=false").err
    assert cli(*command, *short, "model.thinking=true").code == 0
    command[2] = tmp_path / "longer"
    assert "its answer up to 2098" in cli(*command, "model.thinking=true").err  # room for thoughts


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--features", "middle"], "use mean or last"),
        (["--features", "mean", "--engine", "vllm"], "use transformers for features"),
        (["--engine", "other"], "unknown engine 'other'; known: openai, transformers, vllm"),
        (["--engine-option", "max_model_len"], "write KEY=VALUE"),
        (
            ["--engine-option", "max_model_len=64"],
            "options for another engine: vllm or openai",
        ),
        (["--set", "data.prompt=nice"], "nice"),
        (
            ["--samples", 3, "--temperature", 0],
            "all 3 responses to a question are equal",
        ),
    ],
)
def test_bad_options_are_one_line(
    options: list[Any], words: str, finished: Path, questions: Path, tmp_path: Path, cli: Any
) -> None:
    result = cli("label", questions, tmp_path / "out", "--model", finished / "run", *options)
    assert result.code == 2
    assert words in result.err
    assert result.err.count("\n") == 1
