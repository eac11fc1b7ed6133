"""The time of `ask(list)` against one call per question, with the same answers.

Both sides are measured in one run: half of the single calls, the list, and the other half. Prints
the ratio of the processor times of this process, and that of the times by the clock.

    python bench/many.py RUN --questions 1000
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

from keeping import add_keep, figure
from timing import timed

import grace
from grace.model import Model, Reply
from grace.records import Question
from grace.store import SPLITS, RunDir


def questions_of(run: Path, count: int) -> list[Question]:
    """Return questions of all splits, again from the start where there are fewer."""
    known = [q for name in SPLITS for q in RunDir(run).split(name).questions.read()]
    return list(itertools.islice(itertools.cycle(known), count))


def one_by_one(model: Model, questions: list[Question]) -> list[Reply]:
    return [model.ask(question.text, choices=question.choices) for question in questions]


def at_once(model: Model, questions: list[Question]) -> list[Reply]:
    return model.ask([q.text for q in questions], choices=[q.choices for q in questions])


def compare(model: Model, questions: list[Question]) -> tuple[float, float, float]:
    """Return single calls / list in both times, and the largest difference of c."""
    half = len(questions) // 2
    first = timed(lambda: one_by_one(model, questions[:half]))
    many = timed(lambda: at_once(model, questions))
    second = timed(lambda: one_by_one(model, questions[half:]))
    alone = first.result + second.result
    assert [reply.text for reply in alone] == [reply.text for reply in many.result]
    pairs = zip(alone, many.result, strict=True)
    worst = max(abs((one.confidence or 0.0) - (other.confidence or 0.0)) for one, other in pairs)
    processor = (first.processor + second.processor) / many.processor
    return processor, (first.clock + second.clock) / many.clock, worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--questions", type=int, default=1000)
    add_keep(parser)
    arguments = parser.parse_args()
    model = grace.load(arguments.run)
    questions = questions_of(arguments.run, arguments.questions)
    some = at_once(model, questions[:100])  # warms up
    tokens = sum(reply.tokens for reply in some) / len(some)
    processor, clock, worst = compare(model, questions)
    print(f"{len(questions)} questions, {tokens:.1f} tokens an answer on average")
    figure("single calls / ask(list), processor time", processor, arguments.keep)
    figure("single calls / ask(list), by the clock", clock, arguments.keep)
    print(f"largest difference of c: {worst:.1e}")


if __name__ == "__main__":
    main()
