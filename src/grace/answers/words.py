"""Compare texts by their words of content: in any order, with initials, titles and slips.

What a word is to a name decides whether another text names the same: the last one says what it is,
and a name within a longer one is another.
"""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from collections.abc import Sequence

from grace.answers import finding
from grace.answers.numbers import COUNTED, ORDINAL_WORDS, ROMAN
from grace.metrics.rouge import rouge_l, tokens

FEW = 4  # words of a text, letters of a word: where one that differs makes another of it
_FUNCTION_WORDS = "a an the of in on at by to and for from with is was are were be it its this that"
EMPTY = {*_FUNCTION_WORDS.split(), "between"}
_PARTICLE = re.compile(r"\b(?:v\.|(?:[vV][ao]n|[dD][ei][rl]?|den|da|du|della|la|i?bi?n)\b)(?=\s)")
_TITLES = "mr mrs ms prof professor sir president general gen reverend rev emperor lord lady"
_TITLES += " doctor madame baron baroness dame colonel senator governor herr frau monsieur"
_TITLED = {*_TITLES.split()}  # words before a name that make no other name of it
_SUFFIXES = {*("jr", "sr", "inc", "incorporated", "ltd", "limited", "llc", "group")}
_SUFFIXES |= {"co", "company", "corp", "corporation", "holdings", "plc", "gmbh"}
_FIRMS = _SUFFIXES - {"jr", "sr"}
_DIRECTIONS = {word for way in ("north", "south", "east", "west") for word in (way, f"{way}ern")}
_DIRECTIONS |= {"new"}
_FOLDED = str.maketrans(
    {"ø": "o", "Ø": "O", "ł": "l", "Ł": "L", "đ": "d", "Đ": "D", "ð": "d", "þ": "th"}
    | {"æ": "ae", "Æ": "Ae", "œ": "oe", "Œ": "Oe", "ß": "ss"}
)
_SHORTENED = {"st": "saint", "mt": "mount", "junior": "jr", "senior": "sr", "dr": "doctor"}
_SHORTENED |= {"bce": "bc", "ce": "ad"}
_OWNED = re.compile(r"['\u2019]s\b")
_NAMED_A = re.compile(r"(?<=\w) (?:A\b|a\W*$)")
_CAPITAL = r"[A-Z\u0410-\u042f]"
_INITIAL = re.compile(rf"(?<=\b\w)\.(?=\w\b)|(?<=\b{_CAPITAL})\.? (?={_CAPITAL}\.)")
_NUMBERED = re.compile(r"\b([A-Z]{2,4}?)[ -]?(?=(?:\d+|[IVX]+)\b)")  # WWII
_INITIALS = re.compile(rf"\b({_CAPITAL}{{1,4}})\.(?=\s+\w)")
_ACRONYM = re.compile(rf"\b{_CAPITAL}{{2,5}}\b")
_TITLE = re.compile(r"The(?: [A-Z]\w+){2}\Z|[A-Z] [a-z]")
_PREFIXED = "North|South|East|West|New|Latin|Central"
_NAMED_AFTER = "University|College|School|Bridge|Tower|Airport|Avenue|Street|Road|Stadium|Museum"
_NAMED_AFTER += "|Station|Hospital|Hotel|Township|Prize|Award"
_KINDS_OF = "City|State|Republic|Kingdom|Province|County|Island|Isle|Duke|Earl|Gulf|Lake|Planet"
_PART_BEFORE = re.compile(
    rf"\b((?:{_PREFIXED})) (?:and )?\Z|(?<=[\w.,] )(?!{_KINDS_OF})([A-Z][a-z]+) of (?:the )?\Z"
    rf"|\A(?:The )?(?!{_KINDS_OF})([A-Z][a-z]+) of (?:the )?\Z"
)
_PART_AFTER = re.compile(rf"\A(?:\s(?:\w+\s)?({_NAMED_AFTER})\b)")
_MODAL = "can could may might must shall should will would think thought believe guess say"
_SURELY = "actually really also probably likely certainly definitely surely"
_ABOUT_IT = {*f"i you he she they there own itself {_MODAL} {_SURELY}".split()}  # how one answers
_OFFERS = re.compile(  # a question that names what may be answered
    r"\b(?:or|oder|ou|или|between)\b|,[^,]*\band\b|\s[oó]\s|أو|还是|還是|或者", re.I
)
_ASKING = {*("what", "which", "who", "whom", "whose", "where", "when", "how")}
_SENTENCE = re.compile(r"(?:(?<=[^\W_]{3}\.)|(?<=[!?]))\s+|(?<=[\u3002\uff1f])|\n")  # not after St.
ASKS_WHO = re.compile(r"\bwho(?:m|se)?\b|\bwer\b|\bqui\b|\bquién\b|\b\u043a\u0442\u043e\b", re.I)
_OBJECT = r"of|with|after|before|than|to|for|against|under|like|shot|beat|\w+ed"
_ALONE = re.compile(  # Bell invented it; but not: a friend of Bell
    rf"(?:\A|[(,:;*\"]\s?|\b(?!(?:{_OBJECT})\b)[a-z]\w*\s)([A-ZÀ-Ý][\w-]+)"
    r"(?=\W*\Z|[,.;:(]|\s(?:is|was|wrote|had|won|shot|led|made|did|in|\w+ed)\b)"
)
_OWNING = re.compile(r"['\u2019]s\s+([a-z]\w*)")
_UNSPACED_KINDS, _UNSPACED_AFTER = "市省县縣都道府州国國", "是的でだはがをに写寫著发發"
_KOREAN = re.compile(r"(?<=[\uac00-\ud7a3]{2})(?:특별시)?(?:입니다|이다|은|는|이|가|의|에)?(?!\w)")
_ENDINGS = {*("us i", "um a", "on a", "is es", "y ies", "f ves", "fe ves", "an en", "x ces")}


