"""Read yes or no: the first of its words in the answer, with a negation before it."""

from __future__ import annotations

import re

from grace.answers import words
from grace.answers.finding import DENIED, lines, marked, opening, plain, spoken
from grace.answers.numbers import typed

NEAR = 80  # characters around a word that may change what it means
_YES_WORDS = "yes yeah yep yup ja oui si sí sì sim да так tak evet نعم 是 是的 对 對 はい 네 예"
_NO_WORDS = "no nope nah nein non não nee nej нет ні nie hay\u0131r 否 不 不是 いいえ 아니요 لا"
_YES, _NO = {*_YES_WORDS.split()}, {*_NO_WORDS.split()}
_TRUE = {"true", "correct", "right", "accurate", "wahr", "vrai", "verdadero"}
_FALSE = {"false", "incorrect", "wrong", "untrue", "inaccurate", "falsch", "faux", "falso"}
_ALONE = {"y": True, "affirmative": True, "n": False, "negative": False, "unlikely": False}
_HELPING = "do does did can could will would should must may might has have had not never cannot"
_HELPING += " don doesn didn won couldn wouldn shouldn mustn hasn haven hadn isn aren wasn weren t"
_AUXILIARIES = {*f"{_HELPING} no longer anymore".split()}
_RHETORICAL = re.compile(r"\A\W*\w+n['\u2019]t\b")  # Isn't it so?
_NOT = r"(?:not|never|n['\u2019]t|cannot|hardly|no)"
_SKIPPED = re.compile(
    r"\b(?:no|without(?:\s+an?y?)?)\s+(?:doubt|question|problem|wonder|matter)\b"
    r"|\b(?:yes|true|correct|right)\s*(?:/|or|and)\s*(?:no|not|false|incorrect|wrong)\b"
    r"|\b(?:no|false|incorrect|wrong)\s*(?:/|or|and)\s*(?:yes|true|correct|right)\b"
    r"|\bno\s+(?:\w+\s+)?(?:information|evidence|data|way|idea|answer|context|mention|consensus"
    r"|indication|proof)\b"
    r"|\bneither\s+\w+\s+nor\s+\w+|\b(?:cannot|can['\u2019]t|could\s*n['\u2019]t)\s+(?:answer|say|tell)\s+\w+"
    r"|\bno\.?\s*\d|\bnot\s+only\b|\b(?:not|n['\u2019]t)\s+(?:sure|certain|know)\b",
    re.I,
)
_WORD = re.compile(r"[^\W\d_]+")
_BREAK = re.compile(r"\s*(?:[,;:!?)\]*\"'”\u2019\u2013\u2014]|\.(?!\d)|-\s|$|\n)")
_BECAUSE = re.compile(
    r"\s+(?:because|since|as|but|and|it|they|he|she|this|that|there|we|you|i)\b", re.I
)
_SHORT = re.compile(  # "It isn't.", "They do.", "Certainly not."
    r"(?:absolutely|certainly|definitely|of course|indeed|probably|surely|really)?\s*"
    r"(?:(?:it|he|she|they|this|that|these|those|there|we|you|i|one)\s+"
    r"(?:is|are|was|were|does|do|did|has|have|had|can|could|will|would|should|must|may|might|wo|ca)"
    r")?\s*(?:certainly|definitely|really|indeed)?\s*"
    rf"(?P<no>{_NOT}(?:\s+(?:really|at all|think so|the case|so|necessarily|quite))?)?\s*[.!]*",
    re.I,
)


def is_yes_or_no(accepted: str) -> bool:
    """Return whether an accepted answer is one of the words for yes and no, or true or false."""
    return plain(accepted).strip(" .!").casefold() in {*_YES, *_NO, "true", "false"}


def _meaning(word: str) -> bool | None:
    if word in _YES or word in _TRUE:
        return True
    return False if word in _NO or word in _FALSE else None


def read(text: str) -> str | None:
    """Return "yes" or "no" as a response answers, None if it does neither."""
    said = spoken(text, lambda part: _said(part) is not None)
    for part in [*marked(said), said]:
        meant = _said(part)
        if meant is not None:
            return "yes" if meant else "no"
    return None


def restated(text: str, asked: str) -> str | None:
    """Return yes or no where the first sentence says, or denies, what the question asks."""
    first = re.split(r"(?<=\w)[.!;](?=\s|$)|,\s|\sbecause\b", opening(spoken(text))[0])[0]
    asked = _RHETORICAL.sub("", words.asking(asked).strip().rpartition("\n")[2])
    said, about = (
        [word for word in words.content(one) if word not in _AUXILIARIES] for one in (first, asked)
    )
    denied, rest = DENIED.search(first) is not None, iter(about)
    in_order = all(any(not words.without([one], [word]) for one in rest) for word in said)
    if not said or not in_order or (len(said) < len(about) and not denied):
        return None
    return "no" if denied != (DENIED.search(asked) is not None) else "yes"


def _said(part: str) -> bool | None:
    part = _SKIPPED.sub(" ", typed(part))
    if (alone := part.strip(" *_.!()\"'").lower()) in _ALONE:
        return _ALONE[alone]
    for found in _WORD.finditer(part):
        word = found[0].casefold()
        meant = _meaning(word)
        if meant is None:
            continue
        low, high = max(0, found.start() - NEAR), found.end() + NEAR
        before, after = part[low : found.start()], part[found.end() : high]
        if word in _YES or word in _NO:  # not "no evidence" within a sentence
            starts = not before.strip(" *_\"'“(\n") or before.rstrip(" *_\"'“(")[-1:] in ".,;:!?\n"
            if re.search(r"\bnot\s+$", before, re.I):
                return not meant
            if starts or _BREAK.match(after) or _BECAUSE.match(after):
                return meant
            continue
        if word == "right" and not _BREAK.match(after):  # a right angle
            continue
        clause = re.split(r"[,;.!?:\n]", before)[-1]
        return meant ^ bool(
            re.search(rf"(?:\b{_NOT}|n['\u2019]t)\b(?:\s+\w+){{0,2}}\s*$", clause, re.I)
        )
    first = next(filter(_WORD.search, lines(part)), "").strip(" *_\"'")
    short = _SHORT.fullmatch(re.split(r"(?<=[.!])\s|[,;]", first)[0].strip())
    short = short if short and short[0] else None
    return None if short is None else not short["no"]


def canonical(accepted: str) -> str | None:
    """Return "yes" or "no" for an accepted answer."""
    meant = _meaning(plain(accepted).strip(" .!").casefold())
    return None if meant is None else "yes" if meant else "no"
