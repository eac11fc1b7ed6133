"""Read an answer in words: what votes count, and when two of them say the same."""

from __future__ import annotations

import functools
import itertools
import re
import string
import unicodedata
from collections.abc import Sequence
from fractions import Fraction

from grace.answers import amounts, finding, numbers
from grace.answers.finding import plain
from grace.answers.numbers import COUNTED, ORDINAL_WORDS, ROMAN
from grace.answers.units import DATE, ISO, OTHER, UNITS, dated
from grace.answers.words import (
    ASKS_WHO,
    EMPTY,
    FEW,
    asking,
    content,
    count,
    has_words,
    is_named_unspaced,
    is_other_name,
    numbered,
    words_of,
)

_ARTICLE = re.compile(r"\b(a|an|the)\b")
_FULLWIDTH = "\uff01\uff08\uff09\uff0c\uff1a\uff1b\uff1f"  # ! ( ) , : ; ?
_MARKS = string.punctuation + "\u2018\u2019\u00b4“”„«»…¡¿、。「」『』《》・।؟،؛" + _FULLWIDTH
_PUNCTUATION = dict.fromkeys(map(ord, _MARKS), " ")
_MEANT = dict.fromkeys(map(ord, set(_MARKS + "\u2013\u2014") - set("+#^=<>")), " ")
_LOOSE = re.compile(r"(?<![\w+#])[+#]+(?!\w)|(?<!\w)#+")  # but C++, C#, x+y
_SPACED = re.compile(r" ?([<>]) ?| ([+^]) ")
_IDIOM = re.compile(r"\bno\.?\s*(?=\d)|\bno doubt\b|\bwithout doubt\b|\bnot only\b", re.I)
_FUNCTION = re.compile(r"(?:sqrt|frac|sin|cos|tan|log|ln|exp|pi|infty|cup|cap)(?![a-z]{2})")
_OPERATOR = re.compile(
    r"[=<>^*±∞\u222a]|\w_\w|\b[A-Za-z]\(|[(\[{]\s*-?[\w.]+\s*,|\d\s*:\s*\d|\w\s*\+\s*\w"
    r"|[a-z]\d*\s*[-/]\s*\w|\w\s*[-/]\s*[a-z]|^-[a-z]|\d ?[xyz]\b|[A-Z]-$"
)
_ROMAN = re.compile(r"\b(?!L\b)[IVXL]{1,8}\b")
_ONE_OF = re.compile(r"\b(?:or|oder|ou|maybe|perhaps|possibly|any|either)\b", re.I)
_SENTENCE = re.compile(r"(?<=[^\W_]{3})[.!?](?=\s|$)|\n")
_COPULA = re.compile(r".*(?:\b(?:is|are|was|were|ist|war|est|était|es|fue|era|é|è)\s|是)(.*)")
_WHICH = re.compile(r"\bwho\b|\b(?:which|what)\s+(?!(?:is|was|are|were|do|does|did)\b)\w", re.I)
_PLACES = (  # what an answer may name with its region: Springfield, Illinois
    "where|born|locat|place|cit(?:y|ies)|town|village|capital|countr|nation|state|count(?:y|ies)"
    "|province|region|district|island|airport|port|station|universit|college|school|museum|stadium"
    "|hotel|palace|castle|church|cathedral|theat|building|bridge|park|square|street|river|mountain"
    "|lake|sea|resort|course|battle|attraction|headquarter|continent|area"
)
_WHERE = re.compile(rf"\b(?:{_PLACES})|place\b", re.I)
_BESIDE = re.compile(  # what it is compared with, or stands beside the answer
    r"\b(?:than|unlike|formerly)\b(?:(?!\s(?:is|are|was|were)\b)[^,.;:!?()\n])*"
    r"|[,(]\s?(?:before|after|near)\b[^,.;:!?()\n]*(?=[.)\s]*\Z)|\A(?:before|after)\b(?=.*\d)"
    r"[^.;\n]*(?=[.\s]*\Z)"
    r"|,\s+(?:which|who|whose|whereas)\b(?!\s+(?:is|was)\s+[A-Z])[^,.;\n]*"
    r"|\bnot\s(?!only\b)[^,.;\n]*?,?\sbut\b",
    re.I,
)
_TIMED = re.compile(rf"{DATE.pattern}|\d\s?[ap]\.?m\b|\b\d\d?:\d\d\b", re.I)
_CLAUSE = re.compile(r"(?:[,;:!?]|(?<=[^\W_]{3})\.)(?!\S)|[\u2014\n]|\s\(|\b(?:but|rather)\b", re.I)
_ASIDE = re.compile(r"(?<=\w)\s?\((?!\W*(?:or|and|maybe|possibly)\b)[^()\n]*\)(?=\s*(?:\w|\W*\Z))")


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
    ][0][: finding.LONGEST]


