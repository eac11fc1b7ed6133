r"""Read which option a response chooses: by its letter, its number or its text.

Source of the label: arXiv 2503.00031, published code: `Answer:\s*([A-E])`, first match.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from grace.answers import finding, yes_no
from grace.answers.explained import chosen, mentions
from grace.answers.finding import DISPUTED, REJECTING, joined, plain, spoken
from grace.answers.numbers import IDEOGRAPH, ORDINAL_WORDS, typed
from grace.answers.text import canonical

LETTERS = "ABCDEFGHIJ"
_LEAD = re.compile(
    r"(?:(?:the\s+|my\s+)?(?:(?:correct|right|best|final|selected|chosen)\s+)?"
    r"(?:answer|option|choice|alternative)(?:\s+letter)?(?:\s+is)?:?\s+"
    r"|(?:it|that)(?:\s+is|['\u2019]s|\s+(?:must|should|would)\s+be)\s+|i(?:\s+would|['\u2019]d)?\s+(?:say|guess|think|believe)\s+"
    r"|(?:i(?:\s+would|['\u2019]d)?\s+)?(?:choose|select|pick|go\s+with)\s+"
    r"|(?:definitely|clearly|probably|(?:most\s+)?likely)\s+){1,3}(?=\S)",
    re.I,
)
_OPEN = "*_`\"'\u2018\u2019\u201c\u201d([{$<>)]}.,:;!?→✅✔✓👉 \t"
_LETTER = re.compile(
    r"[*_`\"'\u2018\u201c(\[{$<\s]*(?:([A-J])|([a-j])(?=\s*(?:[).,:;\]}*]|\Z)))(?!['\u2019-]?\w)"
)
_CLOSED = re.compile(r"[*_`\"'\u2019\u201d>$\s]*(?:[().:,;\]}\u2013\u2014=]|-\s|\Z)")
_GOES_ON = re.compile(  # after the letter A, where an article is followed by a noun
    r"\s+(?:because|since|as|is|was|or|and|for|due|which|given|it|this|that|the|would|will|not|"
    r"correctly|if|by|from|with|in|on|with|though|although|but|are|seems|says|states)\b",
    re.I,
)
_REFUSED = re.compile(
    r"\s+(?:is|was|are|can|must|would|seems)\s+(?:\w+\s+)?"
    r"(?:not|wrong|incorrect|false|untrue|unlikely|impossible|out|eliminated|excluded|least|worse)\b",
    re.I,
)
_TURNED = re.compile(  # B is tempting, but A is correct
    r"[^.;\n]*\b(?:but\b[^.;\n]*?\b([A-HJ])\s+is\s+(?:the\s+)?(?:correct|right|better|best|answer)\b"
    r"|(?:so|hence|therefore|thus)\s+(?:it\s+is\s+)?([A-HJ])(?=\W*\Z))"
)
_RULED_OUT = re.compile(  # A and C are wrong; (B is correct)
    r"(?:\A|(?<=[.!?\n;]))(?![^.;\n]*\b(?:right|correct)\b)[^.;\n]{0,200}?"
    r"(?:\b[A-J]\b[^.;\n]{0,200}?\b(?:wrong|incorrect)\b|\bnot\s+\(?[A-J]\b)[^.;\n]*;\s*"
    r"|(?:\A|(?<=: ))(?:[Oo]ption\s+)?[A-J]\s+is\s+(?:wrong|incorrect|false),\s+(?:and\s+|but\s+)?"
)
_NUMBERED = re.compile(
    r"\W*(?:the\s+)?(?:option|choice|alternative|answer|number|no\.)\s*(?:number\s*|no\.?\s*|#\s*)?"
    r"[(\[]?(\d{1,2})\b(?![.,]?\d)",
    re.I,
)
_ORDINAL = re.compile(
    rf"\W*(?:it\s+is\s+)?the\s+({'|'.join(ORDINAL_WORDS)})\s+(?:option|choice|alternative|one|answer)\b",
    re.I,
)
_BESIDE_IDEOGRAPH = re.compile(rf"(?<={IDEOGRAPH})(?=[A-J]\b)|(?<=\b[A-J])(?={IDEOGRAPH})", re.A)
_REASON = re.compile(r"(?<=\w)\W+(?:because|since)\b", re.I)
_CONTRAST = re.compile(  # not A but B; B, not A
    rf"(?:,\s*)?{REJECTING}\s+([^,;.]+?)(?:,?\s+but\b|(?=\s*(?:[,;.]|\Z)))", re.I
)


def lettered(choices: Sequence[str]) -> list[str]:
    """Return the lines that show the options of a question, each with its letter."""
    return [f"{letter}. {text}" for letter, text in zip(LETTERS, choices, strict=False)]


def read(text: str, choices: Sequence[str] = ()) -> str | None:
    """Return the letter that a response chooses, None if it names no option, or one beyond them."""
    text, *choices = (_BESIDE_IDEOGRAPH.sub(" ", one) for one in (text, *choices))
    said = spoken(text, lambda part: named(part, choices, marked=False))
    said = _RULED_OUT.sub("", said)
    for part in finding.marked(said):
        letter = named(_without_contrast(part, choices), choices)
        if letter and not _hedges(part, letter, choices):
            return _offered(letter, choices)
    first, *others = finding.opening(said)
    if others and (begun := _begun(first)) and ord(_begun(others[0]) or "?") == ord(begun) + 1:
        return None  # a list of the options
    first = _without_contrast(first, choices)
    if not (letter := named(first, choices, marked=False)):
        first = _REASON.split(first)[0]
        letter = named(first, choices, marked=False) or (None if others else _alone(first, choices))
    hedged = letter and _hedges(first, letter, choices)
    letter = (None if hedged else letter) or named(finding.concluded(said), choices)
    if not (letter or hedged):
        letter = chosen(said, dict(zip(LETTERS, choices, strict=False)))
    return _offered(letter, choices)


def _hedges(part: str, letter: str, choices: Sequence[str]) -> bool:
    """Return whether a part names another option beside a letter: "A or B", "A. Paris, B. Rome"."""
    part = _LEAD.sub("", _without_latex(part).strip(_OPEN), count=1)
    if _bare(part) in map(_bare, choices):
        return False
    label = "" if part[:2] == "A " and _bare(part[2:]) in map(_bare, choices) else "Answer: "
    found = mentions(label + part, dict(zip(LETTERS, choices, strict=False)))
    return any(
        one != other
        and (not between.strip() or joined(between, after))
        and not _REFUSED.match(after)
        for (one, between), (other, after) in itertools.pairwise(found)
        if not (other == "I" and re.match(r"\s+[a-z]", after))  # B, I think
        and letter in (one, other)
        and {one, other} <= {*LETTERS[: len(choices) or None]}
    )


def _offered(letter: str | None, choices: Sequence[str]) -> str | None:
    return letter if letter and letter in LETTERS[: len(choices) or None] else None


def _begun(line: str) -> str:
    """Return the letter of the option with which a line begins, if any."""
    begun = re.match(r"\W*([A-Ja-j])[).:]", line)
    return begun[1].upper() if begun else ""


def named(part: str, choices: Sequence[str], *, marked: bool = True) -> str | None:
    """Return the letter of the option that a part names; unmarked, nothing else may be in it."""
    part = _without_latex(part)
    options = [_bare(choice) for choice in choices]
    if not (bare := _bare(part)):
        return None
    stripped = part.strip(_OPEN).upper()
    if re.fullmatch("[A-J]", stripped) and (bare not in options or _offered(stripped, choices)):
        return stripped
    if options.count(bare) == 1:
        return LETTERS[options.index(bare)]
    lead = _LEAD.match(part)
    rest = part[lead.end() :] if lead else part
    letter, follows = "", ""
    if match := _LETTER.match(rest):
        letter, follows = match[1] or match[2].upper(), rest[match.end() :]
        own = choices[LETTERS.index(letter)] if LETTERS.index(letter) < len(choices) else ""
        own_follows = own and _starts(follows, own)
        another = not own_follows and re.match(r"[).:]\s*\w", follows) is not None
        if another and any(len(option) > 1 and _starts(follows, option) for option in options):
            return None  # the letter of one, the text of another
        if own_follows or not follows.strip(_OPEN) or (marked and _CLOSED.match(follows)):
            return letter
        if own and another:
            return None
    forms = [canonical(choice) for choice in choices]
    said = canonical(_LEAD.sub("", part, count=1) if lead else part)
    if forms.count(said) == 1 and not _NUMBERED.match(part):
        return LETTERS[forms.index(said)]
    if numbered := _NUMBERED.match(part) or _ORDINAL.match(part):
        named = numbered[1].lower()
        place = int(named) - 1 if named.isdigit() else ORDINAL_WORDS.index(named)
        meant = {place} & set(range(len(choices) or len(LETTERS)))
        meant |= {forms.index(said)} if forms.count(said) == 1 else set()
        return LETTERS[meant.pop()] if len(meant) == 1 else None
    if not marked:
        return None
    begins = [i for i, option in enumerate(options) if len(option) > 1 and _starts(rest, option)]
    if begins:
        longest = max(begins, key=lambda i: len(options[i]))
        return LETTERS[longest] if options.count(options[longest]) == 1 else None
    article = letter == "A" and re.match(r"\s+[a-z]", follows) and not _GOES_ON.match(follows)
    pronoun = letter == "I" and re.match(r"\s+[a-z]", follows)
    if letter and not article and not pronoun:
        return letter
    in_parentheses = set(re.findall(r"\(([A-J])\)", part))
    if len(in_parentheses) == 1:
        return str(in_parentheses.pop())
    contained = _contained(said, forms)
    return None if _denies(part, contained, choices) else contained


def _denies(part: str, letter: str | None, choices: Sequence[str]) -> bool:
    """Return whether a part has more negations than an option in it: "Cannot be determined"."""
    own = choices[LETTERS.index(letter)] if letter else ""
    return len(DISPUTED.findall(part)) > len(DISPUTED.findall(own))


def _without_latex(part: str) -> str:
    return re.sub(r"\\(?:boxed|fbox|[a-z]*text[a-z]*|math[a-z]+)\s*(?=\{)|\\(?=[(\[)\]])", "", part)


def _alone(line: str, choices: Sequence[str]) -> str | None:
    """Return the letter that a reply of one line names: at its start, or by one option's text."""
    meant = [yes_no.canonical(choice) for choice in choices]
    if {"yes", "no"} <= {*meant} and meant.count(said := yes_no.read(line)) == 1:
        return LETTERS[meant.index(said)]
    rest = _LEAD.sub("", line, count=1)
    contained = _contained(canonical(rest), [canonical(choice) for choice in choices])
    if (match := _LETTER.match(rest)) and match[1] != "I":
        closed = _CLOSED.match(rest, match.end()) or _GOES_ON.match(rest, match.end())
        letter = match[1] or match[2].upper()
        if turned := _TURNED.match(rest, match.end()):
            return turned[1] or turned[2]
        refused = _REFUSED.match(rest, match.end())
        if closed or letter != "A":  # which may be an article
            return letter if closed and not refused and contained in (None, letter) else None
    if _denies(line, contained, choices) or _NUMBERED.match(line):
        return None
    result = line.rpartition("=")[2]
    return contained or (named(result, choices, marked=False) if result != line else None)


