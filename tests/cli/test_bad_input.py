"""Every wrong input is one line that names it and says what to do; exit code 2, nothing lost.

The cases are data: `tests/data/bad_input_cases.json`. `{name}` stands for a directory of the
`places` fixture, `{here}` for an empty one, "GOOD" for a line that can be scored.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tiny_run

CASES = json.loads((Path(__file__).parents[1] / "data" / "bad_input_cases.json").read_text("utf-8"))
LONG = "very " * 400 + "long?"
GOOD = {"question": "What is 1?", "response": "one"}
WORDS = {
    '"LONG"': json.dumps(LONG),
    '"GOOD"': json.dumps(GOOD),
    '"SCORED"': json.dumps(GOOD | {"confidence": 0.5}),
    '"DIGITS"': json.dumps('{"question": "A?", "response": "a", "n": ' + "9" * 5000 + "}"),
}
PROGRESS = (
    "stage ",
    "train: ",
    "warning: ",
    "sample ",
    "score ",
    "jsonl: ",
    "right: ",
    "wrong: ",
    "first ",
    "  | ",
)


def cases(kind: str) -> Any:
    """Parametrise over the cases of a command."""
    return pytest.mark.parametrize("case", CASES[kind], ids=lambda case: case["why"])


@pytest.fixture
def filled(case: dict[str, Any], places: dict[str, Path], tmp_path: Path) -> dict[str, Any]:
    """The case with its placeholders filled in and its files written."""
    text = json.dumps(case)
    for word, value in WORDS.items():
        text = text.replace(word, value)
    for name, path in {**places, "here": tmp_path}.items():
        text = text.replace(f"{{{name}}}", str(path))
    made: dict[str, Any] = json.loads(text)
    if "lines" in case:
        encoding = case.get("encoding", "utf-8")
        lines = [
            line if isinstance(line, str) else json.dumps(line, ensure_ascii=False)
            for line in made["lines"]
        ]
        content = "".join(line + "\n" for line in lines)
        (tmp_path / "own.jsonl").write_bytes(content.encode(encoding))
    elif "file" not in case:
        tiny_run.write_questions(tmp_path / "own.jsonl")
    if "out" in case:
        tiny_run.write_lines(tmp_path / "out.jsonl", made["out"])
    return made


def assert_one_line(code: int, err: str, says: list[str]) -> None:
    *before, last = err.splitlines()
    assert code == 2, err
    assert last.startswith("grace: error: "), err
    assert [line for line in before if not line.startswith(PROGRESS)] == []
    assert [part for part in says if part not in last] == [], last
    assert len(last) < 600 + sum(map(len, says)), last


@cases("run")
def test_a_run_says_what_is_wrong(filled: dict[str, Any], places: Any, tmp_path: Path, cli: Any):
    path = Path(filled.get("run", tmp_path / "run"))
    arguments: list[Any] = ["run", path]
    if "run" not in filled:
        arguments = tiny_run.run_arguments(path, places["model"], tmp_path / "own.jsonl")
    result = cli(*arguments, *filled.get("args", []))
    assert_one_line(result.code, result.err, filled["says"])
    assert result.out == ""
    if filled.get("nothing_done"):
        assert not path.exists()


@cases("ask")
def test_ask_says_what_is_wrong(filled: dict[str, Any], places: dict[str, Path], cli: Any):
    model = filled.get("model", places["run"])
    result = cli("ask", model, filled.get("question", "What is 1?"), *filled.get("args", []))
    assert_one_line(result.code, result.err, filled["says"])
    assert result.out == ""


@cases("score")
def test_score_says_what_is_wrong_and_keeps_what_is_scored(
    filled: dict[str, Any], places: dict[str, Path], tmp_path: Path, cli: Any
):
    file, out = filled.get("file", tmp_path / "own.jsonl"), tmp_path / "out.jsonl"
    before = out.read_bytes() if out.exists() else None
    arguments = ["--out", out, *filled.get("args", [])]
    result = cli("score", filled.get("model", places["run"]), file, *arguments)
    assert_one_line(result.code, result.err, filled["says"])
    if "kept" in filled:
        rows = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
        assert len(rows) == filled["kept"]
        assert all(row.items() >= GOOD.items() and 0 <= row["confidence"] <= 1 for row in rows)
    else:
        assert (out.read_bytes() if out.exists() else None) == before


@cases("other")
def test_other_commands_say_what_is_wrong(filled: dict[str, Any], cli: Any):
    result = cli(*filled["args"])
    assert_one_line(result.code, result.err, filled["says"])
    assert result.out == ""


@pytest.mark.parametrize("arguments", [["bananas"], ["score", "{run}", "none.jsonl"]])
def test_a_process_of_its_own_says_it_too(arguments: list[str], places: dict[str, Path]):
    filled = [argument.format(**places) for argument in arguments]
    done = subprocess.run(
        [sys.executable, "-c", "from grace.cli import main; main()", *filled],
        capture_output=True,
        text=True,
        env=os.environ,
    )
    assert_one_line(done.returncode, done.stderr, ["grace: error: "])
    assert done.stderr.count("\n") == 1 and done.stdout == ""
