"""Read numbers: whole tokens, in every usual way to group and write them.

A token that cannot be read for sure (a date, a range, an expression, 1,200,30) is no number, and
neither is its end. Fractions keep the values exact.
"""

from __future__ import annotations

import collections
import itertools
import math
import re
import unicodedata
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import NamedTuple

from grace.answers.finding import REJECTING, joined, marked, opening, plain, spoken
from grace.answers.units import UNITS

SCALES = {"dozen": 12, "hundred": 10**2, "thousand": 10**3, "lakh": 10**5, "million": 10**6}
SCALES |= {"crore": 10**7, "billion": 10**9, "trillion": 10**12}
SCALES |= {sign: 10**4 for sign in "万萬만"} | {sign: 10**8 for sign in "亿億억"}
ABBREVIATED = {"k": 10**3, "m": 10**6, "mn": 10**6, "b": 10**9, "bn": 10**9}
_TEENS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
    " sixteen seventeen eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
COUNTED = {word: number for number, word in enumerate(_TEENS.split())}
COUNTED |= {word: 10 * number for number, word in enumerate(_TENS.split(), 2)}
_ORDINALS = (
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth"
    " fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth twentieth"
)
ORDINAL_WORDS = _ORDINALS.split()
_ONES, _MANY = " I II III IV V VI VII VIII IX", " X XX XXX XL L LX LXX LXXX"
ROMAN = [tens + ones for tens in _MANY.split(" ") for ones in _ONES.split(" ")][1:]
LARGEST = 300  # digits
_DASHES = dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2212\ufe63"), "-")
_TYPED = str.maketrans("\u2044\u066c\u066b\u22c5\u2217\u2212\u2215", "/,.\u00b7*-/") | {
    ord("√"): "sqrt",
    ord("→"): "->",
    ord("π"): "pi",
    ord("∞"): "infty",
    **{0x2080 + digit: str(digit) for digit in range(10)},  # H₂O
}
_GAP = " \u00a0\u202f\u2007\u2008\u2009\u200a"
IDEOGRAPH = "[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"  # is no part of a number's word
_BESIDE_IDEOGRAPH = re.compile(rf"(?<=\d)(?={IDEOGRAPH})|(?<={IDEOGRAPH})(?=\d)")
_DIGIT_OR_FRACTION = re.compile(r"[^\x00-\x7f]")
_RAISED = re.compile(r"[⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+(?![⁺⁻⁰¹²³⁴⁵⁶⁷⁸⁹])")  # no charge: Ca²⁺
_DOWN = str.maketrans("⁺⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "+-0123456789")
_LATEX: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (  # a matrix: [1,2]
        r"\\begin\s*\{\w+\}(.*?)\\end\s*\{\w+\}",
        lambda found: "[" + found[1].replace("\\\\", ",") + "]",
    ),
    (r"(?<=\d)(?:\{,\}|\\,\\!|,\\!\s?)(?=\d)", ","),
    (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
    (r"\\sqrt\s*\{(\w+)\}", r"\\sqrt\1"),
    (r"(?<=\d)\s+\\(?=pi\b|sqrt)", r"\\"),
    (r"(?<=\d)\{?(?:\\[,;:! ]|~|\\thinspace)\}?(?=\d)", "\u2009"),
    (r"\\[()\[\],;:! ]|\\\\|\\q?quad\b|\\(?:left|right|displaystyle)\b|~", " "),
    (r"\\(?:times|cdot)(?![a-zA-Z])", "\u00d7"),
    (r"\\(?:long)?rightarrow(?![a-zA-Z])", "->"),
    (r"\\approx(?![a-zA-Z])", "≈"),
    (r"\\pm(?![a-zA-Z])", "±"),
    (r"\^\s*\{?\\circ\}?", "°"),
    (r"\\([%$#&_])", r"\1"),
    (
        r"\\(?:text\w*|math\w+|underline|emph|operatorname|boldsymbol|ce|mbox|f?box(?:ed)?)\s*\{([^{}]*)\}",
        r"\1",
    ),
    (r"\\[dtc]?frac\s*(?:\{\s*([-\d.,]+)\s*\}|(\d))\s*(?:\{\s*([\d.,]+)\s*\}|(\d))", r" \1\2/\3\4"),
    (r"\\frac\s*\{\s*(\\?\w+)\s*\}\s*\{\s*(\\?\w+)\s*\}", r"\1/\2"),
    (r"\\([A-Za-z]+)\s*\{([^{}]*)\}(?:\{([^{}]*)\})?", r"\1\2\3"),  # sqrt2: no number
    (r"\^\s*[{(]\s*([-+]?\d+)\s*[})]", r"^\1"),
    (r"\\(?=[A-Za-z])", ""),
    (r"(?<=[\w)])\*\*(?=[-+]?\d+(?![\d*]))", "^"),
    (r"\\([{}])", r"\1"),
    (r"(?<=[A-Za-z])_\{?(\d+)\}?", r"\1"),  # H_2O
    (r"(?<=\w)\^\{?(\d*[+-])\}?(?!\w|\s*(?:\d|\w\b|[(\\]))", r"\1"),  # Ca^{2+}, but x^2+ 1
    (r"(?<=\d0)['\u2019](?=s\b)|\*\*|__|`", ""),  # the 1880's
    (r"\b(sqrt|log|ln|sin|cos|tan)\s?\((\w+)\)", r"\1\2"),
)
_TOKEN = re.compile(
    rf"""
    (?P<core>\d{{1,3}}(?P<gap>[{_GAP}])\d{{3}}(?:(?P=gap)\d{{3}})*(?![\d{_GAP}]\d|\s?/)(?:[.,]\d+)?
        |\d+(?:[.,'\u2019_]\d+)*|\.\d+)
    (?:[eE](?P<exp>[-+]?\d+)(?![\w.]))?
    (?:\s?\^\s?(?P<power>[-+]?\d+))?
    (?:[ ]?[xX\u00d7*·][ ]?10[ ]?\^[ ]?(?P<ten>[-+]?\d+))?
    (?:(?:[ ](?P<over>\d+))?[ ]?/[ ]?(?P<under>\d+(?:[.,'\u2019_]\d+)*))?
    """,
    re.X,
)
_MORE = re.compile(r"(?:[-:/]\d+(?:[.,]\d+)*)+")  # a date, a time, a range
_LETTERS = re.compile(r"[^\W\d_]+")
_SHARES = {"half": 2, "halve": 2, "quarter": 4}  # a third, three quarters
_SHARES |= {word: number for number, word in enumerate(ORDINAL_WORDS[:10], 1) if number > 2}
_NUMERAL = "|".join([*COUNTED, *filter(str.isascii, SCALES), *(f"{word}s?" for word in _SHARES)])
_IN_WORDS = re.compile(
    rf"(?:\b(minus|negative)\s+)?\b((?:an?\s+)?(?:{_NUMERAL})\b"
    rf"(?:,?[\s-]+(?:and\s+)?(?:an?\s+)?(?:{_NUMERAL})\b)*)|((?:[零\u3007一二两兩三四五六七八九十百千万萬亿億])+)",
    re.I,
)
_HAN = {sign: number for number, sign in enumerate("零一二三四五六七八九")} | {
    "\u3007": 0,
    "两": 2,
    "兩": 2,
}
_HAN_SCALES = {"十": 10, "百": 100, "千": 1000, "万": 10**4, "萬": 10**4, "亿": 10**8, "億": 10**8}
_ERA = re.compile(r"\s?(?:BCE?|B\.\s?C\.(?:\s?E\.)?)(?!\w)")
_SCALE = re.compile(rf"[ -]?({'|'.join(SCALES)})(?:(?<=[^\x00-\x7f])|s?\b)", re.I)
_PERCENT = re.compile(r"\s?(?:%|percent\b|per cent\b|pct\b)", re.I)
_OPERATOR = re.compile(r"[ \t]*(?:[+\u00d7*÷/·][ \t]*[\w($]|[xX][ \t]*\d|-[ \t]+\d)|\^")
_OPERAND = re.compile(r"[\w)%][ \t]*(?:[+\u00d7*÷/·^]|(?<=[\d\s])[xX](?=\s))[ \t]*$")
_CURRENCY = re.compile(r"(?:\b[A-Z]{1,2}[$]|[$€£¥₹₩]|(?<![^\W_])(?:Rs|USD|EUR|GBP)\.?)\s?$", re.I)
_SIGN = re.compile(r"(?P<sign>[-+])(?P<apart>\s?)$")
_MINUS = re.compile(r"(?<![^\W_])(?:minus|negative)\s$", re.I)
_DENIED = re.compile(rf"{REJECTING}(?:\s+|(?<=是))\W*\Z", re.I)
_ASIDE = re.compile(
    r"(?<=[\w\s])\((?!\W*(?:or|and|maybe)\b)[^()\n]*\)(?!\s*[*/^+=-])|\s+out\s+of\s+\d[\d.,]*", re.I
)
_TIMED = re.compile(  # what else happened then: in 1996, after being drafted 5th
    r"\b(?:(?:when|after|before|while|since)\b[^.,;\n=]*|because\b[^.,;:\n]*)(?=[.\s]*\Z)", re.I
)
_DECADE = re.compile(r"(?:1\d|20)?\d0")
_NEAR = 24  # characters before a number that may belong to it


class Number(NamedTuple):
    """A number in a text; `value` is None if it cannot be read, `word` if it is part of a word."""

    start: int
    end: int
    value: Fraction | None
    word: bool = False
    percent: bool = False
    quotient: bool = False


def typed(text: str) -> str:
    """Return a text with numbers, signs, fractions and LaTeX as one types them on a keyboard."""
    text = plain(text)
    if any(sign in text for sign in "\\*`^_~{('\u2019"):
        for pattern, by in _LATEX:
            text = re.sub(pattern, by, text)
    if not text.isascii():
        text = _RAISED.sub(r"^\g<0>", text.translate(_DASHES).translate(_TYPED)).translate(_DOWN)
        text = _BESIDE_IDEOGRAPH.sub(" ", _DIGIT_OR_FRACTION.sub(_as_digits, text))
    return text


def _as_digits(found: re.Match[str]) -> str:
    """Return a digit of another script, or a fraction in one character, in ASCII."""
    sign = found[0]
    if sign.isdecimal():
        return str(unicodedata.decimal(sign))
    if "FRACTION" in unicodedata.name(sign, "") and sign.isnumeric():
        before = found.string[found.start() - 1 : found.start()]
        return " " * before.isdecimal() + unicodedata.normalize("NFKC", sign).replace("\u2044", "/")
    return sign


def tokens(text: str) -> Iterator[Number]:
    """Yield the numbers of a `typed` text, in order."""
    place = 0
    while found := _TOKEN.search(text, place):
        token = _token(text, found, place)
        place = max(token.end, found.end())
        yield token


def _token(text: str, found: re.Match[str], earliest: int) -> Number:
    start, end = found.span()
    low = max(0, start - _NEAR)
    left = text[low:start]
    core = found["core"]
    if left.rstrip()[-1:] == "±":  # 1 is no number of its own in 42±1, nor 3 one in ±3
        return Number(start, end, None, word=left.rstrip(" ±")[-1:].isdigit())
    if core[0] == "." and left[-1:].isalpha():  # Rs.500
        core, left = core[1:], left + "."
    value = _value(found, core)
    beyond = next(at for at in itertools.count(end) if not text[at : at + 1].isalnum())
    if currency := _CURRENCY.search(left):
        left = left[: currency.start()]
    binary = False
    if sign := _SIGN.search(left):
        before = left[: sign.start()]
        last = before.rstrip()[-1:]
        binary = last.isdigit() or (last in (")", "%") and bool(last))
        if before[-1:].isalpha() or before[-1:] == "_":  # COVID-19
            return Number(start, beyond, None, word=True)
        apart = bool(sign["apart"])
        first = low == 0 and not before.strip()
        if not binary and (not apart or first or last in ("=", ":", "(", "≈")):
            left = before
            if sign["sign"] == "-" and value is not None:
                value = -value
        if not apart and not binary and (again := _CURRENCY.search(left)):
            left = left[: again.start()]
    elif minus := _MINUS.search(left):
        before = left[: minus.start()].rstrip()
        binary = before[-1:].isdigit()
        if not binary:
            left, value = left[: minus.start()], None if value is None else -value
    if left[-1:].isalpha() or left[-1:] in ("_", "^"):
        return Number(start, beyond, None, word=True)
    start = max(earliest, low + len(left))
    if letters := _LETTERS.match(text, end):
        unit = letters[0]
        scale = ABBREVIATED.get(unit.lower(), 0)
        if scale and (currency or unit in ("k", "M", "mn", "bn")):
            value, end = None if value is None else value * scale, letters.end()
        elif unit in ("st", "nd", "rd", "th"):
            end = letters.end()
        elif unit.casefold() not in UNITS or (unit == "s" and _DECADE.fullmatch(core)):
            return Number(start, beyond, None, word=True)
    elif text[end : end + 2] in ("'s", "\u2019s"):
        return Number(start, end + 2, None, word=True)
    if named := _SCALE.match(text, end):
        end = named.end()
        value = None if value is None else value * SCALES[named[1].lower()]
    percent = bool(per := _PERCENT.match(text, end))
    end = per.end() if per else end
    if era := _ERA.match(text, end):
        end, value = era.end(), None if value is None else -value
    if more := _MORE.match(text, end):
        return Number(start, more.end(), None)
    pair = "," in core and left[-1:] in ("(", "[", "{") and text[end : end + 1] in (")", "]", "}")
    binary = binary or (pair and value is not None and value.denominator != 1)
    if binary or _OPERATOR.match(text, end) or _OPERAND.search(left):
        return Number(start, end, None)
    return Number(start, end, value, percent=percent, quotient=bool(found["under"]))


def _value(found: re.Match[str], core: str) -> Fraction | None:
    value = _grouped(core)
    for name, base in (("exp", 10), ("ten", 10), ("power", None)):
        if value is not None and found[name]:
            value = _raised(value, base, found[name])
    if value is not None and found["under"]:
        under = _grouped(found["under"])
        whole, over = (value, Fraction(found["over"])) if found["over"] else (Fraction(0), value)
        value = whole + over / under if under else None
    return value


def _raised(value: Fraction, base: int | None, exponent: str) -> Fraction | None:
    """Return value * base**exponent, or value**exponent without a base; None if it is huge."""
    power = int(exponent) if len(exponent) < 5 else LARGEST + 1
    digits = len(str(max(abs(value.numerator), value.denominator)))
    if abs(power) * (1 if base else digits) > LARGEST or (not base and not value and power < 0):
        return None
    return value * Fraction(base) ** power if base else Fraction(value**power)


def _grouped(core: str) -> Fraction | None:
    """Return the value of digits with separators, None if these do not say which it is."""
    if len(core) > LARGEST:
        return None
    if core[0] == ".":
        return Fraction(core)
    *groups, last = parts = re.split(rf"[.,'\u2019_{_GAP}]", core)
    marks = ["'" if sign == "\u2019" else sign for sign in core if not sign.isdigit()]
    if not marks:
        return Fraction(core)
    if len(set(marks)) == 1:
        if marks == ["."]:
            return Fraction(core)
        if _thousands(parts) or (marks[0] == "," and _lakhs(parts)):
            return Fraction("".join(parts))
        return Fraction(f"{groups[0]}.{last}") if marks == [","] else None
    *separators, point = marks
    in_groups = _thousands(groups) or (set(separators) == {","} and _lakhs(groups))
    if len(set(separators)) > 1 or point not in ".," or point in separators or not in_groups:
        return None
    return Fraction(f"{''.join(groups)}.{last}")


def _thousands(groups: list[str]) -> bool:
    return len(groups[0]) <= 3 and groups[0][0] != "0" and {*map(len, groups[1:])} == {3}


def _lakhs(groups: list[str]) -> bool:
    """Return whether digits are grouped as in India: 12,00,000."""
    first, *middle, last = groups
    return len(first) <= 2 and first[0] != "0" and {*map(len, middle)} == {2} and len(last) == 3


def read(text: str) -> Number | None:
    """Return the number that a response answers, None if there is none that can be read."""
    said = spoken(text, is_number)
    for part in marked(said):
        part = typed(part)
        if found := _first(part):
            after = _first(part.rpartition("=")[2]) if "=" in part else None
            alone = not part[: found.start].strip() and re.match(
                r"\s*(?:[,;(]|\.(?:\s|$)|$)", part[found.end :]
            )
            if after and after.value is not None and not (alone and found.value is not None):
                found = after
            return found if found.value is not None else None
    first = typed(opening(said)[0])
    if is_number(first):
        return _first(first)
    said = typed(said)
    for aside in (_ASIDE, _TIMED):
        kept = aside.sub(" ", said)
        said = kept if any(_given(kept)) else said
    given = [*collections.deque(_given(said), maxlen=2)]
    if len(given) == 2 and _hedges(said, *given):
        return None
    last = given[-1] if given else _spelled(first)
    return last if last and last.value is not None else None


def _first(part: str) -> Number | None:
    found = [*itertools.islice(_given(part), 2)]
    if len(found) == 2 and _hedges(part, *found):
        return found[0]._replace(value=None)
    return found[0] if found else _spelled(part)


def _hedges(part: str, one: Number, other: Number) -> bool:
    """Return whether two numbers are alternatives: 42 or 43, but not 0.5 or 50%."""
    between = part[one.end : other.start]
    return bool(_LETTERS.search(between)) and joined(between) and not same(one, other)


def _given(part: str) -> Iterator[Number]:
    """Yield the numbers that a part gives: not those of words, nor of "not 4"."""
    for token in tokens(part):
        if not token.word and not _DENIED.search(part, max(0, token.start - _NEAR), token.start):
            yield token


def _spelled(part: str) -> Number | None:
    """Return the one number that a line without digits has in words, English or Chinese."""
    found = [one for one in _in_words(part) if not _DENIED.search(part, 0, one.start)]
    found = [one for one in found if len(found) == 1 or part[one.start : one.end] != "一"]
    return found[0] if len(found) == 1 else None


def _in_words(part: str) -> Iterator[Number]:
    """Yield the numbers that a text has in words."""
    for match in itertools.islice(_IN_WORDS.finditer(part), 9):
        value = _worth_in_chinese(match[3]) if match[3] else None
        words = re.split(r"[,\s-]+", (match[2] or "").lower())
        if not match[3] and len(words) < _NEAR:
            value = _worth(words)
        ordinal = part[match.start() - 1 : match.start()] == "第"
        if value is None or ordinal or (words == ["one"] and part[: match.start()].strip()):
            continue
        yield Number(match.start(), match.end(), -value if match[1] else value)


def in_digits(text: str) -> str:
    """Return a text with the numbers that it has in words as digits."""
    for one in reversed([*_in_words(text)]):
        if not text[: one.start].rstrip()[-1:].isdigit():  # 5 million
            text = f"{text[: one.start]}{canonical(one.value or Fraction(0))}{text[one.end :]}"
    return text


def _worth_in_chinese(signs: str) -> Fraction | None:
    """Return the number that Chinese numerals say: 二十五万; of digits alone in their places."""
    if len(signs) > _NEAR:
        return None
    if not {*signs} & {*_HAN_SCALES}:
        return Fraction(int("".join(str(_HAN[sign]) for sign in signs)))
    total = group = digit = 0
    for sign in signs:
        scale = _HAN_SCALES.get(sign, 0)
        if scale >= 10**4:
            total, group, digit = (total + group + digit or 1) * scale, 0, 0
        elif scale:
            group, digit = group + (digit or 1) * scale, 0
        else:
            digit = _HAN[sign]
    return Fraction(total + group + digit)


def _worth(words: list[str]) -> Fraction | None:
    """Return the number that words say, None if they are none: two and a half million."""
    total = before = group = Fraction(0)  # `before` an "and"
    for at, word in enumerate(words):
        if word == "and":
            before, group = before + group, Fraction(0)
        elif word in COUNTED:
            if at == 1 and 10 < group <= 20 and COUNTED[word] > 9:  # nineteen sixty-nine
                group *= 100
            if group % 100 and (COUNTED[word] > 9 or group % 100 < 20 or group % 10):
                return None  # three four
            group += COUNTED[word]
        elif word in SCALES and SCALES[word] <= 100:
            group = (group or Fraction(1)) * SCALES[word]
        elif word in SCALES:
            total, before, group = total + (before + group or 1) * SCALES[word], *2 * [Fraction(0)]
        elif share := _SHARES.get(word.removesuffix("s")):
            alone = not group and share > 2 and words[at - 1 : at] not in (["a"], ["an"])
            if alone or (group > 1) != word.endswith("s"):
                return None  # the third, twenty-third
            group = (group or Fraction(1)) / share
    return total + before + group


def is_number(text: str) -> bool:
    """Return whether a text is a number and nothing else."""
    text = typed(text).strip().strip("$*").strip()
    found = next(tokens(text), None)
    if found is None or found.value is None:
        return False
    rest = text[: found.start] + text[found.end :]
    return not rest.strip(" .€£¥₹₩$")


def alone(text: str) -> Number | None:
    """Return the number that a text is, in digits or in English words, None for any other text."""
    if is_number(text):
        return _first(typed(text))
    return _spelled(text) if _IN_WORDS.fullmatch(text.strip(" .")) else None


def canonical(value: Fraction) -> str:
    """Return a number as votes count it."""
    if value.denominator == 1:
        return str(value.numerator)
    try:
        return f"{float(value):.12g}"
    except OverflowError:
        return str(value)


def same(said: Number, accepted: Number) -> bool:
    """Return whether two numbers are equal, but for rounding; 50% is 50 and 0.5."""
    one, other = said.value or Fraction(0), accepted.value or Fraction(0)
    if said.percent != accepted.percent:
        one, other = (other, one) if accepted.percent else (one, other)
        return is_close(one, other) or is_close(one / 100, other)
    return is_close(one, other)


def is_close(value: Fraction, accepted: Fraction) -> bool:
    """Return whether two numbers are equal, but for rounding if one of them is no whole number."""
    if value == accepted or (value.denominator == 1 and accepted.denominator == 1):
        return value == accepted
    close = math.isclose(value, accepted, rel_tol=1e-6)
    return close or _is_rounded(value, accepted) or _is_rounded(accepted, value)


def _is_rounded(short: Fraction, exact: Fraction) -> bool:
    """Return whether a decimal of three digits or more is one for a fraction without an end."""
    places = next((n for n in range(1, 9) if not 10**n % short.denominator), 0)
    if not places or not 10**9 % exact.denominator or abs(short) < Fraction(100, 10**places):
        return False
    return short in (round(exact, places), Fraction(int(exact * 10**places), 10**places))


def stated_in(text: str) -> set[str]:
    """Return the numbers of a text; of dates and ranges the parts, of others the words."""
    text, found = typed(text), set[str]()
    for token in tokens(text):
        if token.value is not None:
            found.add(canonical(token.value))
        elif token.word or not _MORE.search(text[token.start : token.end]):
            found.add(text[token.start : token.end].casefold())
        else:
            parts = re.findall(r"\d+", text[token.start : token.end])
            found |= {part.lstrip("0") or "0" for part in parts}
    return found
