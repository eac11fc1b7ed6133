"""Read an answer in words: what votes count, and when two of them say the same."""

from __future__ import annotations

import itertools
import re
import string
import unicodedata
from collections.abc import Sequence
from fractions import Fraction

from grace.answers import finding, numbers
from grace.answers.finding import plain
from grace.answers.numbers import COUNTED, DATE, ORDINAL_WORDS, OTHER, ROMAN, UNITS, dated
from grace.metrics.rouge import rouge_l, tokens

FEW = 4  # words of a text, letters of a word: where one that differs makes another of it
_FUNCTION_WORDS = "a an the of in on at by to and for from with is was are were be it its this that"
_EMPTY = {*_FUNCTION_WORDS.split(), "between"}
_SUFFIXES = {*("jr", "sr", "inc", "incorporated", "ltd", "limited", "llc", "group")}
_SUFFIXES |= {"co", "company", "corp", "corporation"}
_DENIED = re.compile(  # also where something else is said to be wrong, or of another kind
    rf"{finding.DENIED.pattern}|(?:\b(?:is|are|was|were)|['\u2019]s)\s+(?:\w+\s+)?"
    r"(?:wrong|incorrect|false|untrue|mistaken)\b|\b(?:non|off)-",
    re.I,
)
_DIRECTIONS = {word for way in ("north", "south", "east", "west") for word in (way, f"{way}ern")}
_DIRECTIONS |= {"new"}
_FOLDED = str.maketrans(
    {"ø": "o", "Ø": "O", "ł": "l", "Ł": "L", "đ": "d", "Đ": "D", "ð": "d", "þ": "th"}
    | {"æ": "ae", "Æ": "Ae", "œ": "oe", "Œ": "Oe", "ß": "ss"}
)
_SHORTENED = {"st": "saint", "mt": "mount", "bce": "bc", "ce": "ad"}
_SIGNS = {"$": "dollar", "€": "euro", "¥": "yen", "₹": "rupee", "£": "gbp"}
_CURRENCIES = str.maketrans({sign: f" {name} " for sign, name in _SIGNS.items()})
_NAMED_A = re.compile(r"(?<=\w) (?:A\b|a\W*$)")
_INITIAL = re.compile(r"(?<=\b\w)\.(?=\w\b)|(?<=\b[A-Z])\.? (?=[A-Z]\.)")
_NUMBERED = re.compile(r"\b([A-Z]{2,4}?)[ -]?(?=(?:\d+|[IVX]+)\b)")  # WWII
_INITIALS, _ACRONYM = re.compile(r"\b([A-Z]{1,4})\.(?=\s+\w)"), re.compile(r"\b[A-Z]{2,5}\b")
_ARTICLE = re.compile(r"\b(a|an|the)\b")
_FULLWIDTH = "\uff01\uff08\uff09\uff0c\uff1a\uff1b\uff1f"  # ! ( ) , : ; ?
_MARKS = string.punctuation + "\u2018\u2019\u00b4“”„«»…¡¿、。「」『』《》・।؟،؛" + _FULLWIDTH
_PUNCTUATION = dict.fromkeys(map(ord, _MARKS), " ")
_MEANT = dict.fromkeys(map(ord, set(_MARKS + "\u2013\u2014") - set("+#^=<>")), " ")
_LOOSE = re.compile(r"(?<![\w+#])[+#]+(?!\w)|(?<!\w)#+")  # but C++, C#, x+y
_SPACED = re.compile(r" ?([=<>]) ?| ([+^]) ")
_IDIOM = re.compile(r"\bno\.?\s*(?=\d)|\bno doubt\b|\bwithout doubt\b|\bnot only\b", re.I)
_FUNCTION = re.compile(r"(?:sqrt|frac|sin|cos|tan|log|ln|exp|pi|infty|cup|cap)(?![a-z]{2})")
_OPERATOR = re.compile(
    r"[=<>^*±∞\u222a]|\w_\w|\b[A-Za-z]\(|[(\[{]\s*-?[\w.]+\s*,|\d\s*:\s*\d|\w\s*\+\s*\w"
    r"|[a-z]\d*\s*[-/]\s*\w|\w\s*[-/]\s*[a-z]|^-[a-z]"
)
_ROMAN = re.compile(r"\b(?!L\b)[IVXL]{1,8}\b")
_SENTENCE = re.compile(r"(?<=[^\W_]{3})[.!?](?=\s|$)|\n")
_COPULA = re.compile(r".*(?:\b(?:is|are|was|were|ist|war|est|était|es|fue|era|é|è)\s|是)(.*)")
_CLAUSE = re.compile(r"[,;.:!?](?=\s|$)|[\u2014\n]|\b(?:but|rather)\b", re.I)


