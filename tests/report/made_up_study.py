"""A made-up study: estimators of different noise on the same answers."""

import json

import numpy as np

from grace.report import (
    EstimatorResult,
    RatedAnswer,
    Report,
    ReportInput,
    TargetRow,
    from_json,
    summarize,
    to_json,
    write_report,
)

NASTY = '<script>alert("1")</script> & {{ 7 * 7 }} | `x`'


def result(estimator="grace", seed=0, task="capitals", n=60, noise=1.0, cut=0, **options):
    """Confidences of the same n answers (per task and seed), noisier for worse estimators."""
    rng = np.random.default_rng([seed, len(task)])
    truth = rng.normal(0, 2, n)
    correct = rng.random(n) < 1 / (1 + np.exp(-truth))
    own = np.random.default_rng([seed, len(estimator)])
    confidence = 1 / (1 + np.exp(-truth - own.normal(0, noise, n)))
    values = [None if i < cut else float(c) for i, c in enumerate(confidence)]
    return EstimatorResult(
        task=task,
        backbone="pocket",
        estimator=estimator,
        seed=seed,
        confidence=values,
        correct=correct.tolist(),
        ids=[f"q{i}#0" for i in range(n)],
        **{"train_task": task, "seconds_per_answer": 0.01} | options,
    )


def study(results=None, **options):
    results = results or [
        result("verbal", noise=3, cut=5),
        result("grace", extra_forward_tokens_per_answer=0),
        result("platt", noise=2),
    ]
    answers = zip(results[0].confidence, results[0].correct, strict=True)
    trained = results[0].train_task
    fields = {
        "name": f"study {NASTY}",
        "created": "2026-01-02",
        "hardware": "a processor, 2 cores",
        "results": results,
        "targets": [
            TargetRow(0, 0.0, 0.5, 30, 0.2, trained),
            TargetRow(1, 0.5, 1.0, 0, None, trained),
        ],
        "notes": [f"a note {NASTY}"],
        "settings": {"train.learning_rate": 1e-5, "prompt": NASTY},
        "examples": [
            RatedAnswer(
                question=f"Q{i} {NASTY}",
                answer="A " * 400,
                correct=y,
                confidence=c,
                task=results[0].task,
            )
            for i, (c, y) in enumerate(answers)
        ],
    }
    return ReportInput(**fields | options)


def plain(report):
    """Return a report as the JSON that it is read back from."""
    made = json.loads(json.dumps(to_json(report), allow_nan=False))
    assert to_json(from_json(Report, made)) == made
    return made


def build_report(data, directory, resamples):
    """Compute a report, write it into a directory, and return it."""
    report = summarize(data, resamples=resamples)
    write_report(report, directory)
    return report