def has_words(accepted: str, said: str, threshold: float, asked: str | None = None) -> bool:
    """Return whether two texts share their words of content: South Korea is no North Korea.

    Words of the question say nothing: what it lacks must be said, what it has is not counted.
    """
    question = asking(asked or "")
    given, about = content(said), content(question)
    other = [word for word in given if word not in about]  # German, of Germany
    wanted = _written_out(content(accepted), accepted, given)
    firm = [word for word in wanted if word not in _FIRMS]
    if without(about, firm) and without(given, firm) in ([], firm):  # Apple or AI, of Apple Inc.
        wanted = firm
    new = _written_out(without(about, given), said, wanted)
    given = _written_out(given, said, wanted)
    if own := without(about, wanted):
        if not any(_is_among(word, [*new, *other]) for word in own):
            return False  # all that is said is in the question
    elif not _OFFERS.search(question):
        asks = [word for word in without(wanted, about) if word not in _ASKING]
        repeats = not asks or any(_is_among(word, asks) for word in given)
        if not without(given, about) or (repeats and not _ABOUT_IT.issuperset(new)):
            return False  # the question repeated, maybe with something else
    if len(wanted) > FEW and len(given) > FEW:
        counted = (own, new) if own else (wanted, given)
        return rouge_l(*map(" ".join, counted)) >= max(threshold, 0.5) - 1e-9
    extra = without(wanted, given)
    named = [word for word in extra if word not in _TITLED]
    if not named:
        initials = {*map(str.lower, _INITIALS.findall(_INITIAL.sub("", accepted)))}
        wanted = [word for word in wanted if word in given or word not in initials]
    missing = without(given, wanted)
    asks_who = ASKS_WHO.search(question) is not None
    by_surname = asks_who and _is_by_surname(accepted, said, missing, wanted)
    if missing and ((named and not by_surname) or _TITLED.issuperset(given)):
        return False
    if not wanted or not given or _DIRECTIONS & {*missing} & {*content(accepted.split(",")[0])}:
        return False
    extra = [word for word in extra if word in new] if own else extra
    if asked is not None and not _may_lack(missing, accepted, wanted, given, content(asked)):
        return False
    share = 1 - (len(missing) + len(extra)) / (len(wanted) + len(given))
    if missing:
        share = 1 - len(missing) / (len(wanted) + len(given) - len(extra))
        return by_surname or share >= max(threshold - 1e-9, 0.5 + 1e-9)  # New York, not City
    whole = len(wanted) > 1 and f" {' '.join(wanted)} " in f" {' '.join(given)} "
    return whole or share >= threshold - 1e-9