@functools.lru_cache(1024)  # of a response it is asked once for each accepted answer
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
    if spelt := numbers.alone(folded):
        folded = numbers.canonical(spelt.value or Fraction(0))
    folded = unicodedata.normalize("NFC", folded)
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
    said = said if _BESIDE.search(f", {accepted}") else _BESIDE.sub(" ", said)
    if amount := amounts.alone(accepted):
        return threshold > 0 and amounts.states(said, amount) and not _denies(said, accepted)
    accepted, said = numbered(accepted, said), numbered(said, accepted)
    accepted, said = (dated(one) if _TIMED.search(accepted) else one for one in (accepted, said))
    if (listed := _listed(accepted)) and (given_list := _listed(said)):
        return listed == given_list
    if _is_formula(accepted):
        return _has_formula(said, accepted)
    wanted = numbers.stated_in(accepted) | _roman(accepted.partition(" ")[2])
    given = numbers.stated_in(said) | _roman(said)
    given |= {str(count(word)) for word in words_of(said) if word in (*COUNTED, *ORDINAL_WORDS)}
    dates = {*ISO.findall(accepted)}
    if not threshold or not wanted <= given or dates not in (set(), {*ISO.findall(said)} or dates):
        return False
    if (wanted and _other_unit(said, accepted)) or _other_sign(said, accepted):
        return False
    if _denies(said, accepted) and not _repeats_denial(said, asking(asked or "")):
        return False
    if finding.UNSPACED.search(accepted):
        return is_named_unspaced(accepted, said)
    parts = [] if wanted else finding.parts(accepted)  # between 4 and 6
    if parts and not finding.DENIED.search(accepted):
        return _has_parts(parts, said, threshold, accepted)
    return not is_other_name(accepted, said, asked) and _says(accepted, said, threshold, asked)


def _has_parts(parts: Sequence[str], said: str, threshold: float, accepted: str) -> bool:
    """Return whether all parts of a list are said, each at an end of an item, and no "or"."""
    first, *others = finding.ALTERNATIVE.split(said)
    if not others:
        named = said.isupper() or all(part.strip().casefold() in said.casefold() for part in parts)
        return named and has_words(accepted, said, threshold)
    signs = " ".join(filter(None, [*_ONE_OF.findall(first), *others[::2]]))
    if _ONE_OF.search(signs) and not _ONE_OF.search(accepted):
        return False

    def ends(item: str, part: str) -> bool:
        words, size = item.split(), len(part.split())
        beside = [words[:size], words[-size:], words[: size + 1], words[-size - 1 :]]
        return any(has_words(part, " ".join(own), threshold) for own in beside if own)

    items = [one for one in (first, *others[1::2]) if not finding.DENIED.search(one)]
    return all(any(ends(item, part) for item in items) for part in parts)


def _says(accepted: str, said: str, threshold: float, asked: str | None) -> bool:
    """Return whether a text, or the first of its clauses that denies nothing, has the words."""
    clauses = [part for part in _CLAUSE.split(_ASIDE.sub("", said)) if part.strip()]
    clause = next(itertools.filterfalse(finding.DENIED.search, clauses), "")
    named = _COPULA.match(clause)
    rest = named[1] if named else ""
    return (
        has_words(accepted, said, threshold, asked)
        or has_words(accepted, clause, threshold, asked)
        or (len(rest) < len(accepted) + FEW and has_words(accepted, rest, threshold, asked))
        or bool(numbers.stated_in(accepted) and _is_amount(accepted, said))
    )


def hedges(said: str, accepted: Sequence[str], threshold: float, asked: str | None = None) -> bool:
    """Return whether an accepted text is one of several that are said: Paris or Rome."""
    are_lists = any(map(finding.parts, accepted))
    said = said if are_lists or "(" in "".join(accepted) else _ASIDE.sub("", said)
    if canonical(said) in map(canonical, accepted):
        return False
    named = said != said.lower() and any(text[:1].isupper() for text in accepted)
    wanted, said = [*accepted], numbers.typed(said)
    if _listed(said) and any(map(_listed, accepted)):  # which `alike` compares
        return False
    if ASKS_WHO.search(asking(asked or "")):
        wanted += [one.split()[-1] for one in accepted]
    for text in accepted:
        if parts := finding.parts(text):  # Romeo and Juliet is one answer
            wanted += parts
            said = re.sub(re.escape(text), parts[0].replace("\\", " "), said, flags=re.I)
    plainly = all(text == text.lower() for text in accepted)
    placed = not _WHICH.search(asked or "") or _WHERE.search(asked or "") is not None
    hedged = False
    for sentence in _SENTENCE.split(said):
        items, is_open = list[bool](), False  # of the list so far; whether it leaves open which
        pieces = [";", *finding.ALTERNATIVE.split(sentence)]  # each after its sign; a comma: None
        is_pair = len(pieces) == 4 and plainly and sentence == sentence.lower()  # gold, silver
        is_pair = is_pair and EMPTY.isdisjoint(pieces[3].split())
        is_pair = is_pair or (not placed and _are_names(pieces[1::2], asked or ""))
        for sign, piece in zip(pieces[::2], pieces[1::2], strict=True):
            if hedged and sign in (None, ";"):  # Of Paris and Rome, Paris is larger
                hedged = not any(has_words(one, piece, threshold) for one in wanted)
            if are_lists and named and sign != ";":  # Larry Page (in 1998)
                piece = re.split(r"(?<=\w)\s(?=[a-z]+\s)", piece)[0]
            item = _is_wanted(piece, wanted, threshold, named, begins=sign == ";")
            if item is None or (is_open and sign is None):
                items, is_open = [], False
            if items:
                is_open = is_open or bool(sign) or is_pair or len(items) >= FEW - 1
            items += [] if item is None else [item]
            hedged = hedged or (is_open and len({*items}) == 2)
    return hedged


