"""`grace measure`: the metrics of confidences from anywhere, compared question by question."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest
from pyarrow import Table, parquet
from sklearn.metrics import brier_score_loss, roc_auc_score

import grace
import made_up_figures
import tiny_run
from grace.measuring import FITTED, _of_tokens, read_graded
from grace.tasks.answered import LIKELIHOODS

random.seed(0)
ROWS = [
    {"question": f"What is {n}?", "response": f"is {n}", "confidence": c, "correct": c > luck}
    for n in range(200)
    for c, luck in [(round(random.random(), 3), random.random())]
]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    return tiny_run.write_lines(path, rows)


def report(cli: Any, *arguments: Any) -> dict[str, Any]:
    result = cli("measure", *arguments, "--json")
    assert (result.code, result.err) == (0, "")
    made: dict[str, Any] = json.loads(result.out)
    return made


def test_the_numbers_are_those_of_scikit_learn(tmp_path: Path, cli: Any):
    (row,) = report(cli, write(tmp_path / "mine.jsonl", ROWS))["rows"]
    confidence = [given["confidence"] for given in ROWS]
    correct = [given["correct"] for given in ROWS]
    assert (row["estimator"], row["n"], row["missing"]) == ("mine", 200, 0)
    assert row["brier"] == pytest.approx(brier_score_loss(correct, confidence), abs=1e-6)
    assert row["auroc"] == pytest.approx(roc_auc_score(correct, confidence), abs=1e-6)
    assert row["accuracy"] == pytest.approx(sum(correct) / 200)


@pytest.mark.parametrize(
    "options",
    [
        lambda n: {"choices": ["0", str(n)]},
        lambda n: {"Options": ["0", str(n)]},
        lambda n: {"choices": f"0; {n}"},
        lambda n: {"choices": {"A": "0", "B": str(n)}},
        lambda n: {"choices": {"text": ["0", str(n)], "label": ["A", "B"]}},
        lambda n: {"A": "0", "B": str(n)},
        lambda n: {"option_a": "0", "option_b": str(n)},
    ],
)
@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_one_wording_with_other_options_is_another_question(
    options: Any, ending: str, tmp_path: Path, cli: Any
):
    rows = [row | {"question": "Which is true?"} | options(n) for n, row in enumerate(ROWS)]
    file = tmp_path / f"mine.{ending}"
    if ending == "jsonl":
        write(file, rows)
    else:
        parquet.write_table(Table.from_pylist(rows), file)
    (made,) = report(cli, file)["rows"]
    low, high = made["interval"]["brier"]
    assert low < made["brier"] < high
    assert made["wqd"] is None  # no question has two responses


def test_rows_of_a_data_frame_are_measured(tmp_path: Path):
    frame = pandas.DataFrame(ROWS)
    unknown = [row | {"confidence": None} for row in ROWS[:4]]
    wanted = grace.measure([*unknown, *ROWS[4:]]).rows
    frame.loc[:3, "confidence"] = math.nan  # no confidence
    frame["question_id"], frame["id"] = math.nan, pandas.NA  # no id
    frame["question"] = frame["question"].astype("string")
    frame["choices"], frame[0] = [numpy.array(["a", "b"])] * len(ROWS), 1
    (found,) = grace.measure(frame.to_dict("records")).rows
    assert (found.n, found.missing) == (196, 4)
    assert (found.brier, found.interval) == (wanted[0].brier, wanted[0].interval)
    frame["choices"] = [{"text": numpy.array(["a", "b"]), "label": numpy.array(["A", "B"])}] * 200
    rows = [series for _, series in frame.assign(id=range(200)).iterrows()]  # NumPy's numbers
    assert grace.measure(row.to_dict() for row in rows).rows[0].brier == found.brier


def test_a_row_without_a_question_leaves_the_others_with_theirs(tmp_path: Path, cli: Any):
    """Four equal samples of each question tell no more than one; the intervals must say so."""
    file, nameless = tmp_path / "mine.jsonl", {"confidence": 0.5, "correct": True}
    (once,) = report(cli, write(file, ROWS))["rows"]
    (four,) = report(cli, write(file, [nameless, *(ROWS * 4)]))["rows"]
    (low, high), (first, last) = once["interval"]["brier"], four["interval"]["brier"]
    assert last - first == pytest.approx(high - low, rel=0.1)


def test_an_example_shows_the_question_and_not_its_id(tmp_path: Path, cli: Any):
    rows = [row | {"question_id": f"q-{n}"} for n, row in enumerate(ROWS)]
    shown = [
        example["question"]
        for example in report(cli, write(tmp_path / "a.jsonl", rows))["examples"]
    ]
    assert shown and all(text.startswith("What is ") for text in shown)
    named = [{k: v for k, v in row.items() if k != "question"} for row in rows]
    made = report(cli, write(tmp_path / "b.jsonl", named))["examples"]
    assert all(example["question"].startswith("q-") for example in made)


def test_too_many_bins_are_refused(tmp_path: Path, cli: Any):
    result = cli("measure", write(tmp_path / "a.jsonl", ROWS), "--bins", 10**9)
    assert (result.code, result.out) == (2, "")
    assert "bins is 1000000000, expected 1 to 1000" in result.err


def test_without_confidence_is_missing_and_without_grade_is_left_out(tmp_path: Path, cli: Any):
    rows = [dict(row) for row in ROWS]
    for row in rows[:5]:
        row["confidence"] = None
    for row in rows[5:12]:
        row["correct"] = None
    made = report(cli, write(tmp_path / "mine.jsonl", rows))
    (row,) = made["rows"]
    assert (row["n"], row["missing"]) == (188, 5)
    assert "mine: 7 responses have no grade and are left out." in made["notes"]


def test_it_says_on_which_side_the_error_lies(tmp_path: Path, cli: Any):
    rows = [row | {"confidence": 0.9, "correct": n % 4 > 0} for n, row in enumerate(ROWS)]
    shown = cli("measure", write(tmp_path / "a.jsonl", rows)).out
    assert "a: 90.0% sure on average, 75.0% right: too sure by 15.0 points." in shown


@pytest.mark.parametrize("name", ["question", "id", "question_id"])
def test_files_are_compared_question_by_question_whatever_their_order(
    name: str, tmp_path: Path, cli: Any
):
    rows = [{name if k == "question" else k: v for k, v in row.items()} for row in ROWS]
    rows += [row | {"confidence": 0.5, "correct": None} for row in rows[:20]]  # second responses
    worse = [row | {"confidence": min(1, row["confidence"] + 0.2)} for row in rows]
    a = write(tmp_path / "a.jsonl", rows)
    b = write(tmp_path / "b.jsonl", list(reversed(rows[:200])))
    c = write(tmp_path / "c.jsonl", list(reversed(worse[:200])))
    found = {s["estimator"]: s for s in report(cli, a, b, c)["summaries"]}
    same, other = found["b"]["to_leader"]["brier"], found["c"]["to_leader"]["brier"]
    leader = found["a"]["to_leader"]["brier"] or same
    assert leader["difference"] == 0 and leader["interval"] == [0, 0]
    assert other["n"] == 200
    low, high = other["interval"]
    assert 0 < low < other["difference"] < high
    assert found["c"]["mark"]["brier"] is None


def test_files_without_questions_are_measured_each_on_its_own(tmp_path: Path, cli: Any):
    rows = [{k: row[k] for k in ("confidence", "correct")} for row in ROWS]
    for folder in "ab":
        (tmp_path / folder).mkdir()
    files = [write(tmp_path / folder / "same.jsonl", rows) for folder in "ab"]
    found = report(cli, *files)
    assert [row["estimator"] for row in found["rows"]] == [str(file) for file in files]
    assert all(s["to_leader"]["brier"] is None for s in found["summaries"])
    assert found["notes"][-1].startswith("No question is in all sources, so not all are compared")


def test_a_report_is_written_with_the_surest_mistakes(tmp_path: Path, cli: Any):
    rows = [*ROWS, {"question": "Q?", "response": "no!", "confidence": 1, "correct": False}]
    out = tmp_path / "out"
    with made_up_figures.drawn():
        result = cli("measure", write(tmp_path / "mine.jsonl", rows), "--out", out)
    assert result.code == 0 and f"report: {out}/report.html" in result.out
    page = (out / "report.html").read_text("utf-8")
    assert "no!" in page and "Reliability of each method" in page
    assert (out / "figures").is_dir() and (out / "report.md").exists()


def test_what_label_wrote_is_measured(finished: Path, tmp_path: Path, cli: Any):
    questions = tiny_run.write_questions(tmp_path / "own.jsonl")
    out = tmp_path / "labelled"
    labelling = ["label", questions, out, "--model", finished / "run", "--samples", 3]
    assert cli(*labelling, "--shard-size", 16).code == 0
    rows = parquet.read_table(out).to_pylist()
    known = [row for row in rows if row["confidence"] is not None]
    (row,) = report(cli, out)["rows"]
    assert (row["estimator"], row["n"]) == ("labelled", len(known)) and len(known) > 50
    assert row["brier"] == pytest.approx(
        sum((r["confidence"] - r["correct"]) ** 2 for r in known) / len(known), abs=1e-6
    )
    assert row["wqd"] is not None  # three responses per question, known as such


def test_a_run_is_refused_with_the_command_that_shows_its_measures(finished: Path, cli: Any):
    result = cli("measure", finished / "run")
    assert result.code == 2 and f"see `grace report {finished / 'run'}`" in result.err


def test_sources_and_familiar_prompts_have_rows_of_their_own(tmp_path: Path, cli: Any):
    rows = [
        {"question": f"q{n}", "confidence": 0.5 + n % 5 / 10, "correct": n % 3 > 0}
        | {"source": "ab"[n % 2] if n < 100 else "rare", "familiar": n / 110}
        for n in range(110)
    ]
    file = tiny_run.write_lines(tmp_path / "scored.jsonl", rows)
    shown = cli("measure", file, "--json")
    found = {row["task"]: row["n"] for row in json.loads(shown.out)["rows"]}
    parts = {"a": 50, "b": 50, "familiar prompts": 55, "unfamiliar prompts": 55}
    assert found == {"given answers": 110} | {f"given answers: {k}": n for k, n in parts.items()}
    tiny_run.write_lines(file, [row | {"familiar": 7} for row in rows])
    assert "familiar is 7; write a number" in cli("measure", file).err


def records(count: int, seed: int, *, says: bool) -> list[dict[str, Any]]:
    """Records of two fields, one easier; `says`: token probabilities rank, but are too low."""
    chance, rows = random.Random(seed), []
    for n in range(count):
        fields, grades = {}, {}
        for name, share in (("born", 0.3), ("land", 0.7)):
            c = min(max(chance.gauss(share, 0.2), 0.0), 1.0)
            grades[name] = chance.random() < c
            least = c**3 if says else chance.random()
            told = {"mean_probability": least**0.5, "least_probability": least}
            fields[name] = {"value": n, "confidence": c, **told}
        rows.append({"question": f"{n}?", "confidence": 0.2, "correct": grades, "fields": fields})
    return rows


def test_a_field_is_measured_beside_what_its_tokens_say(tmp_path: Path, cli: Any):
    rows = records(150, 0, says=True)
    made = report(cli, write(tmp_path / "a.jsonl", rows))
    found = {(row["task"], row["estimator"]): row for row in made["rows"]}
    kinds = ("mean token probability", "least token probability", "token probabilities, fitted")
    names = ["a", *(f"a ({kind})" for kind in ("whole answer", *kinds))]
    parts = ["all fields", "field born", "field land"]
    wanted = {(f"given answers: {part}", name) for part in parts for name in names}
    assert wanted | {("given answers", "a")} == {*found}
    both = [(row, field) for row in rows for field in ("born", "land")]
    for part, own in ((parts[0], both), (parts[1], both[::2]), (parts[2], both[1::2])):
        right = [row["correct"][field] for row, field in own]
        brier = {name: found[f"given answers: {part}", name]["brier"] for name in names}
        for name, key in zip(names, ("confidence", "", *LIKELIHOODS), strict=False):
            c = [row["fields"][field][key] if key else 0.2 for row, field in own]
            assert brier[name] == pytest.approx(brier_score_loss(right, c), abs=1e-5)
        mine, *_, least, fitted = (brier[name] for name in names)
        assert mine - 0.01 < fitted < least - 0.05, part  # what is too low is mended by a fit
    assert any("is a logistic regression" in note for note in made["notes"])


def test_token_probabilities_are_fitted_to_the_fields_of_other_questions():
    """If they say nothing, a fit to the very grades it is judged by would still gain by them."""
    losses = []
    for seed in range(12):
        rated = read_graded(records(60, seed, says=False)).rated
        every = [(n, name, row.fields[name]) for n, row in enumerate(rated) for name in row.fields]
        groups, names, fields = zip(*every, strict=True)
        right_N = numpy.array([one.correct for one in fields])
        fitted_N = numpy.array(_of_tokens(fields, names, groups)[FITTED])
        share_N = [right_N[[other == name for other in names]].mean() for name in names]
        losses.append(((fitted_N - right_N) ** 2).mean() - ((share_N - right_N) ** 2).mean())
    assert 0 < numpy.mean(losses) < 0.02, losses  # nor does it lose by what it does not know


def test_fields_without_token_probabilities_or_with_one_grade(tmp_path: Path, cli: Any):
    rows = records(30, 0, says=True)
    for row in rows:
        row["fields"] = {name: one["confidence"] for name, one in row["fields"].items()}
    made = report(cli, write(tmp_path / "a.jsonl", rows))
    assert {row["estimator"] for row in made["rows"]} == {"a", "a (whole answer)"}
    assert not any("logistic" in note for note in made["notes"])
    right = [
        row | {"correct": dict.fromkeys(row["correct"], True)} for row in records(30, 0, says=True)
    ]
    made = report(cli, write(tmp_path / "b.jsonl", [*rows, *right]))
    tokens = [row for row in made["rows"] if row["estimator"] == "b (mean token probability)"]
    assert [row["missing"] for row in tokens] == [60, 30, 30]
    assert not any("fitted" in row["estimator"] for row in made["rows"])
    rows[0]["fields"]["born"] = {"confidence": 0.5, "least_probability": 2}
    result = cli("measure", write(tmp_path / "c.jsonl", rows))
    assert (result.code, result.out) == (2, "")
    assert "least probability of the field 'born' is 2; write a number from 0 to 1" in result.err
