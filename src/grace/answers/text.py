"""Read an answer in words: what votes count, and when two of them say the same."""

from __future__ import annotations

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
from grace.metrics.rouge import rouge_l, tokens

FEW = 4  # words of a text, letters of a word: where one that differs makes another of it
_FUNCTION_WORDS = "a an the of in on at by to and for from with is was are were be it its this that"
_EMPTY = {*_FUNCTION_WORDS.split(), "between"}
_PARTICLE = re.compile(r"\b(?:v\.|(?:van|von|de|der|den|da|di|du|del|della|la|bin|ibn)\b)(?=\s)")
_TITLES = "mr mrs ms dr prof professor sir president general gen reverend rev emperor lord lady"
_TITLED = {*_TITLES.split()}  # words before a name that make no other name of it
_RULERS = "emperor empress king queen tsar czar pope prince princess sultan pharaoh"
_REIGNS = {*_RULERS.split()}
_SUFFIXES = {*("jr", "sr", "inc", "incorporated", "ltd", "limited", "llc", "group")}
_SUFFIXES |= {"co", "company", "corp", "corporation"}
_DIRECTIONS = {word for way in ("north", "south", "east", "west") for word in (way, f"{way}ern")}
_DIRECTIONS |= {"new"}
_FOLDED = str.maketrans(
    {"ø": "o", "Ø": "O", "ł": "l", "Ł": "L", "đ": "d", "Đ": "D", "ð": "d", "þ": "th"}
    | {"æ": "ae", "Æ": "Ae", "œ": "oe", "Œ": "Oe", "ß": "ss"}
)
_SHORTENED = {"st": "saint", "mt": "mount", "junior": "jr", "senior": "sr"}
_SHORTENED |= {"bce": "bc", "ce": "ad"}
_OWNED = re.compile(r"['\u2019]s\b")
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
_TITLE = re.compile(r"The(?: [A-Z]\w+){2}\Z")
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
    r"\b(?:than|near|close\s+to|next\s+to|outside|before|(?<!named )after|until|unlike|formerly)\b"
    r"[^,.;:!?()\n]*|,\s+(?:which|who|whose|whereas)\b(?!\s+(?:is|was)\s+[A-Z])[^,.;\n]*",
    re.I,
)
_PREFIXED = "North|South|East|West|(?:Nor|Sou)thern|(?:Ea|We)stern|New|Latin|Central"
_NAMED_AFTER = "University|College|School|Bridge|Tower|Airport|Avenue|Street|Road|Stadium|Museum"
_NAMED_AFTER += "|Station|Hospital|Hotel|Township|Prize|Award"
_KINDS_OF = "City|State|Republic|Kingdom|Province|County|Island|Isle|Duke|Earl|Gulf|Lake|Planet"
_PART_BEFORE = re.compile(
    rf"\b((?:{_PREFIXED})) (?:and )?\Z|(?<=[\w.,] )(?!{_KINDS_OF})([A-Z][a-z]+) of (?:the )?\Z"
    rf"|\A(?:The )?(?!{_KINDS_OF})([A-Z][a-z]+) of (?:the )?\Z"
)
_PART_AFTER = re.compile(rf"\A(?:\s(?:\w+\s)?({_NAMED_AFTER})\b)")
_OWNING = re.compile(r"['\u2019]s\s+[a-z]")
_TIMED = re.compile(rf"{DATE.pattern}|\d\s?[ap]\.?m\b", re.I)
_UNSPACED_KINDS, _UNSPACED_AFTER = "市省县縣都道府州国國", "是的でだはがをに"
_CLAUSE = re.compile(r"[,;.:!?](?=\s|$)|[\u2014\n]|\s\((?=not\b)|\b(?:but|rather)\b", re.I)


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
    said = said if _BESIDE.search(accepted) else _BESIDE.sub(" ", said)
    if amount := amounts.alone(accepted):
        return threshold > 0 and amounts.states(said, amount) and not _denies(said, accepted)
    accepted, said = _numbered(accepted, said), _numbered(said, accepted)
    accepted, said = (dated(one) if _TIMED.search(accepted) else one for one in (accepted, said))
    if (listed := _listed(accepted)) and (given_list := _listed(said)):
        return listed == given_list
    if _is_formula(accepted):
        return _has_formula(said, accepted)
    wanted = numbers.stated_in(accepted) | _roman(accepted.partition(" ")[2])
    given = numbers.stated_in(said) | _roman(said)
    given |= {str(_count(word)) for word in _words(said) if word in (*COUNTED, *ORDINAL_WORDS)}
    dates = {*ISO.findall(accepted)}
    if not threshold or not wanted <= given or dates not in (set(), {*ISO.findall(said)} or dates):
        return False
    other_unit = wanted and _other_unit(said, accepted)
    if other_unit or _denies(said, accepted) or _other_sign(said, accepted):
        return False
    if finding.UNSPACED.search(accepted):
        return _is_named_unspaced(accepted, said)
    parts = [] if finding.DENIED.search(accepted) else _parts(accepted)
    if min(map(len, parts), default=0) > 1 and (pieces := _pieces(said, accepted)):
        return all(any(_begins_or_ends(part, one, threshold) for one in pieces) for part in parts)
    return not _is_other_name(accepted, said, asked) and _says(accepted, said, threshold, asked)


