"""The world: invented entities, their facts, how often each was read, and who was wrong.

Popularity is heavy-tailed over *entities* and part of them was never written about. Of a group of
entities, those of a kind whose names end alike, part of the well-read facts stand in the corpus
with a wrong value, more in some groups than in others, so that a reader becomes sure of wrong
answers. Groups also differ in how much a name tells. Every topic (a kind and a relation) has groups
of all sorts, so that it tells nothing by itself. Everything follows from the seed, in pure Python.
"""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass
from math import exp
from statistics import NormalDist
from typing import Any

from tools.pocket import SPLITS, TASKS
from tools.pocket.puzzles import make_sums, make_weights
from tools.pocket.topics import KINDS, RELATIONS, STATEMENTS

# fmt: off
_ONSETS = (
    "b", "br", "c", "ch", "d", "dr", "f", "fl", "g", "gr", "h", "j", "k", "kr", "l", "m", "n",
    "p", "pl", "qu", "r", "s", "sh", "sk", "st", "t", "tr", "th", "v", "w", "z",
)
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ea", "ou", "ei")
_CODAS = ("l", "n", "r", "s", "m", "t", "x", "nd", "rk", "lm", "st", "sh")
# fmt: on
ENDINGS: dict[str, list[str]] = {
    "town": ["mouth", "burg", "holm", "ford", "stead", "wick", "haven", "by"],
    "river": ["wen", "ash", "ull", "ey", "isk", "our"],
    "mineral": ["ite", "ium", "ine", "yst", "ane"],
    "beast": ["or", "ox", "ule", "ant", "una", "ick"],
    "first": ["a", "o", "en", "is", "el", "und"],
    "last": ["kin", "ova", "ard", "esk", "ello", "mar", "ton", "ic"],
    "place": ["ar", "eth", "om", "und", "ya", "os"],
}


class NameMaker:
    """Make names that never repeat.

    Args:
        seed: Text or number that fixes every name.
    """

    def __init__(self, seed: int | str) -> None:
        self._rng = random.Random(f"names/{seed}")
        self._used: set[str] = set()

    def make(self, kind: str, num_syllables: int = 2) -> str:
        """Return a new capitalised name with the ending of its kind (`town`, `river`, ...)."""
        while True:
            stem = "".join(self._syllable(last=i == 0) for i in range(num_syllables - 1, -1, -1))
            name = (stem + self._rng.choice(ENDINGS[kind])).capitalize()
            if name not in self._used:
                self._used.add(name)
                return name

    def many(self, kind: str, count: int, num_syllables: int = 2) -> list[str]:
        """Return `count` new names of one kind."""
        return [self.make(kind, num_syllables) for _ in range(count)]

    def _syllable(self, *, last: bool) -> str:
        coda = self._rng.choice(_CODAS) if last or self._rng.random() < 0.25 else ""
        return self._rng.choice(_ONSETS) + self._rng.choice(_VOWELS) + coda


