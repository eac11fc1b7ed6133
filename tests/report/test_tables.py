"""Tables for people: labels, costs, marks, old reports, scaling."""

import dataclasses
import io
import re

import pytest
from made_up_study import result, study
from rich.console import Console

from grace.errors import RunError
from grace.report import Report, checked_report, from_json, merge, render_table, summarize, to_json
from grace.report.groups import groups
from grace.report.markdown import markdown
from grace.report.names import COSTS, estimator_order, label
from grace.report.sentences import notes
from grace.report.tables import (
    change,
    cost,
    detail_table,
    gain,
    number,
    percent,
    points,
    quality_table,
)

COST_FIELDS = {
    "extra_forward_tokens_per_answer": 63.25,
    "extra_requests_per_answer": 10,
    "fit_seconds": 33.0,
    "trained_parameters": 67_000_000,
    "access": "hidden states",
}


def study_of(seeds=3, **options):
    """GrACE clearly ahead of two others, with all costs."""
    inputs = [
        study(
            [
                result("grace", seed, noise=0.2, n=300, **COST_FIELDS),
                result("semantic_entropy", seed, noise=6, n=300),
                result("likelihood+isotonic", seed, noise=3, n=300),
            ],
            name=f"seed-{seed}",
            notes=(),
            **options,
        )
        for seed in range(seeds)
    ]
    return summarize(merge(inputs, "a study"), resamples=200)


@pytest.fixture(scope="module")
def report():
    return study_of()


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("grace", "GrACE"),
        ("grace-paper", "GrACE (paper)"),
        ("p_true", "P(True)"),
        ("likelihood+isotonic", "Likelihood + isotonic"),
        ("p_true+beta_binning", "P(True) + beta binning"),
        ("my_own-idea", "my own-idea"),
        ("my_own+platt", "my own + platt"),
    ],
)
def test_every_name_has_a_label(name, shown):
    assert label(name) == shown


def test_a_recalibrated_estimator_follows_its_base_and_unknown_ones_come_last():
    names = ["zeta", "platt", "likelihood+isotonic", "alpha", "grace", "likelihood"]
    assert sorted(names, key=estimator_order) == [
        "grace",
        "likelihood",
        "likelihood+isotonic",
        "platt",
        "alpha",
        "zeta",
    ]


def test_costs_stand_beside_quality(report):
    ours, other = groups(report)[0].rated[:2]
    assert [cost(ours, c).text for c in COSTS] == [
        "0.01",
        "63.2",
        "10",
        "67M",
        "33",
        "hidden states",
    ]
    assert [cost(other, c).text for c in COSTS] == ["0.01", "-", "-", "-", "-", "-"]
    text = markdown(report)
    assert "| s/answer | extra tokens | extra requests | trained parameters |" in text
    assert "| 0.01 | 63.2 | 10 | 67M | 33 | hidden states |" in text


def test_what_has_no_value_sorts_after_every_number(report):
    unmeasured = groups(report)[0].rated[1]
    cells = [percent(None), points("ece", None, None), gain(None, None), change(None)]
    cells += [cost(unmeasured, c) for c in COSTS[1:]]
    assert {(cell.text, cell.key) for cell in cells} == {("-", "")}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (1.2e-5, "<0.001"),
        (0.0123, "0.0123"),
        (12.3456, "12.3"),
        (310, "310"),
        (20_000, "20k"),
        (3.14e9, "3.14G"),
    ],
)
def test_costs_are_short(value, shown):
    assert number(value) == shown


def test_the_best_is_bold_and_says_what_that_means(report):
    text = markdown(report)
    row = next(line for line in text.splitlines() if line.startswith("| GrACE |"))
    cells = row.split(" | ")
    assert all(cell.startswith("**") for cell in cells[2:5])
    assert not cells[5].startswith("*")  # the same answers for all
    assert (
        "clearly the best" in text
        and "over questions and (where there are 3 or more) seeds, of the mean" in text
    )
    assert re.search(r"\| Likelihood \+ isotonic \| 900 \| \*\d", text)