def _pieces(said: str, accepted: str) -> list[str]:
    """Return the items of a list that is said, [] if there is no list; none if only some count."""
    found = finding.ALTERNATIVE.split(said)
    signs = " ".join(filter(None, ["", *found[1::2], *_ONE_OF.findall(found[0])]))
    unsure = _ONE_OF.search(signs) and not _ONE_OF.search(accepted)
    pieces = [one for one in found[::2] if not finding.DENIED.search(one)]
    return [] if len(found) < 3 else ["-"] if unsure else pieces


def _begins_or_ends(part: str, piece: str, threshold: float) -> bool:
    """Return whether a part of a list is what an item begins or ends with."""
    words, size = piece.split(), len(part.split()) + 1
    return any(
        _has_words(part, " ".join(own), threshold) for own in (words[:size], words[-size:]) if own
    )


def _says(accepted: str, said: str, threshold: float, asked: str | None) -> bool:
    """Return whether a text, or the first of its clauses that denies nothing, has the words."""
    clauses = [part for part in _CLAUSE.split(said) if part.strip()]
    clause = next(itertools.filterfalse(finding.DENIED.search, clauses), "")
    named = _COPULA.search(clause)
    return (
        _has_words(accepted, said, threshold, asked)
        or _has_words(accepted, clause, threshold, asked)
        or bool(named and canonical(named[1]) == canonical(accepted))
        or bool(numbers.stated_in(accepted) and _is_amount(accepted, said))
    )


def _is_named_unspaced(accepted: str, said: str) -> bool:
    """Return whether a name of a script without spaces is said, and not as part of another."""
    name = re.escape(accepted.strip(" 。").rstrip(_UNSPACED_KINDS) or accepted)
    letter, before = finding.UNSPACED.pattern, "是为為は在于、叫即"
    return (
        re.search(
            rf"(?:(?<!{letter})|(?<=[{before}])){name}[{_UNSPACED_KINDS}]?(?!(?![{_UNSPACED_AFTER}]){letter})",
            said,
        )
        is not None
    )


def _is_other_name(accepted: str, said: str, asked: str | None) -> bool:
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
        return bool(other) or _OWNING.match(after) is not None

    return bool(names) and all(map(within, names))


