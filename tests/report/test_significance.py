"""Seeds, pairs and marks: what the report calls better is better, and no more."""

import dataclasses
import math

import numpy as np
import pytest
from made_up_study import result

from grace import metrics
from grace.metrics import Estimate
from grace.metrics.resampling import TAILS
from grace.report import EstimatorResult, summary
from grace.report.significance import Paired, Trials, leader, marks
from grace.report.summary import grouped, transfers

SEEDS = range(5)


def trials(*results, resamples=200):
    return Trials(results, bins=10, resamples=resamples, seed=0)


def seeds(estimator="grace", noise=1.0, count=5, **options):
    return [result(estimator, seed=s, noise=noise, n=200, **options) for s in range(count)]


def summaries(results, resamples=200):
    drawn = trials(*results, resamples=resamples)
    rows = {one.key: summary.metric_row(one, drawn, bins=10) for one in results}
    found = summary.summaries(drawn, grouped(results), rows)
    return {entry.estimator: entry for entry in found}


# --- one estimator over seeds


def test_mean_and_spread_are_those_of_the_seeds():
    ours = seeds()
    entry = summaries(ours)["grace"]
    values = [metrics.ece(r.confidence, r.correct) for r in ours]
    assert entry.ece == pytest.approx(np.mean(values))
    assert entry.spread["ece"] == pytest.approx(np.std(values, ddof=1))
    low, high = entry.interval["ece"]
    assert 0 <= low < high < 1


def test_an_interval_covers_questions_and_seeds_as_often_as_it_says():
    """Accuracy with a random level per seed, question difficulties shared by the seeds."""
    truth, covered = 0.6, 0
    for study in range(150):
        rng = np.random.default_rng(study)
        difficulty = rng.uniform(-0.3, 0.3, 150)
        results = []
        for seed in SEEDS:
            level = truth + difficulty + rng.normal(0, 0.06)
            right = rng.random(150) < level
            results.append(dataclasses.replace(made(right), seed=seed))
        low, high = trials(*results).estimate(results, "accuracy").interval
        covered += low <= truth <= high
    assert 0.91 <= covered / 150 <= 1


def made(correct, confidence=None, **options):
    n = len(correct)
    fields = {"task": "t", "train_task": "t", "backbone": "b", "estimator": "grace", "seed": 0}
    fields["ids"] = [f"q{i}#0" for i in range(n)]
    confidence = [0.5] * n if confidence is None else confidence
    return EstimatorResult(confidence=confidence, correct=list(correct), **fields | options)


def test_two_seeds_do_not_estimate_their_own_spread():
    """The interval is that of the questions: the same values twice say no more than once."""
    one = seeds(count=1)
    twice = [one[0], dataclasses.replace(one[0], seed=1)]
    alone, pooled = trials(*one).estimate(one, "brier"), trials(*twice).estimate(twice, "brier")
    assert pooled.interval == pytest.approx(alone.interval)
    assert summaries(twice)["grace"].spread["brier"] == 0
    assert summaries(one)["grace"].spread["brier"] is None


def test_seeds_that_agree_narrow_an_interval_less_than_independent_questions_would():
    same = [dataclasses.replace(seeds(count=1)[0], seed=s) for s in SEEDS]
    low, high = trials(*same).estimate(same, "brier").interval
    alone = trials(same[0]).estimate(same[:1], "brier").interval
    assert (low, high) == pytest.approx(alone)


def test_a_seed_without_a_class_is_left_out_of_auroc_only():
    ours = seeds(count=3)
    ours[2] = dataclasses.replace(ours[2], correct=[True] * 200)
    entry = summaries(ours)["grace"]
    values = [metrics.auroc(r.confidence, r.correct) for r in ours[:2]]
    assert entry.auroc == pytest.approx(np.mean(values))
    assert len(entry.seeds) == 3


# --- pairs


def test_a_pair_equals_resampling_both_sides_by_hand():
    a, b = seeds("grace"), seeds("platt", noise=2)
    found = trials(*a, *b).paired(a, b)["brier"]
    drawn = np.random.default_rng(0).integers(200, size=(200, 200))
    gaps = np.zeros(200)
    for x, y in zip(a, b, strict=True):
        gap = (np.array(x.confidence) - x.correct) ** 2 - (np.array(y.confidence) - y.correct) ** 2
        gaps += gap[drawn].mean(axis=1) / 5
    means = [metrics.brier(r.confidence, r.correct) for r in (*a, *b)]
    each = np.array(means[:5]) - means[5:]
    assert found.estimate.value == pytest.approx(each.mean())
    assert found.estimate.interval == pytest.approx(tuple(np.quantile(gaps, TAILS)), abs=0.01)
    alone = trials(a[0], b[0]).paired(a[:1], b[:1])["brier"]
    one = a[0], b[0]
    gap, other = ((np.array(r.confidence) - r.correct) ** 2 for r in one)
    drawn_R = (gap - other)[drawn].mean(axis=1)
    assert alone.estimate.interval == pytest.approx(
        tuple(np.quantile(drawn_R, TAILS, method="weibull"))
    )
    assert found.seeds == list(SEEDS) and found.n == 1000


