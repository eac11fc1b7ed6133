"""Several runs as one report: raw confidences stay, so statistics are joint."""

import dataclasses

import numpy as np
import pytest
from made_up_study import plain, result, study

from grace import metrics
from grace.errors import UserInputError
from grace.report import RatedAnswer, Report, TargetRow, from_json, merge, summarize
from grace.report.groups import groups, transfers
from grace.report.names import label


def run(seed=0, task="capitals", train_task=None, name=None, **options):
    names = ("grace", "platt")
    train_task = train_task or task
    results = [result(e, seed=seed, task=task, train_task=train_task, n=80) for e in names]
    return study(results, name=name or f"{task}-{seed}", **options)


def checked(data):
    return plain(summarize(data, resamples=30))


def test_seeds_tasks_and_training_tasks_become_one_report():
    inputs = [
        run(seed, task, train_task)
        for seed in range(3)
        for task in ("capitals", "rivers")
        for train_task in ("capitals", "rivers")
    ]
    report = checked(merge(inputs, "all"))
    assert report["name"] == "all" and len(report["rows"]) == 3 * 4 * 2
    assert [group.title for group in groups(from_json(Report, report))] == [
        "capitals",
        "rivers",
        "capitals (trained on rivers)",
        "rivers (trained on capitals)",
    ]
    assert all(entry["seeds"] == [0, 1, 2] for entry in report["summaries"])
    pairs = transfers(from_json(Report, report))
    about = {(pair["ece"].task, pair["ece"].train_task) for pair in pairs}
    assert about == {("capitals", "rivers"), ("rivers", "capitals")}
    assert {tuple(row["seeds"]) for row in report["comparisons"]} == {(0, 1, 2)}


def test_targets_are_those_of_the_seeds_of_the_first_run_and_not_of_its_variants():
    def one(seed, name, n):
        row = TargetRow(bin=5, low=0.5, high=0.6, n=n, accuracy=0.5, task="capitals")
        return run(seed, settings={"report": {"name": name}}, targets=[row])

    merged = merge([one(0, "grace", 4), one(1, "grace", 4), one(0, "labels", 9)], "all")
    assert [row.n for row in merged.targets] == [8]


def test_the_joint_mean_is_that_of_the_seeds_and_the_interval_holds_it():
    report = checked(merge([run(seed) for seed in range(3)], "three seeds"))
    entry = next(e for e in report["summaries"] if e["estimator"] == "grace")
    made = [result("grace", seed=seed, n=80) for seed in range(3)]
    values = [metrics.brier(r.confidence, r.correct) for r in made]
    assert entry["brier"] == pytest.approx(np.mean(values), abs=1e-6)
    assert entry["interval"]["brier"][0] < np.mean(values) < entry["interval"]["brier"][1]


def test_one_run_merged_is_that_run():
    alone = study()
    assert checked(merge([alone], alone.name)) == checked(alone)


def test_an_estimator_that_two_runs_share_counts_once_though_its_time_was_measured_twice():
    again = dataclasses.replace(
        run(),
        results=[
            dataclasses.replace(
                r, seconds_per_answer=0.02, confidence=[c + 1e-9 for c in r.confidence]
            )
            for r in run().results
        ],
    )
    rows = checked(merge([run(), again], "twice"))["rows"]
    assert [row["seconds_per_answer"] for row in rows] == [0.01, 0.01]


def test_the_order_of_runs_does_not_change_a_number():
    inputs = [run(0), run(1), run(0, "rivers")]
    one, other = (checked(merge(order, "x")) for order in (inputs, inputs[::-1]))
    for key in ("rows", "summaries", "comparisons", "targets"):
        assert one[key] == other[key], key


def test_targets_are_pooled_by_training_task():
    report = checked(merge([run(0), run(1), run(0, "rivers")], "x"))
    pooled = {(row["task"], row["bin"]): (row["n"], row["accuracy"]) for row in report["targets"]}
    assert pooled["capitals", 0] == (60, 0.2) and pooled["rivers", 0] == (30, 0.2)
    assert pooled["rivers", 1] == (0, None)


def test_notes_settings_and_provenance_of_all_runs_are_kept():
    one = run(0, settings={"seed": 0, "train": {"rank": 16}}, hardware="a laptop")
    other = run(1, settings={"seed": 1, "train": {"rank": 16}}, created="2026-02-01")
    report = checked(merge([one, other], "x"))
    assert report["settings"] == {"seed": "0; 1", "train.rank": "16"}
    assert report["hardware"] == "a laptop; a processor, 2 cores"
    assert report["created"] == "2026-02-01"
    assert report["notes"][:-1] == list(one.notes) == list(other.notes)  # stands once
    assert "one experiment" in report["notes"][-1]


def test_examples_come_from_the_first_run_of_each_task():
    def with_example(data, text):
        task = data.results[0].task
        example = RatedAnswer(
            question=text, answer="an answer", correct=True, confidence=0.9, task=task
        )
        return dataclasses.replace(data, examples=[example])

    inputs = [run(0), run(1), run(0, "rivers")]
    named = [with_example(data, data.name) for data in inputs]
    report = checked(merge(named, "x"))
    shown = [(e["task"], e["question"]) for e in report["examples"]]
    assert shown == [("capitals", "capitals-0"), ("rivers", "rivers-0")]


def test_runs_that_contradict_each_other_are_refused():
    other = dataclasses.replace(run(), results=[result("grace", noise=3)])
    with pytest.raises(UserInputError, match="two different results for grace on capitals"):
        merge([run(), other], "x")


def test_what_a_differently_named_run_rates_otherwise_is_named_after_that_run():
    def of(name, noise=1.0):
        rated = [result("platt", run=name), result("loglik+isotonic", run=name, noise=noise)]
        return study([result(name, run=name), *rated])

    report = checked(merge([of("grace"), of("half", noise=3)], "both"))
    names = ["grace", "half", "loglik+isotonic", "loglik@half+isotonic", "platt"]
    assert [row["estimator"] for row in report["rows"]] == names
    assert label(names[3]) == "Log-likelihood, logistic + isotonic (half)"
    with pytest.raises(UserInputError, match=r"results for loglik.*report\.name=NAME"):
        merge([of("grace"), of("grace", noise=3)], "both")
    with pytest.raises(UserInputError, match="different results for loglik@half"):
        merge([of("grace"), of("half", noise=2), of("half", noise=3)], "three")


def test_seeds_with_the_same_test_questions_are_said_to_be_one_experiment():
    same = [result("grace", seed) for seed in range(3)]
    (note,) = summarize(study(same, notes=()), resamples=20).notes
    assert note.startswith("capitals: all 3 seeds have the same") and "one experiment" in note
    other = [dataclasses.replace(r, ids=[f"{r.seed}-{i}" for i in r.ids]) for r in same]
    assert summarize(study(other, notes=()), resamples=20).notes == ()
    assert summarize(study(same[:1], notes=()), resamples=20).notes == ()
    drawn = [dataclasses.replace(r, training=frozenset({f"train-{r.seed}"})) for r in same]
    (note,) = summarize(study(drawn, notes=()), resamples=20).notes
    assert "one experiment" not in note
    assert note.endswith("They differ in their training questions; each test question counts once.")