def normalise(text: str) -> str:
    """Return the text lower-cased, without punctuation, articles and extra space.

    A text that consists of nothing else ("The The", "!!!") keeps its words as they are.

    Source: TriviaQA, arXiv 1705.03551, published evaluation code, whose punctuation is that of
    ASCII and the quotes ‘’´.
    """
    lowered = unicodedata.normalize("NFC", text.lower())
    words = _ARTICLE.sub(" ", lowered.translate(_PUNCTUATION)).split()
    return " ".join(words or lowered.split())


def read(text: str) -> str | None:
    """Return what a response answers in the form that votes count, None if it says nothing."""
    return canonical(answered(text)) or None


def answered(text: str) -> str:
    """Return the part of a response that is compared, without "the answer is"."""
    said = finding.spoken(text)
    first, *others = finding.opening(said)
    if (
        others
        and finding.ITEM.match(others[0])
        and (first[-1:] == ":" or finding.ITEM.match(first))
    ):  # a list
        first = "; ".join(
            finding.ITEM.sub("", line) for line in (first, *others) if finding.ITEM.match(line)
        )
    return [
        *finding.boxed(said),
        *finding.labelled(said),
        *finding.hashed(said),
        *finding.stated(said),
        first,
    ][0]


def canonical(text: str) -> str:
    """Return a text in one form: only signs that make another answer count (C++, -5, 3.5)."""
    text = dated(numbers.typed(text).strip() or plain(text).strip())  # "~" is a space in LaTeX
    if _is_formula(text):
        return "".join(text.strip("$ .").split())
    pieces, place = [], 0
    for token in numbers.tokens(text):
        if token.value is None:
            continue
        pieces.append(text[place : token.start].translate(_MEANT))
        written = text[token.start : token.end] if token.quotient else ""
        pieces.append(written.replace(" / ", "/") or f"\ue000{numbers.canonical(token.value)}")
        place = token.end
    pieces.append(text[place:].translate(_MEANT))
    joined = _LOOSE.sub(" ", _SPACED.sub(r"\1\2", " ".join(" ".join(pieces).split())))
    words = joined.split()
    kept = [  # an article but for the last word (vitamin A), or a capital A within (A. afarensis)
        word
        for at, word in enumerate(words, 1)
        if at == len(words) or (word == "A" and at > 1) or word.lower() not in ("a", "an", "the")
    ]
    folded = " ".join(kept or words or text.split()).replace("\ue000", "").casefold()
    folded = unicodedata.normalize("NFC", str(COUNTED.get(folded, folded)))
    return folded.upper() if folded in "abcdefghij" and len(folded) == 1 else folded


