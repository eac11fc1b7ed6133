"""Read which option an explanation calls the answer, in whichever of its sentences.

It is read only where sentences say so of one option, none of another, and nothing is taken back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from grace.answers.finding import DENIED, boxed, labelled

_TOKEN = "\ue0f3"  # before the letter of an option that a sentence mentions
_LONGEST = 1000  # characters of a sentence
_ONE = rf"{_TOKEN}([A-J])"
_BEFORE, _AFTER = r"[*_`\"'\u2018\u201c(\[]{0,4}", r"[*_`\"'\u2019\u201d)\]]{0,4}"
_BY_LETTER = re.compile(
    r"\b(?:(?:the|this)\s+)?(?:(?:correct|right|best)\s+)?(?:option|choice|answer|alternative)s?"
    rf"\s*:?\s*{_BEFORE}([A-J](?:\s*(?:,|/|&|\band\b|\bor\b)+\s*(?:(?:and|or)\s+)?[A-J])*)\b"
    r"(?!['\u2019]\w)",
    re.I,
)
_BY_ITSELF = re.compile(
    rf"\b(?:is|are|was|be|choose|chose|pick|select|with)\s+{_BEFORE}([A-J]){_AFTER}"
    rf"(?=[.,;:!]?\s*(?:$|[A-Z]))|\(([A-J])\)|(?:^|[.!?]\s){_BEFORE}([A-J]){_AFTER}"
    r"(?=\s+is\s+(?:the\s+)?(?:correct|right|best)\b)",
    re.M,
)
_BESIDE = re.compile(
    r"((?:\b(?:or|and|but|though|although)\b|[,/&+])\W*(?:(?:maybe|possibly|perhaps|also|even)\s+)?)([A-J])"
    r"(?=\W*\Z|\s*[.,:;()*\]}]|\s+(?:is|are|or|and)\b)"
)
_SENTENCE = re.compile(r"(?<=[.!?])[*_\"'\u201d)]*\s+(?![a-z])|;\s+|\n+")
_QUALIFIED = (
    r"(?:(?:correct|right)(?!\s+(?:for|about|in|when|only)\b)|best(?!.known\b)|most\s+(?:likely|"
    r"probable|plausible|accurate|appropriate|suitable|reasonable|logical|ethical|effective|"
    r"important|relevant|direct|common|significant))"
)
_IS = r"(?:is|are|was|were|(?:would|must|should)\s+be)(?:\s+(?:that|to|by|clearly|therefore))?"
_CHOSEN = [
    re.compile(pattern, re.I)
    for pattern in (
        rf"{_ONE}(?:\s*,[^,]*,|\s*,)?\s*(?:{_IS}|as)?\s+(?:indeed\s+)?(?:the\s+)?{_QUALIFIED}\b",
        rf"{_ONE}\s+(?:best|correctly|accurately|most\s+\w+ly)\s+\w+s\b",
        rf"\b(?:{_QUALIFIED}|answer|option|choice)\b.*\s{_IS}\s*:?\s*{_ONE}\s*"
        r"(?:$|[.,;:]|(?:because|since|as|which|due\s+to)\b)",
        rf"\b(?:choose|chose|select|pick|opt\s+for|go\s+with|left\s+with|corresponds\s+to|matches)\s+{_ONE}",
        rf"\bonly\s+{_ONE}\s+\w+s\b",
        rf"\bconclusion\s*:\s*{_ONE}[\s.]*$",
    )
]
_CONCLUDES = re.compile(
    r"^\W*(?:in\s+)?conclu(?:sion|sively)\b|^\W*(?:after|based\s+on|given)\b[^,]*,"
    r"|\b(?:therefore|thus|hence|consequently|we\s+can\s+conclude)\b",
    re.I,
)
_ENDS = re.compile(rf"\b(?:{_IS}|by|contains|contained)\s+{_ONE}[\s.!*_\"'\u201d)]*$", re.I)
_OPEN_ENDED = re.compile(
    r"\b(?:if|whether|unless|some|people|says?|said|claims?|(?<!\bI )(?<!\bwe )(?:think|believe)s?"
    r"|mistak\w+|wrong|incorrect\w*|false|inaccurate|unlikely|less|least|eliminat\w+|ruled?\s+out"
    r"|however|but|although|though)\b|\?$",
    re.I,
)
_TAKEN_BACK = re.compile(
    r"\b(?:none|neither|all|both|any)\s+of\s+(?:the|these|them|those)\b|^\W*(?:no|wait|actually|"
    r"hmm)\b|\b(?:that|this)(?:\s+is|['\u2019]s)\s+(?:wrong|a\s+mistake)\b",
    re.I,
)


def chosen(said: str, choices: Mapping[str, str]) -> str | None:
    """Return the letter of the one option that sentences call the answer; `choices` by letter."""
    if [*boxed(said), *labelled(said)]:
        return None
    sentences = [part for part in _SENTENCE.split(_mentioned(said, choices)) if part.strip()]
    if any(map(_TAKEN_BACK.search, sentences)):
        return None
    found = set()
    for number, sentence in enumerate(sentences, 1):
        mentions = {*re.findall(_ONE, sentence[:_LONGEST])}
        if (
            len(sentence) > _LONGEST
            or len(mentions) != 1
            or DENIED.search(sentence)
            or _OPEN_ENDED.search(sentence)
        ):
            continue
        mark = _CONCLUDES.search(sentence) if _ENDS.search(sentence) else None
        concludes = mark and (number == len(sentences) or "conclu" in mark[0].lower())
        if concludes or any(pattern.search(sentence) for pattern in _CHOSEN):
            found |= mentions
    return found.pop() if len(found) == 1 else None


def mentions(said: str, choices: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the letter of each option that is mentioned, with the text up to the next."""
    _, *parts = _mentioned(_BESIDE.sub(rf"\1{_TOKEN}\2", said), choices).split(_TOKEN)
    return [(part[0], part[1:]) for part in parts if part]


def _mentioned(said: str, choices: Mapping[str, str]) -> str:
    """Return a text with a token for each mention of an option, by its letter or its text."""
    said = _BY_LETTER.sub(
        lambda m: " ".join(_TOKEN + x for x in re.findall(r"\b[A-J]\b", m[1])), said
    )
    for letter, own in sorted(choices.items(), key=lambda pair: -len(pair[1])):
        words = r"\s+".join(map(re.escape, own.strip(" .").split()))
        if len(words) > 1:
            text = rf"(?<![\w.-]){words}(?![\w%]|[.,]\d)"
            pattern = rf"{_BEFORE}(?:\b{letter}[.):]\s*)?{_BEFORE}{text}{_AFTER}"
            said = re.sub(pattern, _TOKEN + letter, said, flags=re.I)
    said = _BY_ITSELF.sub(_with_token, said)
    said = re.sub(rf":{_AFTER}\s*\n\s*(?={_TOKEN})", ": ", said)
    return re.sub(rf"({_ONE})(?:[\s,:\u2013\u2014*(-]*\1[\s)]*)+", r"\1 ", said)


def _with_token(found: re.Match[str]) -> str:
    """Return a match with the token before its letter, without the signs around it."""
    group = found.lastindex or 0
    before = found[0][: found.start(group) - found.start()].rstrip("*_`\"'\u2018\u201c([")
    return f"{before} {_TOKEN}{found[group]}"
