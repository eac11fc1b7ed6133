"""`grace grade`: verdicts on responses in a file, and the answers that votes would count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tiny_run

ROWS: list[dict[str, Any]] = [
    {"question": "How many?", "answers": ["1200"], "response": "Answer: 1 200", "tag": 7},
    {"question": "How many?", "answers": [1200], "response": "1,200,30"},
    {"question": "Is it?", "answers": False, "response": "No, it isn't."},
    {"question": "Is it?", "answer": "yes", "response": "Not true"},
    {"question": "How?", "choices": ["A car", "A train"], "answer": "B", "response": "A train"},
    {"question": "How?", "choices": ["A car", "A train"], "answer": 1, "response": "a ship"},
    {"answers": ["Paris"], "response": "It is not Paris"},
    {"answers": ["Paris"], "response": " "},
    {"question": "Who?", "response": "George Eliot", "correct": True},
    {"messages": [{"role": "user", "content": "2+2?"}], "answers": ["4"], "response": "2 + 2 = 4"},
]
RIGHT = [True, False, True, False, True, False, False, False, True, True]
READ = ["1200", None, "no", "no", "B", None, "it is not paris", None, "george eliot", "4"]


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_each_verdict_is_shown_with_what_votes_would_count(tmp_path: Path, cli: Any) -> None:
    file = tiny_run.write_lines(tmp_path / "own.jsonl", ROWS)
    result = cli("grade", file, "--out", tmp_path / "graded.jsonl")
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert [line.startswith("right") for line in lines[: len(ROWS)]] == RIGHT
    assert [line.split("<-")[0][7:].strip() for line in lines[: len(ROWS)]] == [
        answer or "(nothing read)" for answer in READ
    ]
    assert "10 responses: 5 right (50.0%), 5 wrong" in result.out
    assert '1 have no accepted answers and keep the "correct"' in result.out
    graded = rows_of(tmp_path / "graded.jsonl")
    assert [row["correct"] for row in graded] == RIGHT
    assert [row["answer"] for row in graded] == READ
    assert graded[0]["tag"] == 7 and graded[4]["answers"] == ["B"]
    again = cli("grade", tmp_path / "graded.jsonl", "--json")
    assert json.loads(again.out) == json.loads(cli("grade", file, "--json").out)
    assert not [*tmp_path.glob(".*")]


def test_the_summary_says_what_was_read_how(tmp_path: Path, cli: Any) -> None:
    file = tiny_run.write_lines(tmp_path / "own.jsonl", ROWS)
    found = json.loads(cli("grade", file, "--json").out)
    assert found["kinds"] == {
        "choice": {"rows": 2, "right": 1, "unreadable": 1, "empty": 0},
        "number": {"rows": 3, "right": 2, "unreadable": 1, "empty": 0},
        "yes_no": {"rows": 2, "right": 1, "unreadable": 0, "empty": 0},
        "open": {"rows": 3, "right": 1, "unreadable": 0, "empty": 1},
    }
    assert {name: found[name] for name in ("rows", "right", "given", "differ")} == {
        "rows": 10,
        "right": 5,
        "given": 1,
        "differ": 0,
    }


@pytest.mark.parametrize(
    ("row", "more", "message"),
    [
        ({"question": "q", "response": "x"}, (), "own.jsonl:1: neither accepted answers nor"),
        ({"question": "q", "answers": ["a"]}, (), 'own.jsonl:1: "response" is missing'),
        ({"answers": ["a"], "response": None}, (), "own.jsonl:1: response is null"),
        ({"answers": ["a"], "response": 3}, (), "own.jsonl:1: response is 3; write it as a text"),
        (
            {"answers": ["a"], "response": {"choices": [{"text": "a"}, {"text": "b"}]}},
            (),
            "write it as a text",
        ),
        ({"answers": ["a"], "response": ["a", "b"]}, (), "['a', 'b']; write it as a text"),
        ({"answers": ["a"], "response": "a"}, ("--grader", "number"), "which is no number"),
        ({"answers": ["a"], "response": "a"}, ("--grader", "yes_no"), "neither yes nor no"),
        ({"answers": ["a"], "response": "a"}, ("--grader", "choice"), "set grade.grader to"),
        ({"answers": ["a"], "response": "a"}, ("--grader", "rogue"), "did you mean 'rouge'?"),
        ({"answers": ["a"], "response": "a"}, ("--answer-field", "gold"), 'no field "gold"'),
        ({"response": "a", "correct": "perhaps"}, (), "correct is"),
    ],
)
def test_a_row_that_cannot_be_graded_is_named_and_nothing_is_written(
    row: dict[str, Any], more: tuple[str, ...], message: str, tmp_path: Path, cli: Any
) -> None:
    file = tiny_run.write_lines(tmp_path / "own.jsonl", [row])
    result = cli("grade", file, "--out", tmp_path / "out.jsonl", *more)
    assert result.code == 2 and message in result.err
    assert len(result.err.strip().splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["own.jsonl"]


def test_a_line_that_cannot_be_read_is_named_before_anything_is_graded(
    tmp_path: Path, cli: Any
) -> None:
    file = tiny_run.write_lines(tmp_path / "own.jsonl", ROWS)
    file.write_text(file.read_text("utf-8") + "null\n{\n", "utf-8")
    result = cli("grade", file)
    assert (result.code, result.out) == (2, "")
    assert ":11: " in result.err and "1 more line cannot be read: 12" in result.err
    tiny_run.write_lines(file, [*ROWS, {"question": "Who?", "response": "x"}])
    result = cli("grade", file)
    assert (result.code, result.out) == (2, "")
    assert ":11: neither accepted answers nor" in result.err


def test_an_empty_file_and_a_file_that_is_there_are_refused(tmp_path: Path, cli: Any) -> None:
    (tmp_path / "own.jsonl").write_text("")
    result = cli("grade", tmp_path / "own.jsonl", "--out", tmp_path / "out.jsonl")
    assert "has no row to grade" in result.err and not (tmp_path / "out.jsonl").exists()
    file = tiny_run.write_lines(tmp_path / "own.jsonl", ROWS)
    result = cli("grade", file, "--out", file)
    assert result.code == 2 and rows_of(file) == ROWS


def test_each_field_of_a_structured_answer_is_graded_by_its_own_kind(
    tmp_path: Path, cli: Any
) -> None:
    accepted = {
        "name": ["George Eliot", "Mary Ann Evans"],
        "born": 1819,
        "alive": False,
        "of": {"country": "England", "unknown": None},
        "books": ["Middlemarch, Romola"],
    }
    said = {"books": ["Middlemarch", "Romola"], "name": "the George Eliot", "alive": "no"}
    said |= {"born": "1,820", "of": {"country": "Wales"}}
    right = {"name": True, "born": False, "alive": True, "of.country": False, "books": True}
    rows = [
        {"question": "Who?", "answers": accepted, "response": f"Sure: {json.dumps(said)}"},
        {"question": "Who?", "answers": json.dumps(accepted), "response": '{"born": 1819.0, "na'},
        {"question": "Who?", "response": json.dumps(said), "correct": right},
        {"question": "Who?", "answer": {"value": "x", "aliases": ["y"]}, "response": "Y"},
    ]
    file = tiny_run.write_lines(tmp_path / "own.jsonl", rows)
    shown = cli("grade", file, "--out", tmp_path / "graded.jsonl").out
    assert "<- born: 1,820   (1819; " in shown.splitlines()[1]
    none = dict.fromkeys(right, False)
    graded = [row["correct"] for row in rows_of(tmp_path / "graded.jsonl")]
    assert graded == [right, none | {"born": True}, right, True]


def test_a_run_says_what_to_do_with_structured_answers(tmp_path: Path, cli: Any) -> None:
    row = {"question": "Who?", "answers": {"born": 1819}}
    file = tiny_run.write_lines(tmp_path / "own.jsonl", [row] * 9)
    found = cli("run", tmp_path / "run", "--model", "pocket", "--file", file)
    assert found.code == 2 and "`grace grade` does so" in found.err
