"""`grace fit`: from graded answers to a model that tells its confidence."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

import grace
import tiny_run
from grace.answers import kind_of
from grace.cli.commands.fit import _graded
from grace.engines import Sampling
from grace.engines.transformers import TransformersEngine
from grace.store import read_card
from grace.tasks.answered import Answered

LAST = ("--set", "grace.layer=0")  # a search among layers takes most of the time of a small fit
SHORT = ("--set", "data.prompt=short", *LAST)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_run.write_model(tmp_path_factory.mktemp("fit") / "model")


def graded(file: Path, count: int = 60, **changes: Any) -> Path:
    rows = [
        {
            "question": f"What is {n} and {n * 7}?",
            "response": "yes it is" if n % 3 else f"{n} {n * 7} no",
            "correct": bool(n % 3),
            **changes,
        }
        for n in range(count)
    ]
    return tiny_run.write_lines(file, rows)


@pytest.fixture(scope="module")
def fitted(model: Path, tmp_path_factory: pytest.TempPathFactory, once: Any) -> tuple[Path, str]:
    """An adapter, fitted once to the answers of `graded`, and what the command printed."""
    folder = tmp_path_factory.mktemp("fitted")
    shown = once("fit", model, graded(folder / "graded.jsonl"), folder / "out", *SHORT)
    return folder / "out", shown


def test_answers_that_cannot_be_fitted_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = graded(tmp_path / "graded.jsonl", 5)
    others = ({"finish_reason": "length"}, {"response": ""}, {"correct": None})
    more = [json.loads(graded(tmp_path / "one.jsonl", 1, **row).read_text()) for row in others]
    tiny_run.write_lines(file, [*map(json.loads, file.read_text().splitlines()), *more])
    assert len(list(_graded(file))) == 5
    assert f"{file}: 3 of 8 answers are cut, empty or not graded: left out" in caplog.text


def test_it_learns_from_graded_answers_and_the_model_says_what_it_said(
    model: Path, fitted: tuple[Path, str], tmp_path: Path, cli: Any
) -> None:
    out, shown = fitted
    assert "60 graded answers, 66.7% right" in shown and f"grace ask {out}" in shown
    auroc = next(line for line in shown.splitlines() if "AUROC" in line)
    assert float(auroc.split()[1]) > 90
    scored = tmp_path / "scored.jsonl"
    rows = [{"question": "What is 99 and 4?", "response": text} for text in ("yes it is", "1 7 no")]
    lines = tiny_run.write_lines(tmp_path / "new.jsonl", rows)
    assert cli("score", out, lines, "--out", scored).code == 0
    right, wrong = (json.loads(line)["confidence"] for line in scored.read_text().splitlines())
    assert right > 0.8 > 0.4 > wrong
    prompts = [[20, 21, 22, 23], [30, 31]]
    plain, made = (
        list(TransformersEngine.load(model, adapter=adapter).generate(prompts, Sampling()))
        for adapter in (None, out)
    )
    for (_, (one,)), (_, (other,)) in zip(plain, made, strict=True):
        assert one.token_ids == other.token_ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)  # a larger head rounds so


def test_in_a_new_process_asking_loads_little_and_a_run_says_nothing_but_its_stages(
    fitted: tuple[Path, str], model: Path, tmp_path: Path
) -> None:
    """Of packages that take a while, torch and transformers; no library speaks."""
    others = {"datasets", "fastapi", "gguf", "matplotlib", "pandas", "peft", "pyarrow", "sklearn"}
    run = tiny_run.run_arguments(
        tmp_path / "run", model, tiny_run.write_questions(tmp_path / "questions.jsonl")
    )
    code = f"""
import atexit, gc, sys
from grace.cli import main
atexit.register(lambda: print(gc.get_freeze_count() > 9999))
try:
    main(["ask", {str(fitted[0])!r}, "What is 1?"])
except SystemExit as stopped:
    assert not stopped.code