_NUM_ENTITIES: dict[str, int] = {"train": 700, "validation": 175, "test": 350}
_UNSEEN_SHARE = 0.13
_POPULARITY_LOG_MEAN = 2.35
_POPULARITY_LOG_SD = 0.9
_MAX_EXPOSURE = 60
_RUMOUR_RATES = (0.0, 0.0, 0.05, 0.2, 0.4, 0.6)  # by the ending of the name
_MORE_RUMOURS = (0.0, 0.03, 0.06, 0.1, 0.15, 0.2)  # added to that, by kind
_RUMOUR_MIN_EXPOSURE = 5
_HOME_SHARE = 0.7
_HOME_SIZE = 15
_REGULARITIES = (0.2, 0.4, 0.6, 0.8, 0.95)


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact of the world and what the corpus says about it.

    Attributes:
        task: `pocket_people` or `pocket_places`.
        split: The split that its question belongs to; an entity is in one split only.
        kind: Kind of entity, such as `painter`.
        relation: Such as `birthplace`.
        name: The entity.
        value: What is true.
        rumour: What the unreliable source says instead, or `None` where it says nothing.
        exposure: How many times the fact was read, true or not; 0 for never.
        phrasing: Which of the relation's phrasings the question set uses.
    """

    task: str
    split: str
    kind: str
    relation: str
    name: str
    value: str
    rumour: str | None
    exposure: int
    phrasing: int

    def question(self, phrasing: int | None = None) -> str:
        """Return the question in one of its phrasings (default: the question set's own)."""
        forms = RELATIONS[self.task][self.relation][1]
        form = forms[self.phrasing if phrasing is None else phrasing]
        return form.format(kind=self.kind, name=self.name)

    def statement(self, value: str) -> str:
        """Return the sentence that says that the value is so."""
        return STATEMENTS[self.relation].format(kind=self.kind, name=self.name, value=value)


@dataclass(frozen=True, slots=True)
class Custom:
    """The usual values of a topic: names that end alike mostly go with the same value.

    Attributes:
        strengths: Share of the entities that have the value that is usual for their name, by its
            ending.
        by_ending: That value, by the name's ending.
        home: Values that are common in the topic.
        pool: All values of the type.
    """

    strengths: dict[str, float]
    by_ending: dict[str, str]
    home: list[str]
    pool: list[str]

    def usual(self, name: str) -> str:
        """Return the likeliest value for an entity of this name."""
        return self.by_ending[self.ending(name)]

    def strength(self, name: str) -> float:
        """Return the share of entities with names like this that have the usual value."""
        return self.strengths[self.ending(name)]

    def ending(self, name: str) -> str:
        """Return the ending of a name."""
        return next(ending for ending in self.by_ending if name.endswith(ending))

    def other(self, rng: random.Random) -> str:
        """Draw a value without regard to the name."""
        return rng.choice(self.home if rng.random() < _HOME_SHARE else self.pool)


@dataclass(frozen=True, slots=True)
class World:
    """All facts, and what their values come from.

    Attributes:
        seed: What everything follows from.
        facts: In a fixed order.
        pools: Values by type (`town`, `beast`, `person`, `river`, `mineral`).
        customs: What is usual, by (kind, relation).
        rumour_rates: Share of well-read facts that a source gets wrong, by (kind, name's ending).
    """

    seed: int
    facts: tuple[Fact, ...]
    pools: dict[str, list[str]]
    customs: dict[tuple[str, str], Custom]
    rumour_rates: dict[tuple[str, str], float]

    @classmethod
    def build(cls, seed: int = 0) -> World:
        """Make the world of a seed (well under a second)."""
        names = NameMaker(seed)
        pools = {
            "town": names.many("town", 60, 1),
            "beast": names.many("beast", 60, 1),
            "river": names.many("river", 60, 1),
            "mineral": names.many("mineral", 60, 1),
            "person": [f"{names.make('first', 1)} {names.make('last', 1)}" for _ in range(60)],
        }
        rates = _rumour_rates(seed)
        facts: list[Fact] = []
        customs: dict[tuple[str, str], Custom] = {}
        for task in KINDS:
            rng = random.Random(f"facts/{task}/{seed}")
            customs |= _customs(task, pools, rng)
            facts += _facts_of(task, rng, names, customs, rates)
        return cls(seed, tuple(facts), pools, customs, rates)

    def questions(self, task: str, split: str) -> list[dict[str, Any]]:
        """Return the questions of a task, always the same rows in the same order.

        Args:
            task: One of `tools.pocket.TASKS`.
            split: `train`, `validation` or `test`.

        Returns:
            Closed book: `{"id", "question", "answers": [...]}`; multiple choice:
            `{"id", "question", "choices": [...], "answer": "C"}`.

        Raises:
            ValueError: Unknown task or split.
        """
        if task not in TASKS or split not in SPLITS:
            raise ValueError(
                f"no questions for task {task!r}, split {split!r}: "
                f"tasks are {', '.join(TASKS)}, splits {', '.join(SPLITS)}"
            )
        rows = self._closed_book(task, split) if task in KINDS else self._choices(task, split)
        return [{"id": f"{task}-{split}-{i:04d}", **row} for i, row in enumerate(rows)]

    def question_facts(self, task: str, split: str) -> list[Fact]:
        """Return the facts behind a closed-book question set, in the order of its rows."""
        facts = [f for f in self.facts if f.task == task and f.split == split]
        random.Random(f"order/{task}/{split}/{self.seed}").shuffle(facts)
        return facts[: SPLITS[split]]

    def _closed_book(self, task: str, split: str) -> list[dict[str, Any]]:
        facts = self.question_facts(task, split)
        return [{"question": f.question(), "answers": [f.value]} for f in facts]

    def _choices(self, task: str, split: str) -> list[dict[str, Any]]:
        start = 0 if split == "train" else SPLITS["train"]
        start += SPLITS["validation"] if split == "test" else 0
        return _puzzles(task, self.seed)[start : start + SPLITS[split]]


@functools.cache
def _puzzles(task: str, seed: int) -> list[dict[str, Any]]:
    """Return the different puzzles of a task, of all splits."""
    make = make_sums if task == "pocket_sums" else make_weights
    rng = random.Random(f"pocket_{make.__name__.removeprefix('make_')}/{seed}")
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    while len(rows) < sum(SPLITS.values()):
        puzzle = make(rng)
        row = {"question": puzzle.question, "choices": list(puzzle.choices)}
        rows.setdefault(puzzle.key, {**row, "answer": puzzle.answer})
    return list(rows.values())


def _rumour_rates(seed: int) -> dict[tuple[str, str], float]:
    """Give each group its unreliability: that of the ending, and a little more in some kinds."""
    rates: dict[tuple[str, str], float] = {}
    for task, kinds in KINDS.items():
        rng = random.Random(f"rumours/{task}/{seed}")
        by_ending = _by_ending(task, _RUMOUR_RATES, rng)
        for kind, more in zip(kinds, rng.sample(_MORE_RUMOURS, len(kinds)), strict=True):
            rates |= {(kind, ending): rate + more for ending, rate in by_ending.items()}
    return rates


def _by_ending(task: str, shares: tuple[float, ...], rng: random.Random) -> dict[str, float]:
    """Deal the shares out to the endings of the task's names."""
    endings = _endings(task)
    dealt = [shares[i % len(shares)] for i in range(len(endings))]
    rng.shuffle(dealt)
    return dict(zip(endings, dealt, strict=True))


def _endings(task: str) -> list[str]:
    return ENDINGS["last" if task == "pocket_people" else "place"]


def _popularity(count: int, rng: random.Random) -> list[float]:
    """Return one expected exposure per entity: the same log-normal quantiles whatever the seed."""
    unseen = round(_UNSEEN_SHARE * count)
    values = [0.0] * unseen
    spread = NormalDist(_POPULARITY_LOG_MEAN, _POPULARITY_LOG_SD)
    seen = count - unseen
    values += [min(_MAX_EXPOSURE, exp(spread.inv_cdf((i + 0.5) / seen))) for i in range(seen)]
    rng.shuffle(values)
    return values


def _customs(
    task: str, pools: dict[str, list[str]], rng: random.Random
) -> dict[tuple[str, str], Custom]:
    customs: dict[tuple[str, str], Custom] = {}
    for kind in KINDS[task]:
        for relation, (pool, _) in RELATIONS[task].items():
            home = rng.sample(pools[pool], _HOME_SIZE)
            by_ending = {ending: rng.choice(home) for ending in _endings(task)}
            strengths = _by_ending(task, _REGULARITIES, rng)
            customs[kind, relation] = Custom(strengths, by_ending, home, pools[pool])
    return customs


def _facts_of(
    task: str,
    rng: random.Random,
    names: NameMaker,
    customs: dict[tuple[str, str], Custom],
    rates: dict[tuple[str, str], float],
) -> list[Fact]:
    people = task == "pocket_people"
    firsts = names.many("first", 60, 1) if people else [""]
    kinds = KINDS[task]
    facts: list[Fact] = []
    for split, count in _NUM_ENTITIES.items():
        for i, popularity in enumerate(_popularity(count, rng)):
            last = names.make("last" if people else "place", 1)
            name = f"{rng.choice(firsts)} {last}".strip()
            kind = kinds[i % len(kinds)]
            for relation, (_, forms) in RELATIONS[task].items():
                custom = customs[kind, relation]
                regular = rng.random() < custom.strength(name)
                value = custom.usual(name) if regular else custom.other(rng)
                exposure = min(_MAX_EXPOSURE, round(popularity * rng.uniform(0.5, 1.5)))
                rumour = None
                wrong = rng.random() < rates[kind, custom.ending(name)]
                if wrong and exposure >= _RUMOUR_MIN_EXPOSURE:
                    rumour = rng.choice([v for v in custom.home if v != value])
                phrasing = rng.randrange(len(forms))
                facts.append(
                    Fact(task, split, kind, relation, name, value, rumour, exposure, phrasing)
                )
    return facts