def _are_names(pieces: Sequence[str], asked: str) -> bool:
    """Return whether pieces are names of one form, none of them in the question: Mars, Venus."""
    names = [piece.strip(" .*") for piece in pieces]
    alike = len({len(name.split()) for name in names}) == 1 < len(names)
    whole = all(re.fullmatch(r"(?:[A-ZÀ-Ý][\w'.-]+ ?){1,3}", name) for name in names)
    return alike and whole and not any(name.casefold() in asked.casefold() for name in names)


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
        if own and has_words(one, " ".join(own), threshold):
            return not _other_sign(" ".join(own), one)
    own = item(max(len(one.split()) for one in wanted) + named)
    if not own or (named and own[0].islower()) or any(_other_unit(piece, one) for one in wanted):
        return None
    return False


def _is_formula(text: str) -> bool:
    """Return whether a text is one of mathematics without words, such as p - q, (1, 2] or 3:2."""
    text, functions = _FUNCTION.subn("x", numbers.typed(text).strip("$ ."))
    signs = _OPERATOR.search(text) or (functions and re.search(r"\d", text))
    return bool(signs) and not re.search(r"[a-z]{2}" if "->" in text else r"[^\W\d_]{2}", text)


def _listed(text: str) -> list[Fraction]:
    """Return the numbers of a text that is a list of them, sorted: 3, 5 and 7."""
    named = _COPULA.match(text)
    text = re.sub(r"\b[a-z]\d?\s*=\s*", "", named[1] if named else text)  # x1 = 2, x2 = 3
    parts = re.split(r"\s*(?:[,;]|\b(?:and|or)\b)\s*", text.strip("$ .{}"))
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
    accepted, said = (re.sub(unlike, ", not ", _IDIOM.sub(" ", one)) for one in (accepted, said))
    about = {*normalise(accepted).split(), *content(accepted)}
    clauses = [clause for clause in _CLAUSE.split(said) if clause.strip()]
    nearest = max(
        clauses, key=lambda c: len(about & {*normalise(c).split(), *content(c)}), default=""
    )
    return bool(finding.DISPUTED.search(nearest)) != bool(finding.DISPUTED.search(accepted))


def _repeats_denial(said: str, asked: str) -> bool:
    """Return whether a question has a negation, which a sentence with words of it repeats."""
    about, repeated = finding.DENIED.subn(" ", asked)
    return repeated > 0 and not {*content(about)}.isdisjoint(content(said))


def _other_sign(said: str, accepted: str) -> bool:
    """Return whether a word has other signs after it: C and C++ are two languages."""
    signs = [
        {word for word in canonical(text).split() if word.rstrip("+#") != word}
        for text in (accepted, said)
    ]
    plainly = {word.rstrip("+#") for word in signs[1] - signs[0]}
    return not signs[0] <= signs[1] or bool(plainly & {*canonical(accepted).casefold().split()})


def _other_unit(said: str, accepted: str) -> bool:
    """Return whether both name units (or months) of one dimension, but none in common."""
    wanted, given = _units(accepted), _units(said)
    return not wanted & given and not {one for one, _ in wanted}.isdisjoint(one for one, _ in given)


def _units(text: str) -> set[tuple[int, str]]:
    """Return the units that a text names, each with its dimension."""
    return {UNITS[word] for word in words_of(text.translate(amounts.CURRENCIES)) if word in UNITS}


def _is_amount(accepted: str, said: str) -> bool:
    """Return whether the accepted text is a number with units, or with words that are also said."""
    known = {*UNITS, *OTHER, *words_of(said)}
    return re.match(r"\W*\d", accepted) is not None and known.issuperset(words_of(accepted))
