"""Stage `score`: the tuned model answers the test questions, and every estimator rates answers."""

from __future__ import annotations

import time

from grace.errors import RunError
from grace.estimators import Estimate, Estimator, Evidence, Samples
from grace.pipeline.context import Context
from grace.pipeline.grading import grade_split
from grace.pipeline.sampling import sample_split, sampling_for
from grace.plugins import load
from grace.progress import progress
from grace.records import Confidence
from grace.store import Split


def score(context: Context) -> None:
    """Write one confidence table per estimator."""
    directory = context.directory
    test, tuned = directory.split("test"), directory.tuned()
    questions = test.questions.read()
    sample_split(
        context,
        context.tuned,
        tuned,
        questions,
        sampling_for(context, "test"),
        stage="score",
        label="tuned",
    )
    grade_split(context, tuned, questions)
    splits = {name: directory.split(name) for name in ("train", "validation")}
    known = {name: context.samples(split, split.questions.read()) for name, split in splits.items()}
    rated = {"base": context.samples(test, questions), "tuned": context.samples(tuned, questions)}
    outputs, costs = [tuned.responses.path, tuned.grades.path], {}
    names = context.settings.report.estimators
    with progress("score estimators", len(names), unit="estimators") as advance:
        for name in names:
            estimator: Estimator = load("grace.estimators", name, "ESTIMATOR")
            evidence = Evidence(
                train=known["train"],
                validation=known["validation"],
                test=rated[estimator.answers],
                engine=lambda: context.base,
            )
            costs[name] = _rate(context, estimator, evidence)
            outputs.append(rated_split(context, estimator).confidences(estimator.name).path)
            advance(1, name)
    inputs = [test.responses.path, test.grades.path, splits["validation"].grades.path]
    inputs += sorted(path for path in directory.adapter.iterdir() if path.is_file())
    directory.finish("score", {"estimators": list(names)}, inputs, outputs, costs=costs)


def rated_split(context: Context, estimator: Estimator) -> Split:
    """Return the split whose responses an estimator rates."""
    directory = context.directory
    return directory.tuned() if estimator.answers == "tuned" else directory.split("test")


def _rate(context: Context, estimator: Estimator, evidence: Evidence) -> dict[str, float]:
    start = time.perf_counter()
    estimate = estimator.estimate(evidence)
    seconds = time.perf_counter() - start
    responses = evidence.test.responses
    _check(estimator, estimate, evidence.test)
    rated_split(context, estimator).confidences(estimator.name).write(
        [
            Confidence(response.id, value)
            for response, value in zip(responses, estimate.confidences, strict=True)
        ]
    )
    return {
        "extra_seconds_per_answer": seconds / len(responses),
        "extra_forward_tokens_per_answer": estimate.extra_forward_tokens / len(responses),
    }


def _check(estimator: Estimator, estimate: Estimate, samples: Samples) -> None:
    values = estimate.confidences
    if len(values) != len(samples.responses):
        raise RunError(
            f"estimator {estimator.name} gave {len(values)} values for {len(samples.responses)} "
            "responses; it must give one per response, or None"
        )
    bad = next((v for v in values if v is not None and not 0 <= v <= 1), None)
    if bad is not None:
        raise RunError(f"estimator {estimator.name} gave {bad}; a confidence lies in [0, 1]")
