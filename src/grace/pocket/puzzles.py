"""Two kinds of multiple-choice question that are answered step by step.

A puzzle comes with the right chain of steps; `explain` writes it down, and a careless writer slips
at a step and goes on from there, which is what the corpus shows a reader part of the time.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

LETTERS = "ABCDE"
_PEOPLE = ("Ann", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hal", "Ida", "Jon", "Kit", "Liv")
_THINGS = ("apples", "shells", "coins", "books", "eggs", "stones", "cards", "keys")
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
            source and the chance to slip at each step.
    """

    question: str
    choices: tuple[str, ...]
    answer: str
    explain: Callable[[random.Random, float], tuple[str, str]]

    @property
    def key(self) -> tuple[str, ...]:
        """What makes the puzzle the same as another one."""
        return (self.question, *self.choices)


def make_sums(rng: random.Random) -> Puzzle:
    """Makes a word problem of two to four small steps, with five numbers to choose from."""
    person, thing = rng.choice(_PEOPLE), rng.choice(_THINGS)
    while True:
        start = rng.randint(5, 20)
        steps = _sum_steps(rng, start, rng.randint(2, 4))
        total = start + sum(steps)
        if total >= _LOWEST:
            break
    choices = _sum_choices(rng, total)

    def explain(rng: random.Random, slip: float) -> tuple[str, str]:
        lines, value = [], start
        for step in steps:
            after = value + step
            if rng.random() < slip:
                after = max(1, after + rng.choice((-2, -1, -1, 1, 1, 2)))
            lines.append(f"{value} {'+' if step > 0 else '-'} {abs(step)} = {after}.")
            value = after
        return _find(" ".join(lines), value, choices, rng)

    tale = [f"{'Add' if step > 0 else 'Take'} {abs(step)}." for step in steps]
    question = " ".join([f"{person} has {start} {thing}.", *tale, f"How many {thing} are there?"])
    texts = tuple(str(c) for c in choices)
    return Puzzle(question, texts, LETTERS[choices.index(total)], explain)


_LOWEST, _HIGHEST = 10, 30


def _sum_steps(rng: random.Random, value: int, count: int) -> list[int]:
    steps: list[int] = []
    while len(steps) < count:
        step = rng.choice((-1, 1)) * rng.randint(2, 9)
        if 1 <= value + step <= _HIGHEST:
            steps.append(step)
            value += step
    return steps


def _sum_choices(rng: random.Random, total: int) -> list[int]:
    """Returns five neighbouring numbers of two digits with the total among them, shuffled."""
    first = max(_LOWEST, total - rng.randrange(len(LETTERS)))
    choices = list(range(first, first + len(LETTERS)))
    rng.shuffle(choices)
    return choices


def _find(lines: str, value: int, choices: list[int], rng: random.Random) -> tuple[str, str]:
    """Goes through the options up to the one that says the value; guesses if there is none."""
    for letter, choice in zip(LETTERS, choices, strict=True):
        if choice == value:
            return f"{lines} {letter} {choice} yes.", letter
        lines += f" {letter} {choice} no."
    return lines, rng.choice(LETTERS)


def weight_of(creature: str) -> int:
    """Returns what a creature weighs, from 1 to 9: a matter of knowledge, not of the question."""
    return random.Random(f"weight/{creature}").randint(1, 9)


def make_weights(rng: random.Random) -> Puzzle:
    """Makes a comparison of four creatures whose weights one has to know; rare ones are rare."""
    heaviest = rng.random() < 0.5
    best = max if heaviest else min
    while True:
        ranks = {min(len(_CREATURES) - 1, int(rng.expovariate(1 / 20))) for _ in range(4)}
        creatures = [_CREATURES[rank] for rank in sorted(ranks)]
        weights = [weight_of(creature) for creature in creatures]
        if len(creatures) == 4 and weights.count(best(weights)) == 1:
            break
    rng.shuffle(creatures)
    answer = best(creatures, key=weight_of)

    def explain(rng: random.Random, slip: float) -> tuple[str, str]:
        lines: list[str] = []
        held, letter_held = 0, ""
        for letter, creature in zip(LETTERS, creatures, strict=False):
            weight = rng.randint(1, 9) if rng.random() < slip else weight_of(creature)
            if not lines or best(weight, held) != held:
                held, letter_held = weight, letter
            lines.append(f"{letter} {creature} {weight}, best {letter_held} {held}.")
        return " ".join(lines), letter_held

    asked = "heaviest" if heaviest else "lightest"
    question = f"{rng.choice(_PEOPLE)} has four beasts. Which is the {asked}?"
    return Puzzle(question, tuple(creatures), LETTERS[creatures.index(answer)], explain)
