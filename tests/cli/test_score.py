"""`grace score`: the same lines with a confidence, in order, resumable, from a file or a pipe."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import grace
import tiny_run
from grace.model import Model
from grace.records import EMPTY

ROWS = [
    {"id": "1", "question": "What is 1?", "response": "one"},
    {"response": "zwei", "question": "Was ist 2? 中文 \u2028 é", "meta": {"a": [1, None, "ü"]}},
    {"id": 3, "prompt": "Say three.", "response": ""},
    {"messages": [{"role": "system", "content": "Count."}, {"role": "user", "content": "4"}],
     "response": "four <CNF> <|im_end|>"},
    {"id": "5", "question": "What is 5?", "response": "five", "confidence": "old", "x": 1.5},
]  # fmt: skip


@pytest.fixture(scope="module")
def model(finished: Path) -> Model:
    return grace.load(finished / "run")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tiny_run.write_lines(tmp_path / "in.jsonl", ROWS)


def rows_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.split("\n") if line]


def expected(model: Model) -> list[float | None]:
    chats: list[Any] = [row.get("question") or row.get("messages") for row in ROWS]
    chats[2] = [{"role": "user", "content": "Say three."}]
    return model.score(chats, [str(row["response"]) for row in ROWS])


def test_lines_keep_their_order_and_fields_and_get_the_models_confidence(
    finished: Path, file: Path, model: Model, cli: Any
):
    result = cli("score", finished / "run", file)
    rows = rows_of(result.out)
    assert (result.code, result.err) == (0, "")
    for row, given in zip(rows, ROWS, strict=True):
        added = {"confidence": 0} | ({} if given["response"] else {"no_confidence": EMPTY})
        assert {**row, "confidence": 0} == {**given, **added}
        assert list(row)[: len(given)] == list(given)
    assert [row["confidence"] for row in rows] == pytest.approx(expected(model), abs=1e-5)
    assert [row["confidence"] is None for row in rows] == [False, False, True, False, False]


def test_it_goes_on_after_the_lines_that_are_there(
    finished: Path, file: Path, tmp_path: Path, cli: Any
):
    out, whole = tmp_path / "out.jsonl", tmp_path / "whole.jsonl"
    cli("score", finished / "run", file, "--out", whole, "--batch-size", 1)
    lines = whole.read_bytes().splitlines(keepends=True)
    torn = b'{"id": "1", "quest'
    for kept, left in ((0, torn), (1, b""), (3, torn), (5, b"")):
        out.write_bytes(b"".join(lines[:kept]) + left)
        result = cli("score", finished / "run", file, "--out", out, "--batch-size", 1)
        assert result.code == 0 and result.out == ""
        assert out.read_bytes() == whole.read_bytes()
        assert ("nothing left to score" in result.err) == (kept == len(ROWS))


def test_a_kill_in_the_middle_loses_nothing_and_repeats_nothing(
    finished: Path, tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
):
    rows = [{"n": n, "question": f"What is {n}?", "response": str(n)} for n in range(7)]
    file, out = tiny_run.write_lines(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    real, scored = Model.ratings, []

    def ratings(self: Model, prompts: Any, responses: Any) -> Any:
        if len(scored) == 4 and not out.with_name("resumed").exists():
            raise KeyboardInterrupt
        scored.extend(responses)
        return real(self, prompts, responses)

    monkeypatch.setattr(Model, "ratings", ratings)
    arguments = ("score", finished / "run", file, "--out", out, "--batch-size", 2)
    stopped = cli(*arguments)
    assert stopped.code == 130 and "resumes" in stopped.err
    assert [row["n"] for row in rows_of(out.read_text())] == [0, 1, 2, 3]
    out.with_name("resumed").touch()
    assert cli(*arguments).code == 0
    assert [row["n"] for row in rows_of(out.read_text())] == list(range(7))
    assert scored == ["0", "1", "2", "3", "3", "4", "5", "6"]  # the last again, to know the model


@pytest.mark.parametrize("count", [3, 1], ids=["some are left", "all are there"])
def test_scores_of_another_model_are_not_continued(
    count: int, finished: Path, tmp_path: Path, cli: Any
):
    rows = [{"question": f"What is {n}?", "response": str(n)} for n in range(count)]
    file, out = tiny_run.write_lines(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    assert cli("score", finished / "run", file, "--out", out).code == 0
    first = rows_of(out.read_text())[0]
    for other in ((first["confidence"] + 0.5) % 1, None, "high"):
        out.write_text(json.dumps({**first, "confidence": other}) + "\n", "utf-8")
        refused = cli("score", finished / "run", file, "--out", out)
        assert refused.code == 2 and "has scores of another model" in refused.err
        assert len(rows_of(out.read_text())) == 1


def test_a_question_is_asked_as_a_run_asks_it(finished: Path, tmp_path: Path, cli: Any):
    rows = [
        {"question": f"{space}What is 3 and 21?{space}", "response": "3"} for space in ("", " ")
    ]
    file = tiny_run.write_lines(tmp_path / "in.jsonl", rows)
    plain, spaced = rows_of(cli("score", finished / "run", file).out)
    assert plain["confidence"] == spaced["confidence"]
    assert spaced["question"].endswith(" ")  # a row is kept as it is
    asked = [cli("ask", finished / "run", row["question"]).out for row in rows]
    assert asked[0] == asked[1]


def test_standard_input_is_scored_and_resumed_too(
    finished: Path, file: Path, tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
):
    def piped(*arguments: object) -> Any:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
        return cli("score", finished / "run", "-", *arguments)

    plain = rows_of(piped().out)
    assert len(plain) == len(ROWS)
    out = tmp_path / "out.jsonl"
    out.write_text("".join(json.dumps(row) + "\n" for row in plain[:2]), "utf-8")
    assert piped("--out", out).code == 0
    assert [row["response"] for row in rows_of(out.read_text("utf-8"))] == [
        row["response"] for row in ROWS
    ]


def test_choices_of_a_question_are_shown_to_the_model(places: Any, tmp_path: Path, cli: Any):
    row = {"question": "What is 1?", "response": "Answer: A"}
    options = (["one", "two"], ["two", "one"], ["one", "two"])
    rows = [{**row, "choices": choices} for choices in options]
    file = tiny_run.write_lines(tmp_path / "in.jsonl", rows)
    result = cli("score", places["choice_adapter"], file)
    first, swapped, again = (row["confidence"] for row in rows_of(result.out))
    assert first == pytest.approx(again, abs=1e-6) and first != pytest.approx(swapped, abs=1e-6)
    assert cli("score", places["choice_adapter"], tiny_run.write_lines(file, [row])).code == 2


def test_a_bad_last_line_is_told_before_a_model_is_loaded(
    tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("grace.model.load", None)  # to call it would fail
    file = tiny_run.write_lines(tmp_path / "in.jsonl", [*ROWS, {"question": "What is 6?"}])
    result = cli("score", "no-model", file, "--out", tmp_path / "out.jsonl")
    assert (
        result.code == 2
        and f'{file}:6: "response" is missing among the fields question' in result.err
    )
    assert not (tmp_path / "out.jsonl").exists()


def test_bad_lines_are_left_out_and_named_if_asked_for(finished: Path, tmp_path: Path, cli: Any):
    bad = ["{torn", {"question": "What is 6?"}, {"question": "long? " * 400, "response": "a"}]
    lines = [ROWS[0], *bad, *ROWS[1:]]
    file = tiny_run.write_lines(tmp_path / "in.jsonl", lines)
    out, whole = tmp_path / "out.jsonl", tmp_path / "whole.jsonl"
    result = cli("score", finished / "run", file, "--out", whole, "--skip-bad")
    assert result.code == 0
    said = result.err.splitlines()
    assert all(line.startswith(f"left out: {file}:") for line in said)
    assert {line.split(":")[2] for line in said} == {"2", "3", "4"} and len(said) == 3
    rows = rows_of(whole.read_text("utf-8"))
    assert [row["response"] for row in rows] == [row["response"] for row in ROWS]
    out.write_bytes(b"".join(whole.read_bytes().splitlines(keepends=True)[:3]))
    resumed = cli("score", finished / "run", file, "--out", out, "--skip-bad")
    assert resumed.code == 0
    assert "score: going on after 3/6 lines" in resumed.err.splitlines()
    again = rows_of(out.read_text("utf-8"))
    assert [row | {"confidence": 0} for row in again] == [row | {"confidence": 0} for row in rows]


def test_a_table_is_scored_into_lines(finished: Path, tmp_path: Path, model: Model, cli: Any):
    file = tmp_path / "in.csv"
    file.write_text("n,question,response\n1,What is 1?,one\n2,What is 5?,five\n", "utf-8")
    rows = rows_of(cli("score", finished / "run", file).out)
    assert [list(row) for row in rows] == [["n", "question", "response", "confidence"]] * 2
    wanted = model.score(["What is 1?", "What is 5?"], ["one", "five"])
    assert [row["confidence"] for row in rows] == pytest.approx(wanted, abs=1e-5)
    file.write_text("N,Question,Response\n1,What is 1?,one\n2,What is 5?,five\n", "utf-8")
    again = rows_of(cli("score", finished / "run", file).out)
    assert [list(row) for row in again] == [["N", "Question", "Response", "confidence"]] * 2
    assert [row["confidence"] for row in again] == [row["confidence"] for row in rows]