def hedges(said: str, accepted: Sequence[str], threshold: float, asked: str | None = None) -> bool:
    """Return whether an accepted text is one of several that are said: Paris or Rome."""
    named = said != said.lower() and any(text[:1].isupper() for text in accepted)
    wanted, said = [*accepted], numbers.typed(said)
    if _listed(said) and any(map(_listed, accepted)):  # which `alike` compares
        return False
    for text in accepted:
        if parts := _parts(text):  # Romeo and Juliet is one answer
            wanted += parts
            said = re.sub(re.escape(text), parts[0].replace("\\", " "), said, flags=re.I)
    plainly = all(text == text.lower() for text in accepted)
    placed = not _WHICH.search(asked or "") or _WHERE.search(asked or "") is not None
    hedged = False
    for sentence in _SENTENCE.split(said):
        items, is_open = list[bool](), False  # of the list so far; whether it leaves open which
        pieces = [";", *finding.ALTERNATIVE.split(sentence)]  # each after its sign; a comma: None
        is_pair = len(pieces) == 4 and plainly and sentence == sentence.lower()  # gold, silver
        is_pair = is_pair and _EMPTY.isdisjoint(pieces[3].split())
        is_pair = is_pair or (not placed and _are_names(pieces[1::2], asked or ""))
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
        if own and _has_words(one, " ".join(own), threshold):
            return not _other_sign(" ".join(own), one)
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
    named = [word for word in extra if word not in _TITLED]
    if not extra:
        initials = {*map(str.lower, _INITIALS.findall(_INITIAL.sub("", accepted)))}
        wanted = [word for word in wanted if word in given or word not in initials]
    missing = [word for word in wanted if not _is_among(word, given)]
    if any(not set(_content(part)) - {*missing} for part in _parts(accepted)):
        return False
    if len(wanted) > FEW and len(given) > FEW:
        return rouge_l(" ".join(wanted), " ".join(given)) >= max(threshold, 0.5) - 1e-9
    if (missing and named) or not wanted or not given or _DIRECTIONS & {*missing}:
        return False
    if asked is not None and not _may_lack(missing, accepted, wanted, given, _content(asked)):
        return False
    share = 1 - (len(missing) + len(extra)) / (len(wanted) + len(given))
    if missing:
        share = 1 - len(missing) / (len(wanted) + len(given) - len(extra))
        return share >= threshold - 1e-9 and share > 0.5  # New York for New York City, not City
    whole = len(wanted) > 1 and f" {' '.join(wanted)} " in f" {' '.join(given)} "
    return whole or share >= threshold - 1e-9


def _may_lack(
    missing: list[str], accepted: str, wanted: list[str], given: list[str], about: list[str]
) -> bool:
    """Return whether an answer may lack words, in view of those of the question."""
    first = next((at for at, word in enumerate(wanted) if word not in missing), 0)
    if len(wanted) == 2 and not first and _count(wanted[1]) is None and {*about} & _REIGNS:
        return True  # Napoleon
    if all(word.isdigit() or len(word) == 1 for word in given):  # Apollo 13
        needed = wanted[:first]
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
    before = _content(re.split(r"(?<=\w)\s(?:of|in|on|at|for|from|by|with)\s", stem)[0])
    words = before if len(before) > 1 else _content(stem)
    words = words[:-1] if len(words) > 2 and words[-1] == "city" else words
    return [word for word in words if word.isascii() and word not in _SUFFIXES][-1:]


def _of_kind(accepted: str) -> list[str]:
    """Return both words of a name such as Bank of America."""
    found = re.fullmatch(r"(?:The )?([A-Z]\w+) of (?:the )?([A-Z]\w+)", accepted.strip(" ."))
    return [*_content(found[1]), *_content(found[2])] if found else []


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
    text = _NAMED_A.sub(
        " letter-a", _INITIAL.sub("", _OWNED.sub("", _PARTICLE.sub("", text)))
    ).translate(_FOLDED)
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
        doubled = at < len(short) or short[-1] == long[-1]  # but America, American
        return len(short) > FEW and short[at:] == long[at + 1 :] and doubled
    return len(short) > 2 * FEW - 1 and short[at + 1 :] == long[at + 1 :]


def _is_formula(text: str) -> bool:
    """Return whether a text is one of mathematics without words, such as p - q, (1, 2] or 3:2."""
    text, functions = _FUNCTION.subn("x", numbers.typed(text).strip("$ ."))
    signs = _OPERATOR.search(text) or (functions and re.search(r"\d", text))
    return bool(signs) and not re.search(r"[^\W\d_]{2,}", text)


def _listed(text: str) -> list[Fraction]:
    """Return the numbers of a text that is a list of them, sorted: 3, 5 and 7."""
    named = _COPULA.search(text)
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
    about = set(normalise(accepted).split())
    clauses = [clause for clause in _CLAUSE.split(said) if clause.strip()]
    nearest = max(clauses, key=lambda c: len(about & set(normalise(c).split())), default="")
    return bool(finding.DISPUTED.search(nearest)) != bool(finding.DISPUTED.search(accepted))


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
    return {UNITS[word] for word in _words(text.translate(amounts.CURRENCIES)) if word in UNITS}


def _is_amount(accepted: str, said: str) -> bool:
    """Return whether the accepted text is a number with units, or with words that are also said."""
    known = {*UNITS, *OTHER, *_words(said)}
    return re.match(r"\W*\d", accepted) is not None and known.issuperset(_words(accepted))