def test_the_console_table_with_every_cost_fits_eighty_columns(report):
    out = io.StringIO()
    Console(file=out, width=80).print(render_table(report))
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    for wanted in ("+req", "params", "67M", "hidden", "3 seeds", "Likelihood"):
        assert wanted in text
    assert "…" not in text


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_console_explains_the_costs_that_it_shows_and_no_other(report, width):
    out = io.StringIO()
    Console(file=out, width=width).print(render_table(report))
    text = " ".join(out.getvalue().split())
    for short in ("params", "needs", "s/ans", "+tok", "+req"):
        assert (f"{short}: " in text) == (f" {short} " in text), short
    assert ("Costs that do not fit here are in report.md." in text) == (width == 60)


def test_the_console_shows_a_report_without_any_confidence(report):
    out = io.StringIO()
    bare = dataclasses.replace(report, rows=(), summaries=(), comparisons=(), transfer=())
    Console(file=out, width=80).print(render_table(bare))
    assert report.name in out.getvalue()


def test_the_console_shows_the_intervals_that_its_legend_explains(report):
    row = dataclasses.replace(report.rows[0], ece=0.027, interval={"ece": (0.0, 0.027)})
    entry = next(e for e in report.summaries if e.estimator == row.estimator)
    entry = dataclasses.replace(entry, interval=row.interval)
    alone = dataclasses.replace(report, rows=(row,), summaries=(entry,))
    out = io.StringIO()
    Console(file=out, width=80).print(render_table(alone))
    assert "0.0-2.7" in out.getvalue() and "Chance alone" in out.getvalue()
    assert "±" not in out.getvalue()  # no table of the console has a spread


def test_a_report_of_a_later_version_still_reads(report):
    """Fields that this version does not know are left out, what is no report is refused."""
    plain = to_json(report)
    newer = plain | {"later": 1, "rows": [row | {"later": 1} for row in plain["rows"]]}
    assert from_json(Report, newer) == report
    with pytest.raises(TypeError):
        from_json(Report, {"rows": plain["rows"]})


def test_the_details_say_whether_and_how_a_confidence_is_off(report):
    table = detail_table(groups(report)[0])
    row = report.rows[0]
    cells = dict(zip(table.heads, next(r for r in table.rows if r[0].text == "GrACE"), strict=True))
    slopes = [other.slope for other in report.rows if other.estimator == "grace"]
    assert cells["slope"].text == f"{sum(slopes) / len(slopes):.2f}"
    summary = next(entry for entry in report.summaries if entry.estimator == "grace")
    assert cells["p"].text == f"{summary.p_calibrated:.2f}"
    parts = row.brier_calibration + row.brier_refinement
    assert parts == pytest.approx(row.brier, abs=2e-6)


def test_a_report_whose_intervals_were_made_otherwise_is_refused(report, tmp_path):
    old = to_json(report) | {"schema_version": 1}
    with pytest.raises(RunError, match="--redo report"):
        checked_report(old, tmp_path)
    assert checked_report(to_json(report), tmp_path) == report


def test_what_is_far_off_does_not_flatten_the_others():
    names = ("grace", "platt", "probe", "evidence")
    near = [result(name, n=300) for name in names]
    far = dataclasses.replace(result("p_true", n=300), confidence=[0.99] * 150 + [0.98] * 150)
    report = summarize(study([*near, far], notes=()), resamples=50)
    at = {row[0].text: row[3].bar for row in quality_table(groups(report)[0], ()).rows}
    assert at["P(True)"][1] > 100
    places = [at[label(name)][1] for name in names]
    assert min(places) >= 0 and max(places) <= 100 and max(places) - min(places) > 10


def test_what_was_left_out_is_said_once_for_all_estimators():
    report = summarize(
        study([result("grace", cut=4), result("platt", cut=4), result("verbal", cut=9)], notes=()),
        resamples=10,
    )
    (note,) = notes(report)
    assert note.startswith(
        "capitals: of 60 responses, these have no confidence: GrACE 4, Platt scaling 4, Verbal 9."
    )