print(sorted({others} & set(sys.modules)))
main({[*run, "--until", "score"]!r})
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(tiny_run.__file__).parent)},
    )
    assert done.returncode == 0, done.stderr
    _, loaded, *_, frozen = done.stdout.splitlines()
    assert (loaded, frozen) == ("[]", "True")  # no last look for garbage takes time
    stages = ["sample", "grade", "features", "fit", "answer", "score"]
    told = re.compile(
        r"[a-z ]+: (\d+/\d+|rating )|(right|wrong|warning): |first |  \| |note: the answer's "
    )
    lines = [line for line in done.stderr.splitlines() if not told.match(line)]
    assert lines == [f"stage {stage}" for stage in stages]


def test_empty_answers_are_left_out(tmp_path: Path) -> None:
    rows = [{"question": "1?", "response": text, "correct": True} for text in ("", " \n", "one")]
    file = tiny_run.write_lines(tmp_path / "graded.jsonl", rows)
    assert [answer.response for answer in _graded(file)] == ["one"]


def test_what_label_wrote_is_read_without_cut_and_ungraded_answers(
    model: Path, tmp_path: Path, cli: Any
) -> None:
    rows = [
        {"question": f"What is {n} and {n * 7}?", **({"answers": ["yes"]} if n else {})}
        for n in range(40)
    ]
    questions = tiny_run.write_lines(tmp_path / "questions.jsonl", rows)
    how = ("--set", "grade.grader=tiny_run:coin", "--set", "sample.max_new_tokens=24")
    how = (*how, "--set", "data.prompt=short", "--shard-size", "16")
    labelled = tmp_path / "labelled"
    made = cli("label", questions, labelled, "--model", model, *how)
    assert made.code == 0, made.err
    parts = [pyarrow.parquet.read_table(part) for part in sorted(labelled.glob("*.parquet"))]
    found = pyarrow.concat_tables(parts).to_pylist()
    assert [row["question"] for row in found] == [row["question"] for row in rows]
    usable = [
        {"question": row["question"], "response": row["text"], "correct": row["correct"]}
        for row in found
        if row["correct"] is not None and row["finish_reason"] == "stop"
    ]
    assert 20 <= len(usable) < 40
    lines = tiny_run.write_lines(tmp_path / "same.jsonl", usable)
    results = []
    for file in (labelled, lines):
        out = tmp_path / f"from_{file.name}"
        results.append(cli("fit", model, file, out, *SHORT, "--json"))
        assert results[-1].code == 0, results[-1].err
    one, other = (json.loads(result.out) for result in results)
    assert {**one, "out": ""} == {**other, "out": ""}
    assert one["answers"] == len(usable)


