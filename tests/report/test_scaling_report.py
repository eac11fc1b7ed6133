"""What a report says of votes: joint rows, tables, figures and case studies."""

import pytest
from made_up_replays import made_up_replay, pool_of
from made_up_study import build_report, result, study

from grace.metrics import wqd
from grace.report import Report, from_json, merge, summarize, to_json
from grace.report.names import strategy_name
from grace.report.tables import gain, scaling_tables

ABOUT = ("sums", "pocket")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A report of three seeds, and its directory."""
    directory = tmp_path_factory.mktemp("votes")
    inputs = [
        study([result(seed=s)], name=f"seed-{s}", replays=[made_up_replay(s)]) for s in range(3)
    ]
    return directory, to_json(build_report(merge(inputs, "votes"), directory, resamples=10))


@pytest.fixture(scope="module")
def page(written):
    return (written[0] / "report.html").read_text()


def summarized(replays):
    return to_json(summarize(study(replays=replays), resamples=10))


def tables_of(report):
    return scaling_tables(from_json(Report, report))[ABOUT]


def rows_of(report, part, strategy, budget=8):
    return [r for r in report[part] if (r["strategy"], r["budget"]) == (strategy, budget)]


def test_joint_rows_are_means_over_seeds_with_paired_gains(written):
    report = written[1]
    for strategy in ("sc", "esc@grace", "grace-es"):
        each = rows_of(report, "scaling", strategy)
        (row,) = rows_of(report, "scaling_joint", strategy)
        assert [seed for own in each for seed in own["seeds"]] == row["seeds"] == [0, 1, 2]
        for key in ("accuracy", "mean_samples", "mean_tokens", "gain"):
            mean = sum(own[key] for own in each) / 3
            assert row[key] == pytest.approx(mean, abs=2e-6)
        assert sum(row["used"]) == pytest.approx(1, abs=1e-5)
    (best,) = rows_of(report, "scaling_joint", "grace-sc")
    assert best["gain_interval"][0] > 0  # these confidences know what is right
    assert best["gain_own"] == best["gain"]  # the same pool serves as both
    (plain,) = rows_of(report, "scaling_joint", "sc")
    assert (plain["gain"], plain["gain_own"]) == (0, None)


def test_what_one_seed_says_is_the_joint_row_of_that_seed():
    report = summarized([made_up_replay(4)])
    assert report["scaling"] == report["scaling_joint"]


def test_variants_share_the_rows_of_the_backbones_samples():
    replays = [made_up_replay(0), made_up_replay(0, name="grace-paper")]
    report = summarized(replays)
    assert len(rows_of(report, "scaling_joint", "sc")) == 1
    assert len(rows_of(report, "scaling_joint", "sc@grace-paper")) == 1


def test_what_variants_share_is_shown_over_the_most_seeds():
    replays = [made_up_replay(0, name="gentle"), made_up_replay(0), made_up_replay(1)]
    report = summarized(replays)
    assert [row["seeds"] for row in rows_of(report, "scaling_joint", "sc")] == [[0, 1]]
    assert [row["seeds"] for row in rows_of(report, "scaling_joint", "sc@gentle")] == [[0]]


def test_the_table_is_at_eight_samples_and_marks_what_is_clear(written):
    report = written[1]
    table = tables_of(report)[0]
    assert table.title == "Up to 8 samples on sums, pocket"
    by_name = {row[0].text: row for row in table.rows}
    (row,) = rows_of(report, "scaling_joint", "grace-sc")
    weighed = by_name["GrACE-SC"]
    assert weighed[1].text == f"{100 * row['accuracy']:.1f}"
    assert weighed[1].rest.startswith("± ") and weighed[1].rest.endswith("]")
    assert weighed[4].verdict == "better"
    assert by_name["SC"][4].verdict == "equal"
    assert "3 seeds" in table.lead


def test_the_gain_over_a_models_own_samples_is_shown_where_it_is_another(written):
    report = written[1]
    assert tables_of(report)[0].heads[-1] == "minus SC (points)"
    joint = [
        row
        | (
            {"accuracy": 0.1, "gain": -0.3, "gain_own": 0.0}
            if row["strategy"] == "sc@grace"
            else {}
        )
        for row in report["scaling_joint"]
    ]
    other = tables_of(report | {"scaling_joint": joint})[0]
    by_name = {row[0].text: row for row in other.rows}
    assert by_name["SC (GrACE's samples)"][1].text == "10.0"
    assert other.heads[-1] == "minus SC, same samples" and by_name["SC"][5].text == "-"


@pytest.mark.parametrize(
    ("ends", "verdict"),
    [([0.01, 0.03], "better"), ([-0.03, -0.01], "worse"), ([-0.01, 0.03], "unclear")],
)
def test_a_gain_is_marked_where_its_interval_excludes_zero(ends, verdict):
    cell = gain(0.02, ends)
    assert (cell.text, cell.verdict) == ("+2.0", verdict)


def test_equal_accuracy_compares_with_sc_asc_and_esc_over_both_models_samples(written):
    rows = [r for r in written[1]["equal_accuracy"] if r["strategy"] == "grace-es"]
    sides = [f"{name}{at}" for at in ("", "@grace") for name in ("sc", "asc", "esc")]
    assert [row["reference"] for row in rows] == sides
    for row in rows:
        assert row["saved"] == pytest.approx(row["reference_samples"] - row["samples"], abs=2e-6)
    table = tables_of(written[1])[1]
    assert table.rows[0][5].verdict == "better"  # the first sure one is right more often than SC


def test_an_accuracy_that_is_not_reached_is_said_and_not_made_up(written):
    row = written[1]["equal_accuracy"][0] | {
        "samples": None,
        "samples_interval": [7.5, None],
        "saved": None,
        "saved_interval": [None, 0.5],
        "reached": 0.3,
    }
    stored = written[1] | {"equal_accuracy": [row]}
    assert to_json(from_json(Report, stored)) == stored
    (shown,) = tables_of(written[1] | {"equal_accuracy": [row]})[1].rows
    assert (shown[4].text, shown[5].text, shown[5].verdict) == ("never", "-", "unclear")
    for ends in ([None, -0.5], [None, None]):
        table = tables_of(written[1] | {"equal_accuracy": [row | {"saved_interval": ends}]})[1]
        assert table.rows[0][5].verdict == "worse"
    sometimes = row | {"samples": 7.9, "saved": 0.1}
    (shown,) = tables_of(written[1] | {"equal_accuracy": [sometimes]})[1].rows
    assert (shown[4].rest, shown[5].rest) == ("[7.50, never]", "[never, +0.50]")
    assert shown[5].verdict == "unclear"


def test_within_question_discrimination_is_the_mean_over_seeds(written):
    (row,) = written[1]["discrimination"]
    each = []
    for seed in range(3):
        pool = pool_of(seed)
        ids = [n for n in range(80) for _ in range(8)]
        each.append(wqd(pool.confidence("grace").ravel(), pool.correct_QS.ravel(), ids))
    assert row["wqd"] == pytest.approx(sum(each) / 3, abs=1e-6)
    assert row["wqd_interval"][0] < row["wqd"] < row["wqd_interval"][1]
    assert (row["seeds"], row["n"]) == ([0, 1, 2], 3 * 640)


def test_page_and_markdown_show_every_table_and_figures_are_written(written, page):
    names = {path.name for path in (written[0] / "figures").iterdir()}
    for figure in ("scaling-sums-pocket", "samples-sums-pocket"):
        assert {f"{figure}.png", f"{figure}.svg"} <= names
        assert f'id="caption-{figure}"' in page
    text = (written[0] / "report.md").read_text()
    for title in (
        "Up to 8 samples on sums",
        "At equal accuracy on sums",
        "Single samples on sums",
    ):
        assert f"## {title}" in text and title in page
    assert "**better**" in text


@pytest.mark.parametrize(
    ("strategy", "estimator", "threshold", "shown"),
    [
        ("sc", None, None, "SC"),
        ("sc@grace-paper", None, None, "SC (GrACE (paper)'s samples)"),
        ("asc,rule=beta", None, None, "ASC (rule beta)"),
        ("grace-es", "grace", 0.8, "GrACE-ES (stop at 0.8)"),
        ("grace-es,threshold=0.9", "grace", 0.9, "GrACE-ES (stop at 0.9)"),
        ("p_true-sc@grace", "p_true", None, "P(True)-SC (GrACE's samples)"),
        ("grace-best", "grace", None, "GrACE-best of n"),
    ],
)
def test_a_strategy_says_whose_confidences_and_samples_it_uses(
    strategy, estimator, threshold, shown
):
    assert strategy_name(strategy, estimator, threshold) == shown
