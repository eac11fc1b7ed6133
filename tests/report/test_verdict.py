"""What a report comes to: every comparison is counted, losses are named, samples are told."""

from __future__ import annotations

import dataclasses

from made_up_replays import made_up_replay
from made_up_study import result, study

from grace.report import summarize
from grace.report.groups import groups
from grace.report.sentences import samples_saved, standings, verdict
from grace.report.tables import overview, quality_table


def changed(report, **verdicts):
    """Return the report with the difference to each rival in Brier score as given."""
    ends = {"better": (-0.2, -0.1), "worse": (0.1, 0.2), "even": (-0.1, 0.1)}
    rows = [
        dataclasses.replace(row, interval=ends[verdicts[row.b]])
        for row in report.comparisons
        if row.metric == "brier" and row.b in verdicts
    ]
    return dataclasses.replace(report, comparisons=tuple(rows))


NAMES = ("grace", "grace-paper", "platt", "probe", "likelihood")
MADE = summarize(study([result(name) for name in NAMES]), resamples=10)


def test_the_verdict_counts_wins_ties_and_losses_and_names_who_is_better():
    report = changed(
        MADE, **{"platt": "better", "probe": "worse", "likelihood": "even", "grace-paper": "even"}
    )
    assert verdict(report) == (
        "GrACE's Brier score is clearly better than another method's in 1 of 4 comparisons "
        "(with every other row of the report's tables on capitals), without a clear difference in "
        "2, and clearly worse in 1 (than Probe on capitals)."
    )
    (standing,) = standings(report)
    assert str(standing) == (
        "better than Platt scaling; not told apart from GrACE (paper) and Likelihood; worse than "
        "Probe"
    )


def test_the_verdict_counts_every_other_row_of_the_tables():
    names = ("grace", "rows", "evidence", "likelihood")
    made = [result(name, task=task) for name in names for task in ("capitals", "rivers")]
    report = summarize(study(made), resamples=10)
    others = sum(len(quality_table(group, ()).rows) - 1 for group in groups(report))
    assert f"of {others} comparisons (with every other row" in verdict(report)


def test_the_overview_is_the_mean_over_the_tasks_that_a_method_was_trained_on():
    tasks = ("capitals", "rivers")
    report = summarize(
        study([result(name, task=task) for name in NAMES for task in tasks]), resamples=10
    )
    table = overview(report)
    assert [row[0].text for row in table.rows] == ["GrACE", "Platt scaling", "Probe", "Likelihood"]
    eces = [row.ece for row in report.rows if row.estimator == "grace"]
    assert table.rows[0][1].text == f"{100 * sum(eces) / 2:.1f}" and "2 tasks" in table.lead
    assert overview(summarize(study([result("grace")]), resamples=10)) is None


def test_what_a_vote_saves_is_one_sentence_with_intervals():
    report = summarize(study(replays=[made_up_replay()]), resamples=10)
    said = samples_saved(report)
    row = next(r for r in report.scaling_joint if r.strategy == "grace-sc" and r.budget == 8)
    (reach,) = [r for r in report.equal_accuracy if (r.strategy, r.reference) == ("grace-es", "sc")]
    low, high = (100 * end for end in row.gain_interval)
    assert f"on 1 of 1 tasks, clearly less often on none, in points: {100 * row.gain:+.1f} " in said
    assert f"[{low:+.1f}, {high:+.1f}] on sums" in said
    assert f"with this many samples on average: {reach.samples:.1f} on sums." in said
    vote = dataclasses.replace(reach, strategy="grace-vote", samples=1.25)
    fitted = dataclasses.replace(report, equal_accuracy=(reach, vote))
    assert " on sums; GrACE-vote with this many samples on average: 1.2 on" in samples_saved(fitted)
    never = dataclasses.replace(report, equal_accuracy=(dataclasses.replace(reach, samples=None),))
    assert samples_saved(never).endswith("reaches the accuracy of 8 plain votes nowhere.")
    assert samples_saved(MADE) == ""
    another = dataclasses.replace(made_up_replay(), backbone="other")
    both = samples_saved(summarize(study(replays=[made_up_replay(), another]), resamples=10))
    assert all(both.count(f" on sums with {name}") == 2 for name in ("pocket", "other"))