def alike(accepted: str, said: str, threshold: float, asked: str | None = None) -> bool:
    """Return whether a short answer says what is accepted (threshold 0: in the same form).

    `asked` is the question, whose words an answer may leave out: Pacific (Ocean).
    """
    if canonical(accepted) == canonical(said) != "" and not _other_unit(said, accepted):
        return True
    accepted, said = numbers.typed(accepted), numbers.typed(said)
    if (number := numbers.alone(accepted)) and (other := numbers.alone(said)):
        return numbers.same(other, number)
    accepted, said = _numbered(accepted, said), _numbered(said, accepted)
    if _other_unit(said, accepted):
        based = [numbers.in_base_units(text) for text in (accepted, said)]
        accepted, said = (accepted, said) if any(map(_units, based)) else based
    if DATE.search(accepted):
        accepted, said = dated(accepted), dated(said)
    if (listed := _listed(accepted)) and (given_list := _listed(said)):
        return listed == given_list
    if _is_formula(accepted):
        return _has_formula(said, accepted)
    wanted = numbers.stated_in(accepted) | _roman(accepted.partition(" ")[2])
    given = numbers.stated_in(said) | _roman(said)
    given |= {str(_count(word)) for word in _words(said) if word in (*COUNTED, *ORDINAL_WORDS)}
    if not threshold or not wanted <= given:
        return False
    other_unit = wanted and _other_unit(said, accepted)
    if other_unit or _denies(said, accepted) or _other_sign(said, accepted):
        return False
    clauses = [part for part in _CLAUSE.split(said) if part.strip()]
    clause = next(itertools.filterfalse(finding.DENIED.search, clauses), "")
    named = _COPULA.search(clause)
    return (
        _has_words(accepted, said, threshold, asked)
        or _has_words(accepted, clause, threshold, asked)
        or bool(named and canonical(named[1]) == canonical(accepted))
        or bool(wanted and _is_amount(accepted, said))
    )


def hedges(said: str, accepted: Sequence[str], threshold: float) -> bool:
    """Return whether an accepted text is one of several that are said: Paris or Rome."""
    named = said != said.lower() and any(text[:1].isupper() for text in accepted)
    wanted, said = [*accepted], plain(said)
    for text in accepted:
        if parts := _parts(text):  # Romeo and Juliet is one answer
            wanted += parts
            said = re.sub(re.escape(text), parts[0].replace("\\", " "), said, flags=re.I)
    plainly = all(text == text.lower() for text in accepted)
    hedged = False
    for sentence in _SENTENCE.split(said):
        items, is_open = list[bool](), False  # of the list so far; whether it leaves open which
        pieces = [";", *finding.ALTERNATIVE.split(sentence)]  # each after its sign; a comma: None
        is_pair = len(pieces) == 4 and plainly and sentence == sentence.lower()  # gold, silver
        is_pair = is_pair and _EMPTY.isdisjoint(pieces[3].split())
        for sign, piece in zip(pieces[::2], pieces[1::2], strict=True):
            if hedged and sign in (None, ";"):  # Of Paris and Rome, Paris is larger
                hedged = not any(_has_words(one, piece, threshold) for one in wanted)
            item = _is_wanted(piece, wanted, threshold, named, begins=sign == ";")
            if item is None or (is_open and sign is None):
                items, is_open = [], False
            if items:
                is_open = is_open or bool(sign) or is_pair or len(items) >= FEW - 1
            items += [] if item is None else [item]
            hedged = hedged or (is_open and len({*items}) == 2)
    return hedged


def _is_wanted(
    piece: str, wanted: Sequence[str], threshold: float, named: bool, *, begins: bool
) -> bool | None:
    """Return whether an item of a list is wanted, None for a piece that is none or denies one.

    It is hardly longer than what is wanted; what begins a list ends with the first item.
    """
    words = [] if finding.DENIED.search(piece) else _ARTICLE.sub(" ", piece).split()

    def item(size: int) -> list[str]:
        own = words[-size:] if begins else words
        return own if len(own) <= size else []

    for one in wanted:
        own = item(len(one.split()) + 1)
        if own and _has_words(one, " ".join(own), threshold):
            return True
    own = item(max(len(one.split()) for one in wanted) + named)
    if not own or (named and own[0].islower()) or any(_other_unit(piece, one) for one in wanted):
        return None
    return False


def _parts(text: str) -> list[str]:
    """Return the parts of a text that is a list: hydrogen, oxygen and carbon."""
    pieces = finding.ALTERNATIVE.split(text)
    parts = [part for part in pieces[::2] if part.strip()]
    listed = any(pieces[1::2]) or (len(parts) > 2 and text == text.lower())
    return parts if listed and all(len(part.split()) <= FEW for part in parts) else []


