"""The confidence of a model in llama.cpp, by the precision of its file: float16, q8_0, q4_k_m.

Exports a finished run with `train.lora=never` to OUT, one file per precision, and answers its test
questions with each, greedily. Prints how far c moves from that of the transformers engine (answers
of the same tokens), and ECE, Brier score and AUROC of the answers that every engine ended.
Quantized files are also recalibrated on the first 200 and 500 validation questions. Changes are
against float16, with 95% intervals of a paired bootstrap over questions. Answers are kept in OUT,
so the same command goes on where it was stopped.

    pip install '.[llama]'
    python bench/quantized.py runs/smollm2/qa_wikidata/seed-0 runs/quantized
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grace.calibration import LogOdds
from grace.engines import Opening, Sampling
from grace.engines.llama import LlamaEngine
from grace.evidence import Evidence
from grace.export import export_model
from grace.grading import grader_of
from grace.metrics.resampling import Resamples, interval
from grace.model.recalibrating import fit_recalibration, parts
from grace.pipeline.context import Context, open_run
from grace.store import Split, read_card, read_json, write_json

Array = NDArray[np.float64]
METRICS = ("ece", "brier", "auroc")
REFERENCE = "float16"
RECALIBRATED = ("q8_0", "q4_k_m")
KNOWN = (200, 500)


class Answers(NamedTuple):
    """Answers to a split's questions: tokens, log-probabilities with the end's, c, and grades.

    c is None for an answer that was cut.
    """

    tokens: list[list[int]]
    logprobs: list[list[float]]
    confidence: list[float | None]
    correct: list[bool]


def of_run(split: Split) -> Answers:
    """Return what the transformers engine answered, in the order of the questions."""
    pairs = zip(split.responses.read(), split.grades.read(), strict=True)
    known = {one.question_id: (one, grade.correct) for one, grade in pairs}
    made = [known[question.id] for question in split.questions.read()]
    return Answers(
        [list(one.token_ids) for one, _ in made],
        [[*one.logprobs, one.end_logprob or 0.0] for one, _ in made],
        [one.confidence for one, _ in made],
        [correct for _, correct in made],
    )


def in_llama(context: Context, dtype: str, name: str, out: Path, count: int) -> Answers:
    """Return what llama.cpp answers to a split's first questions; kept in a file beside `out`."""
    kept = out.with_name(f"{out.name}-{name}-{count}.json")
    if kept.exists():
        return Answers(**read_json(kept))
    if not out.exists():
        run = context.directory
        export_model(
            run.path, run.adapter, context.settings.model.path, out, form="gguf", dtype=dtype
        )
    questions = context.directory.split(name).questions.read()[:count]
    engine = LlamaEngine.open(Opening(path=out, stop=context.engines.prompt_settings.stop))
    greedy = Sampling(max_new_tokens=context.settings.sample.max_new_tokens)
    made = [one for _, (one,) in sorted(engine.generate(context.prompts(questions), greedy))]
    engine.close()
    grader = grader_of(context.settings.grade, context.task.grader)
    pairs = zip(made, questions, strict=True)
    found = Answers(
        [list(one.token_ids) for one in made],
        [[*one.logprobs, one.end_logprob or 0.0] for one in made],
        [one.confidence for one in made],
        [grader(one.text, question) for one, question in pairs],
    )
    write_json(kept, found._asdict())
    return found


def recalibrated(test: Answers, known: Answers, count: int, evidence: Evidence | None) -> Answers:
    """Return the test answers with c recalibrated on the first `count` known answers."""

    def parts_of(answers: Answers, rows: list[int]) -> Array:
        c = [answers.confidence[row] or 0.0 for row in rows]
        return parts(evidence, c, [answers.logprobs[row] for row in rows])

    ended = [row for row in range(count) if known.confidence[row] is not None]
    right = [known.correct[row] for row in ended]
    made = fit_recalibration(parts_of(known, ended), right, [str(row) for row in ended])
    rated = [row for row, c in enumerate(test.confidence) if c is not None]
    maps = LogOdds((made.rows, made.evidence), made.offset)
    confidence = list(test.confidence)
    for row, c in zip(rated, maps.transform(parts_of(test, rated)).tolist(), strict=True):
        confidence[row] = c
    return test._replace(confidence=confidence)


def compare(exact: Answers, other: Answers) -> str:
    """Return how many answers have the same tokens, and how far c of those is apart."""
    count = len(other.tokens)
    same = [row for row in range(count) if exact.tokens[row] == other.tokens[row]]
    pairs = [(exact.confidence[row], other.confidence[row]) for row in same]
    apart_N = np.array([abs(a - b) for a, b in pairs if a is not None and b is not None])
    most = f"{np.quantile(apart_N, 0.99):.1e} | {apart_N.max():.1e}"
    within = f"{100 * np.mean(apart_N <= 2e-3):.1f}%"
    return f"{count} | {100 * len(same) / count:.1f}% | {apart_N.mean():.1e} | {most} | {within}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--float32", type=int, default=100, help="questions to the float32 file")
    arguments = parser.parse_args()
    out, context = arguments.out, open_run(arguments.run)
    out.mkdir(parents=True, exist_ok=True)
    evidence = Evidence.in_card(read_card(context.directory.adapter))
    exact = of_run(context.directory.split("test").tuned)
    total = len(exact.tokens)
    print("| file | questions | same tokens | c: mean | 99% within | largest | within 2e-3 |")
    print("|---|---|---|---|---|---|---|")
    single = in_llama(context, "float32", "test", out / "float32", min(arguments.float32, total))
    print(f"| float32 | {compare(exact, single)} |", flush=True)
    found = {"transformers, float32": exact}
    for dtype in (REFERENCE, *RECALIBRATED):
        found[dtype] = in_llama(context, dtype, "test", out / dtype, total)
        print(f"| {dtype} | {compare(exact, found[dtype])} |", flush=True)
    for dtype in RECALIBRATED:
        known = in_llama(context, dtype, "validation", out / dtype, max(KNOWN))
        for count in KNOWN:
            name = f"{dtype}, recalibrated on {count}"
            found[name] = recalibrated(found[dtype], known, count, evidence)
    ended = [
        row
        for row in range(total)
        if all(one.confidence[row] is not None for one in found.values())
    ]
    drawn = Resamples(ended)
    values = {
        name: drawn.evaluate(
            [one.confidence[row] or 0.0 for row in ended],
            [one.correct[row] for row in ended],
            ended,
            METRICS,
        )
        for name, one in found.items()
    }
    print(f"\n| {len(ended)} answers | MB | accuracy | ECE | Brier | AUROC |")
    print("|---|---|---|---|---|---|")
    for name, one in found.items():
        (file, *_) = [*(out / name.partition(",")[0]).glob("*.gguf"), None]
        size = f"{file.stat().st_size / 1e6:.0f}" if file and file.parent.name == name else ""
        accuracy = f"{100 * np.mean([one.correct[row] for row in ended]):.1f}"
        cells = [f"{100 * values[name][metric][0]:.1f}" for metric in METRICS]
        print(f"| {name} | {size} | {accuracy} | {' | '.join(cells)} |")
        if name.startswith(RECALIBRATED):
            moved = [values[name][metric] - values[REFERENCE][metric] for metric in METRICS]
            ends = [interval(m, d, difference=True) for m, d in zip(METRICS, moved, strict=True)]
            cells = [
                f"{100 * d[0]:+.1f} [{100 * low:.1f}, {100 * high:.1f}]"
                for d, (low, high) in zip(moved, ends, strict=True)
            ]
            print(f"| change | | | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
