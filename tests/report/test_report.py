"""report.json: numbers, missing confidences; the console and Markdown."""

import dataclasses
import io
import json
import math

import numpy as np
import pytest
from made_up_study import plain, result, study
from rich.console import Console

from grace import metrics
from grace.errors import UserInputError
from grace.report import render_table, summarize, write_report
from grace.report.groups import comparisons, groups
from grace.report.markdown import markdown
from grace.report.tables import points


def summary(*results, **options):
    return plain(summarize(study(results, **options), resamples=30))


def test_a_written_report_is_what_was_returned(written):
    directory, report = written
    stored = json.loads((directory / "report.json").read_text())
    assert stored == plain(report)
    assert stored["schema_version"] == 3 and stored["scaling"] == []
    assert [row["estimator"] for row in stored["rows"]] == ["grace", "platt", "verbal"]


def test_numbers_are_those_of_grace_metrics(written):
    row = plain(written[1])["rows"][0]
    made = result("grace")
    expected = metrics.evaluate(made.confidence, made.correct)
    interval = metrics.bootstrap(made.confidence, made.correct, resamples=30)
    for name, value in expected.items():
        assert row[name] == pytest.approx(value, abs=1e-6)
        if name not in ("adaptive_ece", "smooth_ece"):
            assert row["interval"][name] == pytest.approx(interval[name], abs=1e-6)
    assert sum(row["histogram"]["right"]) == sum(made.correct)
    assert sum(bar["n"] for bar in row["reliability"]) == row["n"] == 60


def test_missing_confidences_are_counted_never_filled_in(written):
    row = plain(written[1])["rows"][2]
    made = result("verbal", noise=3, cut=5)
    assert (row["n"], row["missing"]) == (55, 5)
    assert row["accuracy"] == pytest.approx(np.mean(made.correct[5:]), abs=1e-6)
    assert row["accuracy_all"] == pytest.approx(np.mean(made.correct), abs=1e-6)
    assert row["brier"] == pytest.approx(
        metrics.brier(made.confidence[5:], made.correct[5:]), abs=1e-6
    )
    assert "capitals: of 60 responses, these have no confidence: Verbal 5." in markdown(written[1])


def test_nan_means_missing_as_none_does():
    made = result(cut=3)
    values = [math.nan if c is None else c for c in made.confidence]
    assert summary(dataclasses.replace(made, confidence=values)) == summary(made)


def test_an_estimator_without_any_confidence_has_nulls_not_zeros(tmp_path):
    report = summarize(study([result("grace"), result("verbal", cut=60)]), resamples=30)
    row = plain(report)["rows"][1]
    assert row["n"] == 0 and row["missing"] == 60 and row["ece"] is None
    assert row["interval"]["ece"] is None
    Console(file=io.StringIO()).print(render_table(report))
    assert "| Verbal | 0 (60 missing) | - | - |" in markdown(report)
    write_report(summarize(study([result("verbal", cut=60)]), resamples=30), tmp_path)


def test_one_class_gives_null_auroc_and_the_rest_is_there():
    made = result()
    row = summary(dataclasses.replace(made, correct=[True] * 60))["rows"][0]
    assert row["auroc"] is None and row["interval"]["auroc"] is None
    assert 0 <= row["ece"] <= 1


def test_several_answers_per_question_give_wqd_and_resample_questions():
    made = result(n=60)
    ids = [f"q{i // 4}#{i % 4}" for i in range(60)]
    row = summary(dataclasses.replace(made, ids=ids))["rows"][0]
    questions = [i // 4 for i in range(60)]
    expected = metrics.wqd(made.confidence, made.correct, questions)
    assert row["wqd"] == pytest.approx(expected, abs=1e-6)
    interval = metrics.bootstrap(
        made.confidence, made.correct, "ece", resamples=30, questions=questions
    )
    assert row["interval"]["ece"] == pytest.approx(interval["ece"], abs=1e-6)
    assert summary(made)["rows"][0]["wqd"] is None


def test_grace_is_compared_on_the_responses_that_both_answered(written):
    pairs = {by_metric["ece"].b: by_metric for by_metric in comparisons(written[1])}
    assert set(pairs) == {"platt", "verbal"}
    ours, theirs = result("grace"), result("verbal", noise=3, cut=5)
    found = pairs["verbal"]["brier"]
    expected = metrics.brier(ours.confidence[5:], ours.correct[5:])
    expected -= metrics.brier(theirs.confidence[5:], theirs.correct[5:])
    assert found.n == 55 and found.difference == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize(
    ("metric", "interval", "expected"),
    [
        ("ece", [-0.2, -0.1], "better"),
        ("brier", [0.1, 0.2], "worse"),
        ("auroc", [0.1, 0.2], "better"),
        ("auroc", [-0.1, 0.2], "unclear"),
        ("auroc", None, "unclear"),
    ],
)
def test_a_verdict_needs_an_interval_that_excludes_zero(metric, interval, expected):
    assert points(metric, 0.0, interval).verdict == expected


def test_the_same_input_gives_the_same_json_whatever_the_order_of_results():
    results = [result("grace"), result("platt"), result("grace", task="rivers")]
    assert summary(*results)["rows"] == summary(*results[::-1])["rows"]
    assert summary(*results) == summary(*results)


def test_examples_span_all_confidences_and_show_the_surest_mistakes():
    report = summary(result("grace"))
    spread = [e["confidence"] for e in report["examples"] if e["kind"] == "spread"]
    known = sorted(result("grace").confidence, reverse=True)
    assert len(spread) == 8 and [spread[0], spread[-1]] == pytest.approx(
        [known[0], known[-1]], abs=1e-6
    )
    wrong = [e for e in report["examples"] if e["kind"] == "surest wrong"]
    assert wrong and not any(e["correct"] for e in wrong)
    assert all(len(e["answer"]) <= 400 for e in report["examples"])


def test_transfer_and_other_backbones_are_groups_of_their_own():
    away = result("grace", task="rivers", train_task="capitals")
    report = summarize(study([result("grace"), away]), resamples=30)
    assert [g.title for g in groups(report)] == ["capitals", "rivers (trained on capitals)"]


def test_what_cannot_be_reported_is_refused():
    with pytest.raises(UserInputError, match="has no results"):
        summarize(dataclasses.replace(study(), results=[]))
    with pytest.raises(UserInputError, match=r"confidence\[0\] is 7.0"):
        made = result(n=1)
        summary(dataclasses.replace(made, confidence=[7.0]))


# --- tables


def test_the_console_table_fits_eighty_columns_and_shows_names_as_they_are(written):
    out = io.StringIO()
    Console(file=out, width=80).print(render_table(written[1]))
    text = out.getvalue()
    assert "<script>" in text and "GrACE" in text and "Platt scaling" in text
    numbers = f"{100 * written[1].rows[0].ece:.1f}"
    assert numbers in text and max(map(len, text.splitlines())) <= 80


def test_markdown_tables_have_as_many_cells_as_headings(written):
    rows = [line for line in markdown(written[1]).splitlines() if line.startswith("|")]
    widths = [line.replace(r"\|", "").count("|") for line in rows]
    heads = [at for at, line in enumerate(rows) if line.startswith("|---")]
    for at, end in zip(heads, [*[h - 1 for h in heads[1:]], len(rows)], strict=True):
        assert set(widths[at - 1 : end]) == {widths[at]}