@pytest.mark.parametrize(
    ("changes", "count", "message"),
    [
        ({"correct": "yes"}, 60, 'correct is "yes"; write true, false, or null'),
        (
            {"correct": True},
            60,
            "all 60 graded answers are right, so there is no confidence to learn",
        ),
        ({"response": 7}, 60, "response is 7; write it as a text"),
        ({"response": None}, 60, "graded.jsonl:1: response is null or an empty cell"),
        ({"question": "What?"}, 60, "all graded answers are to one question"),
        ({"choices": ["one"]}, 60, "graded.jsonl:1: 1 choice; give 2 to 10"),
    ],
)
def test_what_cannot_be_learned_from_is_refused_in_a_line(
    changes: Any, count: int, message: str, model: Path, tmp_path: Path, cli: Any
) -> None:
    file = graded(tmp_path / "graded.jsonl", count, **changes)
    result = cli("fit", model, file, tmp_path / "out")
    assert result.code == 2 and message in result.err
    assert len(result.err.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_an_answer_that_is_too_long_is_named_by_its_line(
    model: Path, tmp_path: Path, cli: Any
) -> None:
    file = graded(tmp_path / "graded.jsonl", 100)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[80]["response"] = "yes it is " * 2000
    result = cli("fit", model, tiny_run.write_lines(file, rows), tmp_path / "out")
    assert result.code == 2 and "graded.jsonl:81: the " in result.err
    assert "but the model's context is" in result.err


def test_a_question_that_is_answered_twice_makes_no_interval_narrower(
    model: Path, tmp_path: Path, cli: Any
) -> None:
    rows = [json.loads(line) for line in graded(tmp_path / "graded.jsonl").read_text().splitlines()]
    rows = [row | {"correct": number % 5 < 3} for number, row in enumerate(rows)]
    once = tiny_run.write_lines(tmp_path / "once.jsonl", rows)
    twice = tiny_run.write_lines(tmp_path / "twice.jsonl", rows * 2)
    made = [
        json.loads(cli("fit", model, f, tmp_path / f"of_{f.name}", *LAST, "--json").out)["brier"]
        for f in (once, twice)
    ]
    wide, same = (high - low for _, low, high in made)
    assert same > 0.85 * wide


def test_answers_are_numbers_if_all_right_ones_are(model: Path, tmp_path: Path, cli: Any) -> None:
    rows = [
        {
            "question": f"How much is {n} and {n}?",
            "response": f"{2 * n:,}" if n % 3 else "no idea",
            "correct": bool(n % 3),
        }
        for n in range(500, 529)
    ]
    rows.append({"question": "How much is 500 and 500?", "response": "Guess: 1e3", "correct": True})
    file, out = tiny_run.write_lines(tmp_path / "sums.jsonl", rows), tmp_path / "out"
    result = cli("fit", model, file, out, *SHORT)
    assert result.code == 0, result.err
    assert read_card(out)["kind"] == "number" and "every right answer is a number" in result.err
    read = grace.load(out).task.answer
    assert read("about 1,200 of them") == read("1200.0")
    assert kind_of([*(row["response"] for row in rows if row["correct"]), "it is late"]) == "open"


def test_with_trace_the_confidence_is_shown_along_an_answer_and_at_its_end_it_is_the_same(
    model: Path, fitted: tuple[Path, str], tmp_path: Path, cli: Any
) -> None:
    answers = graded(tmp_path / "graded.jsonl")
    (plain, _), traced = fitted, tmp_path / "traced"
    result = cli("fit", model, answers, traced, "--trace", *SHORT)
    assert result.code == 0 and "trace fitted at 8 steps of each answer" in result.err
    rows = [{"question": "What is 99 and 4?", "response": text} for text in ("yes it is", "1 7 no")]
    lines = tiny_run.write_lines(tmp_path / "new.jsonl", rows)
    scored = tmp_path / "scored.jsonl"
    assert cli("score", traced, lines, "--trace", "--out", scored).code == 0
    again = cli("score", traced, lines, "--trace", "--out", scored)
    assert again.code == 0 and "nothing left" in again.err
    found = [json.loads(line) for line in scored.read_text().splitlines()]
    ends = [json.loads(line) for line in cli("score", plain, lines).out.splitlines()]
    for one, end in zip(found, ends, strict=True):
        assert one["trace"][-1] == one["confidence"] == pytest.approx(end["confidence"], abs=1e-6)
        assert len(one["trace"]) > 3 and all(0 < c < 1 for c in one["trace"])

    asked = cli("ask", traced, "What is 3 and 21?", "--trace")
    assert asked.code == 0, asked.err
    *steps, last = asked.out.splitlines()
    reply = json.loads(cli("ask", traced, "What is 3 and 21?", "--trace", "--json").out)
    rows = zip(reply["pieces"], reply["trace"][1:], strict=True)
    assert [f"{c:.2f}  {piece!r}" for piece, c in rows] == steps
    assert len(reply["pieces"]) == reply["tokens"] and "".join(reply["pieces"]).strip() in last

    card = read_card(traced)
    card["sample"]["max_new_tokens"] = 1
    (traced / "grace.json").write_text(json.dumps(card))
    asked = cli("ask", traced, "What is 3 and 21?", "--trace")
    assert asked.out.startswith("none  ") and len(asked.out.splitlines()) == 2


def test_a_model_without_a_trace_says_how_to_get_one(
    fitted: tuple[Path, str], tmp_path: Path, cli: Any
) -> None:
    out, _ = fitted
    lines = tiny_run.write_lines(tmp_path / "new.jsonl", [{"question": "1?", "response": "1"}])
    score = ("score", out, lines)
    for command in (("ask", out, "What is 3 and 21?"), score, (*score, "--skip-bad")):
        result = cli(*command, "--trace")
        assert result.code == 2 and "grace.trace=true" in result.err
        assert len(result.err.strip().splitlines()) == 1
    both = cli("ask", out, "What is 3 and 21?", "--trace", "--budget", "4")
    assert both.code == 2 and "leave out --strategy and --budget" in both.err


VARIANTS = (  # trivial changes to one question, and what stands around it
    lambda text: {"question": text},
    lambda text: {"question": text.lower().replace("?", " ?")},
    lambda text: {
        "messages": [
            {"role": "system", "content": "You talk to Ann on Tuesday."},
            {"role": "user", "content": "What is 9?"},
            {"role": "assistant", "content": "9"},
            {"role": "user", "content": f" {text}"},
        ]
    },
    lambda text: {"prompt": f"Q: What is 8?\nA: 8\n\nQ: {text}\nA:"},
)


def test_a_question_that_is_asked_again_with_a_trivial_change_is_in_the_same_fold(
    model: Path, tmp_path: Path, cli: Any
) -> None:
    """Four answers to each question, which a coin grades once: there is nothing to learn."""
    rng = random.Random(1)
    rows = []
    for n in range(60):
        text, right = f"What is {n} and {n * 7}?", rng.random() < 0.5
        rows += [{**ask(text), "response": f"{n} yes", "correct": right} for ask in VARIANTS]
    file = tiny_run.write_lines(tmp_path / "graded.jsonl", rows)
    found = json.loads(cli("fit", model, file, tmp_path / "out", *LAST, "--json").out)
    auroc, low, high = found["auroc"]
    assert auroc < 0.7 and low < 0.5
    assert high - low > 0.2  # as of 60 answers, not of 240


def test_several_sources_give_a_confidence_that_knows_strangers(
    model: Path, tmp_path: Path, cli: Any
) -> None:
    first, second = graded(tmp_path / "a.jsonl", 24), tmp_path / "b.jsonl"
    rows = [json.loads(line) for line in first.read_text().splitlines()]
    others = [row | {"question": f"Is {row['question'][8:-1]} less?"} for row in rows]
    tiny_run.write_lines(second, others)
    both = tiny_run.write_lines(
        tmp_path / "both.jsonl",
        [row | {"source": name} for name, part in (("a", rows), ("b", others)) for row in part],
    )
    made = []
    for out, files in (("two", (first, second)), ("column", (both,))):
        result = cli("fit", model, *files, tmp_path / out, *SHORT, "--set", "grace.layer=1")
        assert result.code == 0, result.err
        assert "one source:" not in result.out
        assert "prompts like those of 2 sources are known by the MLP of block 1" in result.err
        shares = "share of each source's own fit: "
        assert shares in result.err or "no source has a fit of its own" in result.err
        card = read_card(tmp_path / out)
        assert card["evidence"]["familiar"]["near"] > 0 and card["prompt_layer"] == 1
        made.append(card["evidence"])
    assert made[0] == made[1]
    reply = grace.load(tmp_path / "two").ask("What is 99 and 4?")
    assert reply.familiar is not None and 0 <= reply.familiar <= 1
    lines = tiny_run.write_lines(
        tmp_path / "new.jsonl", [{"question": "What is 99 and 4?", "response": "yes it is"}]
    )
    for _ in range(2):  # resumes, too
        scored = tmp_path / "scored.jsonl"
        assert cli("score", tmp_path / "two", lines, "--out", scored).code == 0
        row = json.loads(scored.read_text())
        assert row["familiar"] == pytest.approx(reply.familiar, abs=1e-3)
    for form, said in (("merged", "this export cannot"), ("adapter", "`familiar`, from 0 to 1")):
        assert cli("export", tmp_path / "two", tmp_path / form, "--format", form).code == 0
        assert said in (tmp_path / form / "README.md").read_text()


def test_one_source_says_what_that_means_and_small_ones_count_as_one(
    model: Path, tmp_path: Path, cli: Any
) -> None:
    file = graded(tmp_path / "graded.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    tiny_run.write_lines(file, [row | {"source": f"page {n}"} for n, row in enumerate(rows)])
    result = cli("fit", model, file, tmp_path / "out", *SHORT)
    assert "one source: on" in result.out
    assert "familiar" not in read_card(tmp_path / "out")["evidence"]
    tiny_run.write_lines(file, [row | {"source": "ab"[n < 7]} for n, row in enumerate(rows)])
    result = cli("fit", model, file, tmp_path / "other")
    assert result.code == 2 and "source 'b' has 7 graded answers; give at least 20" in result.err


def structured(file: Path, count: int = 60, **changes: Any) -> Path:
    """Answers with a field that is right where its value is even, and one that is always wrong."""
    rows = [
        {
            "question": f"What is {n}?",
            "response": json.dumps({"size": "yes" if n % 2 else "no", "of": {"tens": n}}),
            "correct": {"size": n % 2 == 0, "of.tens": False, "absent": False},
            **changes,
        }
        for n in range(count)
    ]
    return tiny_run.write_lines(file, rows)


def test_fields_are_fitted_scored_and_measured(model: Path, tmp_path: Path, cli: Any) -> None:
    """No whole answer is right, which says nothing about its fields."""
    file, out = structured(tmp_path / "graded.jsonl"), tmp_path / "out"
    printed = cli("fit", model, file, out, *SHORT).out
    assert "60 graded answers, 0.0% right" in printed
    assert "  size: 60 values, 50.0% right, ECE" in printed and "absent" not in printed
    fields = read_card(out)["evidence"]["fields"]
    assert sorted(fields) == ["", "of.tens", "size"]
    scored = tmp_path / "scored.jsonl"
    assert cli("score", out, file, "--out", scored).code == 0
    rows = [json.loads(line) for line in scored.read_text().splitlines()]
    for row in rows:
        assert {name: one["value"] for name, one in row["fields"].items()} == {
            "size": json.loads(row["response"])["size"],
            "of.tens": json.loads(row["response"])["of"]["tens"],
        }
        for field in row["fields"].values():
            assert 0 < field["least_probability"] <= field["mean_probability"] < 1
        c = row["fields"]["of.tens"]["confidence"]
        assert 0 < c < 0.1 and row["confidence"] < 0.1
    of_size = [row["fields"]["size"]["confidence"] for row in rows]
    assert abs(sum(of_size) / len(rows) - 0.5) < 0.1
    even, odd = of_size[::2], of_size[1::2]
    assert sum(even) > sum(odd)
    report = grace.measure(scored)
    brier = {(row.task, row.estimator): row.brier for row in report.rows}
    assert ("given answers: field of.tens", "scored") in brier
    mine, whole = (
        brier["given answers: field size", name] for name in ("scored", "scored (whole answer)")
    )
    right = [row["correct"]["size"] for row in rows]
    wanted = sum((c - y) ** 2 for c, y in zip(of_size, right, strict=True)) / len(rows)
    assert mine == pytest.approx(wanted, abs=1e-4)
    assert whole > mine
    assert "nothing left to score" in cli("score", out, file, "--out", scored).err


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"correct": {"sise": True, "size": False}},
            "'sise' is right, but the response has 'size'",
        ),
        (
            {"correct": {"size": True, "of.tens": False}, "response": "no"},
            "no JSON object with fields",
        ),
        ({"correct": {"size": "maybe"}}, "correct of 'size' is \"maybe\"; write true, false"),
    ],
)
def test_wrong_grades_of_fields(
    model: Path, tmp_path: Path, cli: Any, changes: Any, words: str
) -> None:
    found = cli(
        "fit", model, structured(tmp_path / "graded.jsonl", **changes), tmp_path / "out", *SHORT
    )
    assert found.code == 2 and words in found.err, found.err


def test_grades_of_fields_in_a_cell_and_of_none() -> None:
    cell = Answered("", {"correct": '{"Size": true, "tens": null}'})
    assert cell.grades == {"Size": True} and cell.correct is True
    assert Answered("", {"correct": {"a": None}}).grades is None
    assert Answered("", {"correct": {"a": True, "b": False}}).correct is False


def test_a_trace_and_fields_are_not_fitted_together(model: Path, tmp_path: Path, cli: Any) -> None:
    words = ("fit", model, structured(tmp_path / "graded.jsonl"), tmp_path / "out", "--trace")
    assert cli(*words).code == 2