def _has_words(accepted: str, said: str, threshold: float, asked: str | None = None) -> bool:
    """Return whether two texts share their words of content: South Korea is no North Korea."""
    words, given = _content(accepted), _content(said)
    wanted = _written_out(words, accepted, given)
    given = _written_out(given, said, wanted)
    extra = [word for word in given if not _is_among(word, wanted)]
    if not extra:
        initials = {*map(str.lower, _INITIALS.findall(_INITIAL.sub("", accepted)))}
        wanted = [word for word in wanted if word in given or word not in initials]
    missing = [word for word in wanted if not _is_among(word, given)]
    if any(not set(_content(part)) - {*missing} for part in _parts(accepted)):
        return False
    if len(wanted) > FEW and len(given) > FEW:
        return rouge_l(" ".join(wanted), " ".join(given)) >= max(threshold, 0.5) - 1e-9
    if (missing and extra) or not wanted or not given or _DIRECTIONS & {*missing}:
        return False
    if asked is not None:
        bare = all(word.isdigit() or len(word) == 1 for word in given)  # Apollo 13
        first = min(wanted.index(word) for word in wanted if word not in missing)
        needed = {*missing} & {*(wanted[:first] if bare else _head(accepted))}
        if not all(_is_among(word, _content(asked)) for word in needed):
            return False
    share = 1 - (len(missing) + len(extra)) / (len(wanted) + len(given))
    if missing:
        return share >= threshold - 1e-9 and share > 0.5  # New York for New York City, not City
    whole = len(wanted) > 1 and f" {' '.join(wanted)} " in f" {' '.join(given)} "
    return whole or share >= threshold - 1e-9


def _head(accepted: str) -> list[str]:
    """Return the last word of a name, which says what it is in English: (whale) shark.

    It is not looked for in what follows a comma, or two words and "of": United States. "City" says
    little after two words: New York.
    """
    stem = re.split("[,;]|.*\\(", accepted)[0]
    before = _content(re.split(r"(?<=\w)\s(?:of|in|on|at|for|from|by|with)\s", stem)[0])
    words = before if len(before) > 1 else _content(stem)
    words = words[:-1] if len(words) > 2 and words[-1] == "city" else words
    return [word for word in words if word.isascii() and word not in _SUFFIXES][-1:]


def _numbered(text: str, other: str) -> str:
    """Return a text with words of the other in place of their initials before a number: WWII."""
    words = _words(other)
    if not _NUMBERED.search(text) or all(_count(word) is None for word in tokens(other)):
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
        if len(heads) > 1 and word in (heads, heads[:-1], f"{heads}{word[-1]}"):
            short.add(word)
    written: list[str] = []
    for word in words:
        at = heads.find(word[: len(heads)]) if word in short and word not in others else -1
        written += others[at : at + len(word)] if at >= 0 else [word]
    return written


def _is_among(word: str, others: Sequence[str]) -> bool:
    """Return whether a word, or a number in any writing, is among others."""
    count = _count(word)
    if count is not None:
        return any(_count(other) == count for other in others)
    return any(_spelt_alike(word, other) for other in others)


def _count(word: str) -> int | None:
    """Return the number that a word is: 2, 2nd, two, second or ii."""
    if digits := re.fullmatch(r"(\d+)(?:st|nd|rd|th)?", word):
        return int(digits[1])
    if word in COUNTED:
        return COUNTED[word]
    for names in (ORDINAL_WORDS, [*map(str.lower, ROMAN)]):
        if word in names:
            return names.index(word) + 1
    return None


def _content(text: str) -> list[str]:
    """Return the words of a text that are no function words; all, if there are only those."""
    text = _NAMED_A.sub(" letter-a", _INITIAL.sub("", text)).translate(_FOLDED)
    folded = "".join(
        c for c in unicodedata.normalize("NFKD", text) if not "\u0300" <= c <= "\u036f"
    )
    words = [_SHORTENED.get(word, word) for word in tokens(folded)]
    return [word for word in words if word not in _EMPTY] or [*words]


