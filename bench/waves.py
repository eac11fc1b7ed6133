"""Early stopping with several samples in flight against one sample at a time.

Three ratios, each measured in one run on the same questions and with the same answers, while the
sides take turns. Seconds are processor time of this process:

- waves of 4 / one by one, early stopping with a budget of 8;
- tokens issued / tokens used, in waves of 4;
- one prefill for a vote / one per sample, one by one.

    python bench/waves.py RUN --questions 50 --threshold 0.8
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from keeping import add_keep, figure
from timing import timed

import grace
from grace.chat import encode_chat
from grace.engines import Sampling
from grace.store import RunDir

BUDGET, PARALLEL = 8, 4


def in_waves(model: Any, questions: list[Any], threshold: float) -> tuple[float, float, float]:
    """Return seconds in waves over one by one, tokens issued over used, and mean samples used."""
    spent = {1: 0.0, PARALLEL: 0.0}
    issued = used = samples = 0
    for number, question in enumerate(questions):
        decided = {}
        for parallel in (1, PARALLEL) if number % 2 else (PARALLEL, 1):
            seconds, _, decided[parallel] = timed(
                lambda p=parallel, q=question: model.vote(
                    q.text, choices=q.choices, threshold=threshold, budget=BUDGET, parallel=p
                )
            )
            spent[parallel] += seconds
        alone, waved = decided[1], decided[PARALLEL]
        assert (alone.answer, alone.samples) == (waved.answer, waved.samples)
        issued, used = issued + waved.issued_tokens, used + waved.tokens
        samples += waved.samples
    return spent[PARALLEL] / spent[1], issued / used, samples / len(questions)


def from_one_prefill(model: Any, questions: list[Any]) -> float:
    """Return seconds of 4 samples from one prefill over those of 4 separate calls."""
    engine, spent = model.engine, [0.0, 0.0]
    sampling = Sampling(1, 0.8, 1.0, model.sample.max_new_tokens)
    for question in questions:
        prompt = encode_chat(engine.tokenizer, model.messages(question.text, question.choices))
        stream = engine.stream(prompt, sampling)
        for number in range(PARALLEL):
            seconds, _, together = timed(lambda n=number, s=stream: list(s.start(range(n, n + 1))))
            spent[0] += seconds
            alone = dataclasses.replace(sampling, first_sample=number)
            seconds, _, separate = timed(
                lambda a=alone, p=prompt: list(engine.generate([p], a, keys=["0"]))
            )
            spent[1] += seconds
            assert together[0][1] == separate[0][1][0]
    return spent[0] / spent[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--questions", type=int, default=50)
    parser.add_argument("--threshold", type=float, default=0.8)
    add_keep(parser)
    arguments = parser.parse_args()
    model = grace.load(arguments.run)
    questions = RunDir(arguments.run).split("test").questions.read()[: arguments.questions]
    in_waves(model, questions[:2], arguments.threshold)  # warms up
    seconds, tokens, samples = in_waves(model, questions, arguments.threshold)
    print(
        f"early stopping at {arguments.threshold:g}, {samples:.2f} of {BUDGET} samples on average"
    )
    figure(f"waves of {PARALLEL} / one by one, seconds", seconds, arguments.keep)
    figure(f"waves of {PARALLEL}, tokens issued / used", tokens, arguments.keep)
    prefill = from_one_prefill(model, questions)
    figure("one prefill / one per sample, seconds", prefill, arguments.keep)


if __name__ == "__main__":
    main()