def test_pairing_is_tighter_than_two_separate_intervals():
    a, b = seeds("grace"), seeds("platt", noise=1.5)
    shared = trials(*a, *b)
    low, high = shared.paired(a, b)["brier"].estimate.interval
    ends = [shared.estimate(side, "brier").interval for side in (a, b)]
    assert high - low < sum(end[1] - end[0] for end in ends) / 2


def test_only_seeds_and_responses_in_both_are_compared():
    a, b = seeds("grace", count=4), seeds("verbal", noise=2, cut=20, count=3)
    found = trials(*a, *b).paired(a, b)
    expected = [
        metrics.brier(x.confidence[20:], x.correct[20:])
        - metrics.brier(y.confidence[20:], y.correct[20:])
        for x, y in zip(a[:3], b, strict=True)
    ]
    assert found["brier"].estimate.value == pytest.approx(np.mean(expected))
    assert found["brier"].seeds == [0, 1, 2] and found["brier"].n == 3 * 180


def test_results_that_share_no_id_are_not_compared():
    a, b = seeds("grace", count=1), [dataclasses.replace(seeds("platt", count=1)[0], ids=())]
    assert trials(*a, *b).paired(a, b) == {}
    assert summaries([*a, *b])["platt"].to_leader["brier"] is None


# --- marks


def fixed(table):
    """Differences as given: (a, b) -> interval of a - b."""

    def compare(a, b):
        if (a, b) in table:
            return Paired(0.0, 0.0, Estimate(0.0, *table[a, b]), [0], 1)
        low, high = table[b, a]
        return Paired(0.0, 0.0, Estimate(0.0, -high, -low), [0], 1)

    return compare


WORSE, UNCLEAR = (0.01, 0.02), (-0.01, 0.02)


def test_best_needs_to_be_clear_of_every_other_and_second_of_the_rest():
    mean = {"a": 0.1, "b": 0.2, "c": 0.3}
    clear = fixed({("b", "a"): WORSE, ("c", "a"): WORSE, ("c", "b"): WORSE})
    assert marks(mean, -1, clear) == {"a": "best", "b": "second"}
    higher = fixed({pair: (-0.02, -0.01) for pair in [("b", "a"), ("c", "a"), ("c", "b")]})
    assert marks({"a": 0.9, "b": 0.8, "c": 0.7}, 1, higher) == {"a": "best", "b": "second"}


def test_a_noisy_third_can_tie_with_the_first_when_the_second_does_not():
    mean = {"a": 0.1, "b": 0.2, "c": 0.3, "d": 0.4}
    table = {("b", "a"): WORSE, ("c", "a"): UNCLEAR, ("d", "a"): WORSE}
    assert marks(mean, -1, fixed(table)) == {"a": "tied", "c": "tied"}


def test_nothing_is_marked_where_nothing_is_told_apart_or_known():
    unclear = fixed({("b", "a"): UNCLEAR})
    assert marks({"a": 0.1, "b": 0.2}, -1, unclear) == {}
    assert marks({"a": 0.1}, -1, unclear) == {}
    assert marks({"a": math.nan, "b": math.nan}, -1, unclear) == {}
    assert leader({"a": math.nan}, -1, unclear) is None
    assert marks({"a": 0.1, "b": 0.2, "c": math.nan}, -1, fixed({("b", "a"): WORSE})) == {
        "a": "best"
    }


def test_an_estimator_that_skips_what_is_hard_does_not_lead_by_that():
    """Verbal rates the easy half only; on that half GrACE's answers are better."""
    right = np.arange(400) % 4 != 0  # 75%
    easy = np.arange(400) < 200
    theirs = np.where(easy, np.arange(400) % 10 != 0, False)  # 90% of the easy half
    ours = np.where(easy, np.arange(400) % 50 != 0, right)  # 98% of it, fewer overall
    confidence = [0.9 if e else None for e in easy]
    entries = summaries([made(ours), made(theirs, confidence, estimator="verbal")])
    assert entries["verbal"].accuracy > entries["grace"].accuracy
    assert entries["grace"].mark["accuracy"] == "best"
    assert entries["verbal"].to_leader["accuracy"].difference == pytest.approx(-0.08)


# --- out of domain


def test_transfer_is_paired_by_question_and_averaged_over_seeds():
    home = seeds("grace", noise=0.3)
    away = seeds("grace", noise=3, train_task="rivers")
    results = [*home, *away, *seeds("likelihood")]
    found = {row.metric: row for row in transfers(trials(*results), grouped(results))}
    row = found["brier"]
    means = [
        np.mean([metrics.brier(r.confidence, r.correct) for r in side]) for side in (home, away)
    ]
    assert [row.in_domain, row.out_of_domain] == pytest.approx(means)
    assert row.difference == pytest.approx(means[1] - means[0])
    assert row.interval[0] > 0 and (row.train_task, row.task) == ("rivers", "capitals")
    assert set(found) == {"ece", "brier", "auroc", "accuracy"} and row.estimator == "grace"