def _spelt_alike(word: str, other: str) -> bool:
    """Return whether two words are one, in the plural or, if they are long, with a slip."""
    short, long = sorted((word, other), key=len)
    if long in (short, f"{short}s", f"{short}es"):
        return True
    at = next((i for i, (a, b) in enumerate(zip(short, long, strict=False)) if a != b), len(short))
    if len(short) < len(long):
        return len(short) > FEW and short[at:] == long[at + 1 :]
    return len(short) > 2 * FEW - 1 and short[at + 1 :] == long[at + 1 :]


def _is_formula(text: str) -> bool:
    """Return whether a text is one of mathematics without words, such as p - q, (1, 2] or 3:2."""
    text, functions = _FUNCTION.subn("x", numbers.typed(text).strip("$ ."))
    signs = _OPERATOR.search(text) or (functions and re.search(r"\d", text))
    return bool(signs) and not re.search(r"[^\W\d_]{2,}", text)


def _listed(text: str) -> list[Fraction]:
    """Return the numbers of a text that is a list of them, sorted: 3, 5 and 7."""
    parts = re.split(r"\s*(?:[,;]|\band\b)\s*", text.strip("$ .{}"))
    values = [number.value for number in map(numbers.read, parts) if number]
    if len(parts) < 2 or not all(map(numbers.is_number, parts)):
        return []
    return sorted(value for value in values if value is not None)


def _roman(text: str) -> set[str]:
    """Return the Roman numerals of a text as numbers: World War II is no World War I."""
    return {str(ROMAN.index(found) + 1) for found in _ROMAN.findall(text) if found in ROMAN}


def _has_formula(said: str, accepted: str) -> bool:
    """Return whether a formula is said, apart from spaces, and not as part of a longer one."""
    wanted, said = (numbers.typed(text).strip("$ .") for text in (accepted, said))
    signs = r"\s*".join(map(re.escape, "".join(wanted.split())))
    around = rf"(?<![\w^*/+-])(?<![*/+-]\s){signs}(?!\w|\s*[*/^+(-])"
    return re.search(around, said.replace("$", " ")) is not None and not _denies(said, accepted)


def _denies(said: str, accepted: str) -> bool:
    """Return whether the clause nearest to the accepted text has a negation that this lacks."""
    unlike = rf"(?i)(?!not\b){finding.REJECTING}"
    accepted, said = (re.sub(unlike, ", not", _IDIOM.sub(" ", one)) for one in (accepted, said))
    about = set(normalise(accepted).split())
    clauses = [clause for clause in _CLAUSE.split(said) if clause.strip()]
    nearest = max(clauses, key=lambda c: len(about & set(normalise(c).split())), default="")
    return bool(_DENIED.search(nearest)) != bool(_DENIED.search(accepted))


def _other_sign(said: str, accepted: str) -> bool:
    """Return whether a word has other signs after it: C and C++ are two languages."""
    signs = [
        {word for word in canonical(text).split() if word.rstrip("+#") != word}
        for text in (accepted, said)
    ]
    plainly = {word.rstrip("+#") for word in signs[1] - signs[0]}
    return not signs[0] <= signs[1] or bool(plainly & {*canonical(accepted).casefold().split()})


def _words(text: str) -> list[str]:
    """Return the words of a text that are no numbers."""
    return re.findall(r"[^\W\d_]+", text.casefold())


def _other_unit(said: str, accepted: str) -> bool:
    """Return whether both name units (or months) of one dimension, but none in common."""
    wanted, given = _units(accepted), _units(said)
    return not wanted & given and not {one for one, _ in wanted}.isdisjoint(one for one, _ in given)


def _units(text: str) -> set[tuple[int, str]]:
    """Return the units that a text names, each with its dimension."""
    return {UNITS[word] for word in _words(text.translate(_CURRENCIES)) if word in UNITS}


def _is_amount(accepted: str, said: str) -> bool:
    """Return whether the accepted text is a number with units, or with words that are also said."""
    known = {*UNITS, *OTHER, *_words(said)}
    return re.match(r"\W*\d", accepted) is not None and known.issuperset(_words(accepted))