def _is_by_surname(accepted: str, said: str, missing: list[str], wanted: list[str]) -> bool:
    """Return whether only first names are missing, and the surname stands alone: Berners-Lee."""
    surname = content(accepted.rpartition(" ")[2])
    if missing != wanted[: -len(surname)] or any(count(word) for word in surname):  # John Paul II
        return False
    return any(content(one) == surname for one in _ALONE.findall(_PARTICLE.sub("", said).strip()))


@functools.lru_cache(64)
def asking(asked: str) -> str:
    """Return the sentence that asks: a text before it is there to be quoted."""
    sentences = [one for one in _SENTENCE.split(asked) if one.strip()]
    return next((one for one in reversed(sentences) if "?" in one or "\uff1f" in one), asked)


def without(others: Sequence[str], words: Sequence[str]) -> list[str]:
    """Return the words that are not among others."""
    return [word for word in words if not _is_among(word, others)]


def _may_lack(
    missing: list[str], accepted: str, wanted: list[str], given: list[str], about: list[str]
) -> bool:
    """Return whether an answer may lack words, in view of those of the question."""
    first = next((at for at, word in enumerate(wanted) if word not in missing), 0)
    if all(word.isdigit() or len(word) == 1 for word in given):  # Apollo 13
        needed = wanted[:first] if given[0].isdigit() else missing
    elif {*missing} & {*_of_kind(accepted), *(wanted[:first] if _TITLE.match(accepted) else ())}:
        return False
    else:
        needed = _head(accepted)
    return all(_is_among(word, about) for word in needed if word in missing)


def _head(accepted: str) -> list[str]:
    """Return the last word of a name, which says what it is in English: (whale) shark.

    It is not looked for in what follows a comma, or two words and "of": United States. "City" says
    little after two words: New York.
    """
    stem = re.split("[,;]|.*\\(", accepted)[0]
    before = content(re.split(r"(?<=\w)\s(?:of|in|on|at|for|from|by|with)\s", stem)[0])
    words = before if len(before) > 1 else content(stem)
    words = words[:-1] if len(words) > 2 and words[-1] == "city" else words
    return [word for word in words if word.isascii() and word not in _SUFFIXES][-1:]


def _of_kind(accepted: str) -> list[str]:
    """Return both words of a name such as Bank of America."""
    found = re.fullmatch(r"(?:The )?([A-Z]\w+) of (?:the )?([A-Z]\w+)", accepted.strip(" ."))
    return [*content(found[1]), *content(found[2])] if found else []


def is_other_name(accepted: str, said: str, asked: str | None) -> bool:
    """Return whether a name is said only as part of another: North America, Bank of America."""
    words = re.findall(r"[^\W_]+", accepted)
    if not words or not words[0][0].isupper():
        return False
    about = {*map(str.casefold, re.findall(r"[^\W_]+", f"{asked or ''} {accepted}"))}
    names = [*re.finditer(r"(?i)\b" + r"[^\w\n]+".join(words) + r"\b", said)]

    def within(name: re.Match[str]) -> bool:
        before, after = said[: name.start()], said[name.end() :]
        beside = [*filter(None, itertools.chain(*_PART_BEFORE.findall(before)))]
        beside += _PART_AFTER.findall(after)
        if len(words) > 1:
            beside += re.findall(r"\A ([A-Z][a-z]{2,})\b", after)
        known = [*about, *_SUFFIXES, "city"]
        other = [one for one in beside if not _is_among(one.casefold(), known)]
        owned = _OWNING.match(after)
        return bool(other) or (owned is not None and not ("whose" in about and owned[1] in about))

    return bool(names) and all(map(within, names))


