"""The first line of a report: what validation answers say is better than what was trained."""

from __future__ import annotations

import dataclasses
import io

import pytest
from made_up_replays import made_up_replay
from made_up_study import study
from rich.console import Console

from grace.report import Validation, render_table, summarize
from grace.report.markdown import markdown
from grace.report.page import render_page
from grace.report.sentences import headlines


def row(b="platt", ours=0.53, theirs=0.51, error=0.01, **options):
    about = {"task": "capitals", "backbone": "pocket", "seed": 0, "a": "grace", "b": b, "n": 100}
    values = {"metric": "log_loss", "a_value": ours, "b_value": theirs, "standard_error": error}
    return Validation(**about | values | options)


MADE = summarize(study(), resamples=10)


def said(*rows):
    return headlines(dataclasses.replace(MADE, validation=rows))


def test_what_is_better_by_more_than_a_standard_error_is_said_with_both_figures():
    assert said(row()) == [
        "On validation, Platt scaling is better than GrACE: log loss 0.510 against 0.530."
    ]


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [row(error=0.021)],  # within a standard error
        [row(theirs=0.55)],
        [row(theirs=0.55, error=0.0), row(metric="brier", ours=0.1, theirs=0.2)],
    ],
)
def test_nothing_is_said_where_grace_is_best_or_tied(rows):
    assert said(*rows) == []


def test_several_are_named_together_and_the_brier_score_counts_where_the_log_loss_ties():
    assert said(row(), row("probe", theirs=0.4), row("evidence", theirs=0.6)) == [
        "On validation, Platt scaling and Probe are better than GrACE: log loss 0.510 and 0.400 "
        "against 0.530."
    ]
    tied = row(theirs=0.53)
    assert said(tied, row(metric="brier", ours=0.2, theirs=0.15)) == [
        "On validation, Platt scaling is better than GrACE: Brier score 0.150 against 0.200."
    ]


def test_seeds_are_averaged_and_their_errors_with_them():
    seeds = [row(seed=seed, theirs=theirs) for seed, theirs in enumerate((0.50, 0.54))]
    assert said(*seeds) == [
        "On validation, Platt scaling is better than GrACE: log loss 0.520 against 0.530, the mean "
        "of 2 seeds."
    ]
    assert said(*(dataclasses.replace(one, standard_error=0.02) for one in seeds)) == []


def test_tasks_are_named_where_there_are_several_and_variants_leave_the_line_to_grace():
    other = row(task="rivers", theirs=0.9)
    papers = row(a="grace-paper", ours=0.8)
    assert said(row(theirs=0.6), other, papers) == []
    assert said(row(), other)[0].startswith("On validation (capitals), Platt scaling is better")
    assert "better than GrACE (paper): log loss 0.510 against 0.800." in said(papers)[0]


def test_console_markdown_and_page_begin_with_it():
    report = summarize(study(validation=[row()]), resamples=10)
    (line,) = headlines(report)
    console = Console(file=io.StringIO(), width=100)
    console.print(render_table(report))
    name, *rest = console.file.getvalue().splitlines()
    assert name.startswith("study") and " ".join(rest).index(line[:40]) < 40
    text = markdown(report).split("\n\n")
    assert text[0].startswith("# ") and text[1] == f"**{line}**"
    page = render_page(report, [])
    assert page.index("<h1>") < page.index(line) < page.index("<table")
    assert "On validation" not in markdown(summarize(study(), resamples=10))


@pytest.mark.parametrize(("fitted", "ece", "warned"), [(0, 0.2, 1), (0, 0.03, 0), (0.8, 0.2, 0)])
def test_votes_over_samples_unlike_those_of_the_fit_are_an_alarm_where_c_is_off(
    fitted, ece, warned
):
    (pool,) = made_up_replay().pools
    (rated,) = pool.confidences
    pool = dataclasses.replace(
        pool,
        temperature=0.8,
        fitted_temperature=fitted,
        confidences=(dataclasses.replace(rated, ece=ece),),
    )
    lines = headlines(dataclasses.replace(MADE, validation=(), pools=(pool,)))
    assert len(lines) == warned
    assert all("sample.train_temperature=0.8" in line and "20.0" in line for line in lines)
