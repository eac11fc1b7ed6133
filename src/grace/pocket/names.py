"""Invented, pronounceable names, made of syllables so that a tokenizer needs several tokens."""

from __future__ import annotations

import random

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
    """Makes names that never repeat.

    Args:
        seed: Text or number that fixes every name.
    """

    def __init__(self, seed: int | str) -> None:
        self._rng = random.Random(f"names/{seed}")
        self._used: set[str] = set()

    def make(self, kind: str, num_syllables: int = 2) -> str:
        """Returns a new capitalised name with the ending of its kind (`town`, `river`, ...)."""
        while True:
            stem = "".join(self._syllable(last=i == 0) for i in range(num_syllables - 1, -1, -1))
            name = (stem + self._rng.choice(ENDINGS[kind])).capitalize()
            if name not in self._used:
                self._used.add(name)
                return name

    def many(self, kind: str, count: int, num_syllables: int = 2) -> list[str]:
        """Returns `count` new names of one kind."""
        return [self.make(kind, num_syllables) for _ in range(count)]

    def _syllable(self, *, last: bool) -> str:
        coda = self._rng.choice(_CODAS) if last or self._rng.random() < 0.25 else ""
        return self._rng.choice(_ONSETS) + self._rng.choice(_VOWELS) + coda