def is_named_unspaced(accepted: str, said: str) -> bool:
    """Return whether a name of a script without spaces is said, and not as part of another."""
    name = re.escape(accepted.strip(" 。").rstrip(_UNSPACED_KINDS) or accepted)
    letter, before = finding.UNSPACED.pattern, "是为為は在于、叫即都约約有"
    return (
        re.search(
            rf"(?:(?<!{letter})|(?<=[{before}])|(?<=作家|作者|诗人|画家|学家)){name}[{_UNSPACED_KINDS}]?(?!(?![{_UNSPACED_AFTER}]){letter})",
            said,
        )
        is not None
    )


def numbered(text: str, other: str) -> str:
    """Return a text with words of the other in place of their initials before a number: WWII."""
    words = words_of(other)
    if not _NUMBERED.search(text) or all(count(word) is None for word in tokens(other)):
        return text
    runs = [words[at : at + size] for size in (2, 3, 4) for at in range(len(words) + 1 - size)]
    written = {"".join(word[0] for word in run).upper(): " ".join(run) + " " for run in runs}
    return _NUMBERED.sub(lambda found: written.get(found[1], found[0]), text)


def _written_out(words: list[str], text: str, others: list[str]) -> list[str]:
    """Return words of a text, with those of the others in place of their initials: J. R. R., UK."""
    text = _INITIAL.sub("", text)
    heads = "".join(word[0] for word in others)
    short = {*map(str.lower, _INITIALS.findall(text))}
    for word in map(str.lower, _ACRONYM.findall(text)):  # USA: United States
        if len(heads) > 1 and word in (heads, heads[:-1], f"{heads}a", f"{heads}c"):
            short.add(word)
    written: list[str] = []
    for word in words:
        forms = (heads,) if word in (f"{heads}a", f"{heads}c") else (word, word[0])
        known = next((one for one in forms if one in heads and word in short - {*others}), "")
        written += others[heads.find(known) :][: len(known)] or [word]
    return written


def _is_among(word: str, others: Sequence[str]) -> bool:
    """Return whether a word, or a number in any writing, is among others."""
    number = count(word)
    if number is not None:
        return any(count(other) == number for other in others)
    return any(_spelt_alike(word, other) for other in others)


@functools.lru_cache(4096)
def count(word: str) -> int | None:
    """Return the number that a word is: 2, 2nd, two, second or ii."""
    if digits := re.fullmatch(r"(\d+)(?:st|nd|rd|th)?", word):
        return int(digits[1])
    if word in COUNTED:
        return COUNTED[word]
    for names in (ORDINAL_WORDS, [*map(str.lower, ROMAN)]):
        if word in names:
            return names.index(word) + 1
    return None


def content(text: str) -> list[str]:
    """Return the words of a text that are no function words; all, if there are only those."""
    text = _NAMED_A.sub(
        " letter-a", _INITIAL.sub("", _OWNED.sub("", _PARTICLE.sub("", _KOREAN.sub("", text))))
    ).translate(_FOLDED)
    folded = "".join(
        c for c in unicodedata.normalize("NFKD", text) if not "\u0300" <= c <= "\u036f"
    )
    words = [_SHORTENED.get(word, word) for word in tokens(folded)]
    return [word for word in words if word not in EMPTY] or [*words]


def _spelt_alike(word: str, other: str) -> bool:
    """Return whether two words are one, in the plural or, if they are long, with a slip."""
    short, long = sorted((word, other), key=len)
    if len(long) > len(short) + 2:
        return False
    at = next((i for i, (a, b) in enumerate(zip(short, long, strict=False)) if a != b), len(short))
    ends = {f"{short[at:]} {long[at:]}", f"{long[at:]} {short[at:]}"}
    if long in (short, f"{short}s", f"{short}es") or (at > 2 and ends & _ENDINGS):
        return True
    if len(short) < len(long):
        return len(short) > FEW and at > 0 and short[at:] == long[at + 1 :]
    swapped = short[at : at + 2] == long[at : at + 2][::-1] and short[at + 2 :] == long[at + 2 :]
    return len(short) > 2 * FEW - 1 and at > 0 and (swapped or short[at + 1 :] == long[at + 1 :])


def words_of(text: str) -> list[str]:
    """Return the words of a text that are no numbers."""
    return re.findall(r"[^\W\d_]+", text.casefold())
