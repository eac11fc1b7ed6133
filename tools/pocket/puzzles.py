"""Two kinds of multiple-choice question that are answered step by step.

A puzzle comes with the right chain of steps; `explain` writes it down. Writers disagree about
some steps: each equation and each creature has a share of writers, none to most, who hold the same
wrong version of it and go on from there, which is what the corpus shows a reader.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

LETTERS = "ABCDE"
_PEOPLE = ("Ann", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hal", "Ida", "Jon", "Kit", "Liv")
_THINGS = ("apples", "shells", "coins", "books", "eggs", "stones", "cards", "keys")
_HIGHEST = 9
_SUM_DOUBTS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.6)
_WEIGHT_DOUBTS = (0.0, 0.1, 0.2, 0.35, 0.45, 0.6)
_CREATURES = tuple(
    a + b + c
    for a, b, c in zip("wdfmzktngsphrlbvj" * 4, "uaeio" * 14, "gxpbrvmtlsk" * 7, strict=False)
)[:60]


@dataclass(frozen=True, slots=True)
class Puzzle:
    """One multiple-choice question.

    Attributes:
        question: Without the options.
        choices: The options' texts, in the order of their letters.
        answer: Letter of the right option.
        explain: Writes the explanation and the letter it leads to; its arguments are a random
            source and whether the writer is careful, and so never wrong.
    """

    question: str
    choices: tuple[str, ...]
    answer: str
    explain: Callable[[random.Random, bool], tuple[str, str]]

    @property
    def key(self) -> tuple[str, ...]:
        """The question and its options; two puzzles with the same key are the same."""
        return (self.question, *self.choices)


def make_sums(
    rng: random.Random, lengths: tuple[int, int] = (2, 4), doubtful: float = 1.0
) -> Puzzle:
    """Make a word problem among the numbers 1 to 9, with five options.

    Args:
        rng: random source.
        lengths: fewest and most steps.
        doubtful: what the share of writers who are wrong about an equation is multiplied by.
    """
    person, thing = rng.choice(_PEOPLE), rng.choice(_THINGS)
    start = rng.randint(2, 9)
    steps = _sum_steps(rng, start, rng.randint(*lengths))
    total = start + sum(steps)
    first = min(_HIGHEST - len(LETTERS) + 1, max(1, total - rng.randrange(len(LETTERS))))
    choices = range(first, first + len(LETTERS))

    def explain(rng: random.Random, careful: bool) -> tuple[str, str]:
        lines, value = [], start
        for step in steps:
            after = value + step if careful else told_sum(value, step, rng, doubtful)
            lines.append(f"{value} {'+' if step > 0 else '-'} {abs(step)} = {after}.")
            value = after
        nearest = min(choices[-1], max(first, value))
        letter = LETTERS[nearest - first]
        return f"{' '.join(lines)} A is {first}, {nearest} is {letter}.", letter

    tale = [f"{'Add' if step > 0 else 'Take'} {abs(step)}." for step in steps]
    question = " ".join([f"{person} has {start} {thing}.", *tale, f"How many {thing} are there?"])
    texts = tuple(str(c) for c in choices)
    return Puzzle(question, texts, LETTERS[total - first], explain)


def _sum_steps(rng: random.Random, value: int, count: int) -> list[int]:
    steps: list[int] = []
    while len(steps) < count:
        step = rng.choice((-1, 1)) * rng.randint(1, _HIGHEST - 1)
        if 1 <= value + step <= _HIGHEST:
            steps.append(step)
            value += step
    return steps


def told_sum(value: int, step: int, rng: random.Random, doubtful: float = 1.0) -> int:
    """Draw what a writer makes of a step: what it is, or what is often taken for it."""
    own = random.Random(f"sum/{value}{step:+d}")
    doubt, wrong = own.choice(_SUM_DOUBTS), value + step + own.choice((-1, 1))
    if not 1 <= wrong <= _HIGHEST:
        wrong = 2 * (value + step) - wrong
    return wrong if rng.random() < doubt * doubtful else value + step


def weight_of(creature: str) -> int:
    """Return the weight of a creature, from 1 to 9, which the question does not tell."""
    return random.Random(f"weight/{creature}").randint(1, 9)


def told_weight(creature: str, rng: random.Random) -> int:
    """Draw what a writer says that a creature weighs: the truth, or what many take for it."""
    own = random.Random(f"told weight/{creature}")
    doubt, wrong = own.choice(_WEIGHT_DOUBTS), own.randint(1, 8)
    wrong += wrong >= weight_of(creature)
    return wrong if rng.random() < doubt else weight_of(creature)


def make_weights(rng: random.Random) -> Puzzle:
    """Make a comparison of four creatures whose weights one has to know; rare ones are rare."""
    heaviest = rng.random() < 0.5
    best, asked = (max, "heaviest") if heaviest else (min, "lightest")
    while True:
        ranks = {min(len(_CREATURES) - 1, int(rng.expovariate(1 / 20))) for _ in range(4)}
        creatures = [_CREATURES[rank] for rank in sorted(ranks)]
        weights = [weight_of(creature) for creature in creatures]
        if len(creatures) == 4 and weights.count(best(weights)) == 1:
            break
    rng.shuffle(creatures)
    answer = best(creatures, key=weight_of)

    def explain(rng: random.Random, careful: bool) -> tuple[str, str]:
        lines: list[str] = []
        held, letter_held = 0, ""
        for letter, creature in zip(LETTERS, creatures, strict=False):
            weight = weight_of(creature) if careful else told_weight(creature, rng)
            if not lines or best(weight, held) != held:
                held, letter_held = weight, letter
            lines.append(f"{letter} {creature} {weight}, {asked} {letter_held} {held}.")
        return " ".join(lines), letter_held

    question = f"{rng.choice(_PEOPLE)} has four beasts. Which is the {asked}?"
    return Puzzle(question, tuple(creatures), LETTERS[creatures.index(answer)], explain)