def _without_contrast(text: str, choices: Sequence[str]) -> str:
    """Return a text without the options that it sets its answer against: "Rome, not Paris"."""
    forms = [canonical(choice) for choice in choices]
    if _bare(text) in map(_bare, choices) or {"yes", "no"} <= {*map(yes_no.canonical, choices)}:
        return text

    def dropped(found: re.Match[str]) -> str:
        other = named(found[1], choices, marked=False) or _contained(canonical(found[1]), forms)
        whole = _contained(canonical(found[0]), forms)  # not guilty, beside guilty
        return " " if other and whole in (None, other) else found[0]

    return _CONTRAST.sub(dropped, text).strip()


def _bare(text: str) -> str:
    """Return a text without what surrounds it, case and repeated space."""
    return " ".join(plain(typed(text)).casefold().strip(_OPEN).split())


def _starts(text: str, option: str) -> bool:
    """Return whether a text begins with an option, at the end of a word."""
    text = _bare(text)
    option = _bare(option)
    return bool(option) and text.startswith(option) and not text[len(option) :][:1].isalnum()


def _contained(said: str, forms: Sequence[str]) -> str | None:
    """Return the letter of the one option whose text is in what is said, the longest of nested."""
    padded = f" {said} "
    found = [form for form in forms if form and f" {form} " in padded]
    outer = [form for form in found if not any(form != other and form in other for other in found)]
    return (
        LETTERS[forms.index(outer[0])] if len(outer) == 1 and forms.count(outer[0]) == 1 else None
    )
