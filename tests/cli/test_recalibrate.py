"""`grace recalibrate`: three numbers, and every engine reads c through them."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import grace
import tiny_run
from grace.calibration import LogOdds, log_odds
from grace.evidence import Evidence, sigmoid
from grace.evidence import confidence as evidence_c
from grace.export import export_model
from grace.model.recalibrating import fit_recalibration, parts


def answers(count: int, slope: float, offset: float) -> list[dict[str, Any]]:
    """Return answers whose true log-odds are `slope` times those said plus `offset`."""
    rng = random.Random(0)
    rows = []
    for number in range(count):
        said = rng.gauss(0, 2)
        right = bool(rng.random() < 1 / (1 + np.exp(-(slope * said + offset))))
        c = 1 / (1 + np.exp(-said))
        rows.append({"question": f"What is {number}?", "confidence": c, "correct": right})
    return rows


EVIDENCE = Evidence(
    weights=(1.0, 0.5, 0.0, -0.2, 0.3, 0.0, 0.6, 1.0),
    center=(-1.0, -2.0, 0.0, 1.0, 0.1, 0.2, 0.6, 0.3),
    bias=0.4,
    slope=0.8,
)


@pytest.fixture
def graded(tmp_path: Path) -> Path:
    return tiny_run.write_lines(tmp_path / "graded.jsonl", answers(400, 0.4, -0.8))


def test_it_finds_the_map_and_says_what_it_gains(
    finished: Path, graded: Path, tmp_path: Path, cli: Any
):
    out = tmp_path / "out"
    result = cli("recalibrate", finished / "run", graded, out, "--json")
    assert (result.code, result.err) == (0, "")
    made = json.loads(result.out)
    assert made["rows"] == made["evidence"] == pytest.approx(0.4, abs=0.12)
    assert made["offset"] == pytest.approx(-0.8, abs=0.25)
    assert made["answers"] == 400
    assert made["change"]["brier"][2] < 0  # the whole interval: clearly better
    assert made["after"]["ece"][0] < made["before"]["ece"][0] / 2
    assert "auroc" not in made["change"]  # one slope: the order stays
    shown = cli("recalibrate", finished / "run", graded, tmp_path / "other").out
    assert (
        "Brier score: clearly better (5 folds" in shown
        and f"grace ask {tmp_path / 'other'}" in shown
    )
    assert "run does not use log-probabilities (method=paper): one slope" in shown


def test_the_fields_of_graded_records_get_a_map_of_their_own(
    finished: Path, tmp_path: Path, cli: Any
):
    model = tmp_path / "model"
    shutil.copytree(finished / "run" / "adapter", model)
    card = json.loads((model / "grace.json").read_text())
    names = {"": EVIDENCE, "born": replace(EVIDENCE, bias=-1.0)}
    card["evidence"] = replace(EVIDENCE, fields=names).to_dict()
    (model / "grace.json").write_text(json.dumps(card))
    records = [
        row
        | {
            "fields": {"born": {"value": 1, "confidence": row["confidence"]}, "died": None},
            "correct": {"born": row["correct"], "died": False},
            "confidence": 0.3,
        }
        for row in answers(400, 0.4, -0.8)
    ]
    file, out = tiny_run.write_lines(tmp_path / "records.jsonl", records), tmp_path / "out"
    result = cli("recalibrate", model, file, out, "--json")
    assert (result.code, result.err) == (0, "")
    told = json.loads(result.out)["fields"]
    assert told["values"] == 400 and told["brier"][1] < told["brier"][0]
    assert told["rows"] == pytest.approx(0.4, abs=0.12)
    assert told["offset"] == pytest.approx(-0.8, abs=0.25)
    made = Evidence.in_card(json.loads((out / "grace.json").read_text()))
    assert made is not None
    for name, before in names.items():
        old, new = (
            log_odds([one.confidence(0.7, 0.2)])[0] for one in (before, made.of_field(name))
        )
        assert new == pytest.approx(told["rows"] * old + told["offset"], abs=1e-6)
    shown = cli("recalibrate", model, file, tmp_path / "other").out
    assert "fields, 400 values: Brier score " in shown
    whole = [row | {"correct": row["correct"]["born"]} for row in records]
    file = tiny_run.write_lines(tmp_path / "whole.jsonl", whole)
    assert "values: Brier" not in cli("recalibrate", model, file, tmp_path / "third").out


def test_every_source_counts_the_same_and_is_shown(finished: Path, tmp_path: Path, cli: Any):
    many, few = answers(400, 1.0, -1.5), answers(100, 1.0, 1.5)
    rows = [row | {"source": "many"} for row in many]
    rows += [row | {"source": "few", "question": f"Who is {n}?"} for n, row in enumerate(few)]
    file = tiny_run.write_lines(tmp_path / "graded.jsonl", rows)
    made = json.loads(cli("recalibrate", finished / "run", file, tmp_path / "a", "--json").out)
    plain = [row | {"source": ""} for row in rows]
    file = tiny_run.write_lines(tmp_path / "graded.jsonl", plain)
    other = json.loads(cli("recalibrate", finished / "run", file, tmp_path / "b", "--json").out)
    assert abs(made["offset"]) < 0.2 and other["offset"] < -0.6 and "sources" not in other
    (before, after), *_ = made["sources"].values()
    assert [*made["sources"]] == ["many", "few"] and before != after


def test_where_nothing_clearly_changes_the_model_may_stay_as_it_is(
    finished: Path, tmp_path: Path, cli: Any
):
    graded = tiny_run.write_lines(tmp_path / "graded.jsonl", answers(100, 1.0, 0.0))
    shown = cli("recalibrate", finished / "run", graded, tmp_path / "out").out
    assert "Brier score: no clear change (5 folds" in shown
    assert "keep using the model as it is for these questions, or grade more answers" in shown


def test_hidden_states_that_say_nothing_of_these_questions_are_turned_down(
    finished: Path, tmp_path: Path, cli: Any
):
    """What the log-probabilities say holds, what the rows say does not: they get little weight."""
    adapter = tmp_path / "adapter"
    shutil.copytree(finished / "run" / "adapter", adapter)
    card = json.loads((adapter / "grace.json").read_text()) | {"evidence": EVIDENCE.to_dict()}
    (adapter / "grace.json").write_text(json.dumps(card))
    rng, rows = random.Random(0), []
    for number in range(400):
        logprobs = [rng.uniform(-6, 0) for _ in range(3)]
        read, shift = rng.gauss(0, 2), EVIDENCE.slope * EVIDENCE.of(logprobs, -0.5)
        c, sure = (1 / (1 + np.exp(-value)) for value in (read + shift, shift))
        given = {"confidence": 0.1 + 0.9 * c, "correct": bool(rng.random() < sure)}
        rows.append(given | {"question": f"{number}?", "logprobs": logprobs, "end_logprob": -0.5})
    graded = tiny_run.write_lines(tmp_path / "graded.jsonl", rows)
    made = json.loads(cli("recalibrate", adapter, graded, tmp_path / "out", "--json").out)
    assert made["rows"] < 0.3 and made["evidence"] == pytest.approx(1.0, abs=0.3)
    assert made["change"]["auroc"][1] > 0 and made["change"]["brier"][2] < 0
    shown = cli("recalibrate", adapter, graded, tmp_path / "other").out
    assert "times what the hidden states say" in shown
    tiny_run.write_lines(graded, [row | {"logprobs": None} for row in rows])
    shown = cli("recalibrate", adapter, graded, tmp_path / "one").out
    assert "graded.jsonl has no log-probabilities (`grace label` writes them): one" in shown
    tiny_run.write_lines(graded, [rows[0] | {"end_logprob": None}, *rows[1:]])
    shown = cli("recalibrate", adapter, graded, tmp_path / "few").out
    assert "graded.jsonl has no log-probabilities of 1 answers (" in shown


def test_each_part_of_the_log_odds_gets_its_slope():
    logprobs, end, state = [-0.3, -2.0], -0.1, 0.7
    mapped = replace(EVIDENCE, slope=1.0).mapped(0.25, 0.5, -0.4).mapped(0.5, 1.5, 0.1)
    wanted = 0.125 * state + 0.75 * EVIDENCE.of(logprobs, end) - 1.5 * 0.4 + 0.1
    assert mapped.confidence(state, mapped.of(logprobs, end)) == pytest.approx(sigmoid(wanted))


def test_the_parts_add_up_to_the_log_odds_of_c():
    given = [([0.2], [-0.4], -0.1), ([-1.0, 2.0], [-0.3, -2.0], -0.7)]
    readings, tokens, ends = zip(*given, strict=True)
    c = [
        evidence_c([(r[-1],)], t, e, EVIDENCE)
        for r, t, e in zip(readings, tokens, ends, strict=True)
    ]
    logprobs = [(*t, e) for t, e in zip(tokens, ends, strict=True)]
    read_N, shift_N = parts(EVIDENCE, c, logprobs)
    assert read_N == pytest.approx([0.8 * r[-1] for r in readings])
    assert read_N + shift_N == pytest.approx(log_odds(c))
    assert parts(EVIDENCE, c, [logprobs[0], None]).shape == (1, 2)
    assert parts(None, c, logprobs).shape == (1, 2)


def test_c_is_mapped_wherever_it_is_read(finished: Path, graded: Path, tmp_path: Path, cli: Any):
    out = tmp_path / "out"
    made = json.loads(cli("recalibrate", finished / "run", graded, out, "--json").out)
    before, after = grace.load(finished / "run"), grace.load(out)
    asked = [f"What is {number}?" for number in range(6)]

    def same(a: Any, b: Any) -> None:
        wanted = made["rows"] * log_odds(a) + made["offset"]
        assert log_odds(b) == pytest.approx(wanted, abs=1e-3, nan_ok=True)

    for question in asked:
        one, two = before.ask(question), after.ask(question)
        assert one.text == two.text
        same(one.trace, two.trace)
        if one.confidence is not None:
            same(one.confidence, two.confidence)
    texts = ["one two", "three", ""] * 2
    scored = after.score(asked, texts)
    assert [c is None for c in scored] == [not text for text in texts]
    same(before.score(asked, texts), scored)
    card = json.loads((out / "grace.json").read_text())
    base = card["base_model"]
    export_model(out, out, base, tmp_path / "merged")
    whole = grace.load(tmp_path / "merged")
    assert whole.score(asked, texts) == pytest.approx(scored, abs=1e-5)
    assert "Recalibrated on 400 graded answers" in (out / "README.md").read_text("utf-8")
    assert "recalibrated on 400" in (tmp_path / "merged" / "README.md").read_text("utf-8")


def test_twice_is_one_map_after_the_other(finished: Path, graded: Path, tmp_path: Path, cli: Any):
    outs = [tmp_path / "once", tmp_path / "twice"]
    first = json.loads(cli("recalibrate", finished / "run", graded, outs[0], "--json").out)
    second = json.loads(cli("recalibrate", outs[0], graded, outs[1], "--json").out)
    models = [grace.load(place) for place in (finished / "run", *outs)]
    once, _, twice = (log_odds(model.score(["What is 1?"], ["one"]))[0] for model in models)
    wanted = second["rows"] * (first["rows"] * once + first["offset"]) + second["offset"]
    assert twice == pytest.approx(wanted, abs=1e-3)
    assert len(json.loads((outs[1] / "grace.json").read_text())["recalibrated"]) == 2


def test_the_threshold_of_the_run_promises_nothing_of_other_confidences(
    finished: Path, graded: Path, tmp_path: Path, cli: Any
):
    cli("recalibrate", finished / "run", graded, tmp_path / "out")
    assert not (tmp_path / "out" / "threshold.json").exists()
    exported, adapted = tmp_path / "exported", tmp_path / "adapted"
    assert cli("export", finished / "run", exported, "--format", "adapter").code == 0
    shutil.copyfile(finished / "run" / "report.json", exported / "threshold.json")
    assert cli("recalibrate", exported, graded, adapted).code == 0
    assert not {"threshold.json", "reliability.png"} & {path.name for path in adapted.iterdir()}
    assert json.loads((exported / "grace.json").read_text())["measured"]
    assert not json.loads((adapted / "grace.json").read_text()).get("measured")


def test_every_answer_is_rated_by_a_fit_that_has_not_seen_its_question():
    rows = answers(300, 1.0, 0.0)
    parts_PN = log_odds([row["confidence"] for row in rows] * 2)[None]
    right = [row["correct"] for row in rows] * 2
    questions = [row["question"] for row in rows] * 2
    made = fit_recalibration(parts_PN, right, questions)
    flipped = [*right]
    flipped[0] = flipped[300] = not right[0]
    other = fit_recalibration(parts_PN, flipped, questions)
    assert other.unseen[0] == made.unseen[0] and other.unseen[300] == made.unseen[300]
    assert sum(a != b for a, b in zip(made.unseen, other.unseen, strict=True)) > 300
    assert made.unseen[0] != LogOdds((made.rows,), made.offset).transform(parts_PN)[0]


def test_what_cannot_be_recalibrated_is_refused(
    finished: Path, graded: Path, tmp_path: Path, cli: Any, places: dict[str, Path]
):
    few = tiny_run.write_lines(tmp_path / "few.jsonl", answers(9, 1, 0))
    unrated = [row | {"confidence": None} for row in answers(20, 1, 0)]
    none = tiny_run.write_lines(tmp_path / "none.jsonl", unrated)
    out = tmp_path / "out"
    for arguments, words in (
        ((finished / "model", graded, out), "is neither a run nor an adapter"),
        ((finished / "run", few, out), "9 questions; grade answers to at least 10"),
        ((finished / "run", none, out), "no graded answer has a confidence"),
        ((finished / "run", graded, finished / "model"), "is not empty"),
        ((places["foreign_adapter"], graded, out), "no grace.json"),
        ((tmp_path / "gone", graded, out), "is neither a run nor an adapter"),
    ):
        result = cli("recalibrate", *arguments)
        assert result.code == 2 and words in result.err, result.err
        assert result.err.count("\n") == 1 and not out.exists()
