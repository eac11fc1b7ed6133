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
_CREATURES = (
    *("wug", "dax", "fep", "mip", "zor", "kiv", "lum", "tob"),
    *("nim", "gar", "sul", "pok", "hib", "rax", "yun"),
)
_COLOURS = ("red", "blue", "green", "black", "white", "brown", "grey", "pink")


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


def make_sums(rng: random.Random) -> Puzzle:
    """Makes a word problem of two to four steps, with five numbers to choose from."""
    person, thing = rng.choice(_PEOPLE), rng.choice(_THINGS)
    start = rng.randint(5, 40)
    steps = _sum_steps(rng, start, rng.randint(2, 4))
    tale = [f"{person} has {start} {thing}."]
    tale += [_TALES[op].format(n=n) for op, n in steps]
    total = start
    for op, n in steps:
        total = _apply(op, total, n)
    choices = _sum_choices(rng, start, steps, total)

    def explain(rng: random.Random, slip: float) -> tuple[str, str]:
        lines, value = [], start
        for op, n in steps:
            after = _apply(op, value, n)
            if rng.random() < slip:
                after = max(0, after + rng.choice((-10, -2, -1, 1, 2, 10)))
            lines.append(f"{value} {op} {n} = {after}.")
            value = after
        near = min(choices, key=lambda c: (abs(c - value), c))
        return " ".join(lines), LETTERS[choices.index(near)]

    question = " ".join([*tale, f"How many {thing} are there now?"])
    texts = tuple(str(c) for c in choices)
    return Puzzle(question, texts, LETTERS[choices.index(total)], explain)


_TALES = {
    "+": "Then {n} more come.",
    "-": "Then {n} are lost.",
    "*": "Then there are {n} times as many.",
}


def _apply(op: str, value: int, n: int) -> int:
    return value + n if op == "+" else value - n if op == "-" else value * n


def _sum_steps(rng: random.Random, value: int, count: int) -> list[tuple[str, int]]:
    steps: list[tuple[str, int]] = []
    while len(steps) < count:
        op = rng.choice("++--*")
        n = rng.randint(2, 3) if op == "*" else rng.randint(2, 30)
        after = _apply(op, value, n)
        if 2 <= after <= 99:
            steps.append((op, n))
            value = after
    return steps


def _sum_choices(
    rng: random.Random, start: int, steps: list[tuple[str, int]], total: int
) -> list[int]:
    """Returns the total and four near or tempting numbers, shuffled."""
    skipped = start
    for op, n in steps[:-1]:
        skipped = _apply(op, skipped, n)
    tempting = [skipped, total + 10, total - 10, total + 1, total - 1, total + 2, total - 2]
    rng.shuffle(tempting)
    choices = [total]
    for number in tempting:
        if number >= 0 and number not in choices and len(choices) < len(LETTERS):
            choices.append(number)
    rng.shuffle(choices)
    return choices


def make_rules(rng: random.Random) -> Puzzle:
    """Makes a deduction over chains of rules ("Every wug is a dax."), with four colours."""
    chains = _chains(rng)
    colours = rng.sample(_COLOURS, 4)
    people = rng.sample(_PEOPLE, len(chains))
    rules = [
        f"Every {a} is {'a ' if i < len(chain) - 1 else ''}{b}."
        for chain, colour in zip(chains, colours, strict=False)
        for i, (a, b) in enumerate(zip(chain, [*chain[1:], colour], strict=True))
    ]
    rng.shuffle(rules)
    facts = [f"{p} is a {c[0]}." for p, c in zip(people, chains, strict=True)]
    rng.shuffle(facts)
    choices = list(colours)
    rng.shuffle(choices)
    who = rng.randrange(len(chains))

    def explain(rng: random.Random, slip: float) -> tuple[str, str]:
        now, at = who, 0
        lines = [f"{people[who]} is a {chains[who][0]}."]
        while True:
            here = chains[now][at]
            if rng.random() < slip:
                now = rng.randrange(len(chains))
                at = min(at, len(chains[now]) - 1)
            at += 1
            if at >= len(chains[now]):
                lines.append(f"Every {here} is {colours[now]}.")
                return " ".join(lines), LETTERS[choices.index(colours[now])]
            lines.append(f"Every {here} is a {chains[now][at]}.")

    question = " ".join([*rules, *facts, f"What colour is {people[who]}?"])
    return Puzzle(question, tuple(choices), LETTERS[choices.index(colours[who])], explain)


def _chains(rng: random.Random) -> list[list[str]]:
    """Returns two or three chains of creatures; no creature stands in two of them."""
    lengths = [rng.randint(1, 3) for _ in range(rng.randint(2, 3))]
    creatures = rng.sample(_CREATURES, sum(lengths))
    chains = []
    for length in lengths:
        chains.append(creatures[:length])
        creatures = creatures[length:]
    return chains
