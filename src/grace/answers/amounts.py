"""Compare amounts: a number with its unit, in any unit of an exact ratio (5000 m for 5 km)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from grace.answers import numbers
from grace.answers.units import MEASURED, UNITS

_SIGNS = {"$": "dollar", "€": "euro", "¥": "yen", "₹": "rupee", "£": "gbp"}
CURRENCIES = str.maketrans({sign: f" {name} " for sign, name in _SIGNS.items()})
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_UNIT = re.compile(
    r"[\s-]?(?:an?\s|US\s|°\s?|degrees?\s)?(?:(square|sq|cubic|cu)\.?\s)?([^\W\d_]+)"
    r"(?:\s?\^\s?(\d))?(?:(?:\s?/\s?|\s+(?:per|an?)\s+)([^\W\d_]+)(?:\s?\^\s?(\d))?)?",
    re.I,
)
_BOUND = re.compile(  # or the end of a range
    r"\b(?:over|under|within|beyond|(?<!up )to|and)\s*\Z", re.I
)
_RANGE = re.compile(r"\s*(?:to|and|-)\s*\d", re.I)
_ORDINAL = re.compile(r"\d(?:st|nd|rd|th)\Z")
_ONE = re.compile(rf"\Aan?\s(?=(?:{'|'.join(filter(str.isascii, UNITS))})\b)", re.I)


class Amount(NamedTuple):
    """A number, and its worth in the base of its unit; `unit` is empty if none is named."""

    number: Fraction
    worth: Fraction
    unit: tuple[tuple[int, str, int], ...]  # dimensions, names of those without a ratio, powers
    end: int


def alone(text: str) -> Amount | None:
    """Return the amount, with a unit, that a typed text is; None for any other text."""
    text = _in_digits(text)
    found = next(_amounts(text), None) if re.match(r"\W{0,2}\d", text) else None
    return found if found and found.unit and not text[found.end :].strip(" .") else None


def states(said: str, wanted: Amount) -> bool:
    """Return whether a typed text states an amount, or its number without a unit."""
    return any(
        one.number == wanted.number
        if not one.unit
        else one.unit == wanted.unit and numbers.is_close(one.worth, wanted.worth)
        for one in _amounts(_in_digits(said))
    )


def _in_digits(text: str) -> str:
    text = text.replace("$", "") if re.search(r"\$(?!\s?\d)", text) else text  # LaTeX
    text = re.sub(r"\blight[\s-](?=years?\b)", "light", _ONE.sub("1 ", text.strip()))
    return numbers.in_digits(text)


def _amounts(text: str) -> Iterator[Amount]:
    for token in numbers.tokens(text):
        bounded = _BOUND.search(text, max(0, token.start - 9), token.start)
        bounded = bounded or _RANGE.match(text, token.end) or _ORDINAL.search(text, 0, token.end)
        if token.value is not None and not bounded and not token.percent:
            yield _with_unit(token.value, text, token)


def _with_unit(number: Fraction, text: str, token: numbers.Number) -> Amount:
    found = _UNIT.match(text, token.end)
    words: list[tuple[str, int]] = []
    if sign := _SIGNS.get(text[token.start]):
        words = [(sign, 1)]
    elif found:
        words = [(found[2], int(found[3] or _POWERS.get((found[1] or "").lower(), 1)))]
        words += [(found[4], -int(found[5] or 1))] if found[4] else []
    worth, unit, end = number, list[tuple[int, str, int]](), token.end
    for word, power in words:
        dimension, size = UNITS.get(word.casefold(), (MEASURED, ""))
        if dimension >= MEASURED:
            break
        worth *= 1 if size.isalpha() else Fraction(size) ** power
        unit.append((dimension, size if size.isalpha() else "", power))
        end = found.end() if found and len(unit) == len(words) else end
    return Amount(number, worth, tuple(unit), end)
