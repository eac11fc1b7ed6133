r"""Find where in a response its answer is given.

`spoken` leaves out what says nothing (thoughts, beliefs that are given up, what is corrected) and
writes other marks as labelled lines. Of what remains the answer is what the first mark in `_MARKS`
finds, and else the first line that is no question; of an option also what an explanation calls the
answer (`explained`). The tables of words come first: a new word, or language, is one more entry.
"""

from __future__ import annotations

import collections
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterator

MOST = 20  # labels that are looked at
LONGEST = 4000  # characters after a label
_FEW = 4  # words of a part of a list
_NEAR = 200  # characters around an answer that say whether another may be meant

# Words, by what they mean
_OR = "or|and|oder|und|ou|et|или|и|أو"
_BUT = "but|though|although"
_MAY = "might|could|may|maybe|possibly|perhaps|probably|possible|plausible|likely"
_BESIDE = "it|this|also|even|either|be|to|is|option|choice|answer"
_MAYBE = "maybe|perhaps|either|vielleicht|entweder|peut-être|soit|quizás?|tal\\s+vez"
_SOME = "some|many|most|certains|einige|manche|algunos"
_OTHERS = "some|others?|d['\u2019]autres|andere|otros"
_SAY = "say|think|believe|claim|argue|guess|disent|pensent|sagen|glauben|meinen|dicen|creen"
_NOT = "not|never|no|none|nor|neither|cannot|except|nicht|kein\\w*|pas|ni|не|ليس\\w*"
_NOT_UNSPACED = "不是|没有|沒有|并非|ではな|ではあり|じゃな|아니"
_WRONG = "wrong|incorrect|false|untrue|mistaken|unlikely|ruled\\s+out|a\\s+(?:myth|misconception)"
_ANSWER = (
    "answer|ans|guess|antwort|réponse|reponse|respuesta|resposta|risposta|antwoord|svar|odpowiedź|"
    "odpověď|vastaus|cevap|jawaban|válasz|răspuns|đáp án|ответ|відповідь|απάντηση|תשובה|الإجابة|"
    "الجواب|پاسخ|उत्तर|উত্তর|คำตอบ|jibu|jawapan|odgovor|atsakymas|atbilde|መልስ|答案|正确选项|正解|回答|解答|答え|答|정답|답변|답"
)
_RIGHT = (  # before it
    "the|my|your|final|correct|right|best|short|die|richtige|endgültige|la|bonne|correcta|final|"
    "a|resposta|правильный|最终|最終|正确|正確|최종"
)
_IDEOGRAPH = "[\u30a0-\u30ff\u3400-\u9fff]"
UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u9fff]")  # letters of words without spaces

# Two answers, or one that is not meant
ALTERNATIVE = re.compile(  # between texts of which either may be meant; or a comma (no group)
    rf"([\s,(]{{1,3}}(?:(?:{_OR}|vs\.?|versus)|(?:{_BUT})\s+(?:it\s+)?(?:{_MAY}|also)"
    rf"|as\s+well\s+as|(?<=[,(]\s)(?:{_MAY}))"
    rf"(?:\s+(?:{_OR}|also|even|either|else|rather|(?:it\s+)?(?:{_MAY})(?:\s+be)?|be))*\s+"
    r"|\s(?:o|y|e)\s(?=[A-ZÀ-Ý])|[;&|]|(?<=\w{3})(?:\s*/\s*|\s\+\s)(?=\w{3})|或者?|または|还是|還是"
    rf"|(?<={_IDEOGRAPH})か(?={_IDEOGRAPH})|(?<={_IDEOGRAPH}{{2}})(?<!共)和(?={_IDEOGRAPH}{{2}})|、)|(?<!\d),|,(?!\d{{3}})"
)
REJECTING = (  # an answer that is not meant
    r"(?:\b(?:(?:and\s+|but\s+)?not|(?:other|rather)\s+than|instead\s+of|except(?:\s+for)?"
    r"|(?:any|every|all)\w*(?:\s+\w+)?\s+but)\b|不是)"
)
DENIED = re.compile(rf"\b(?:{_NOT})\b|n['\u2019]t\b|{_NOT_UNSPACED}", re.I)
DISPUTED = re.compile(  # also where something else is said to be wrong, or of another kind
    rf"{DENIED.pattern}|(?:\b(?:is|are|was|were|been)|['\u2019]s)\s+(?:\w+\s+)?(?:{_WRONG})\b"
    r"|\b(?:non|off)-",
    re.I,
)
_JOINING = re.compile(
    rf"[\W\d_]*(?:(?:(?:{_OR}|{_BUT}|{_MAY}|{_BESIDE})\b|或者?|和)[\W\d_]*)*", re.I
)
_DOUBTED = re.compile(  # B, but it might be A; B, although A is possible
    rf"[^.;\n]*\b(?:or|{_BUT})\b[^.;\n]*"
    rf"(?:\b(?:{_MAY})\b[^.;\n]*\0|\0\W*(?:(?:is|are)(?:\s+also)?\s+)?(?:{_MAY})\b(?!\s+not\b))"
)

# Marks of an answer
_LABELLED = (
    rf"^[ \t*_#>{{\"'-]*(?:(?:{_RIGHT})\s*){{0,3}}(?:{_ANSWER}|tl;?dr|final|correct)"
    r"(?:\s+(?:finale?|correcta|correcte))?[*_\"']*[ \t]*"
    r"(?:(?::|(?<=\bans)\.)[*_]*|\n(?=\s*\S))"
)
_LABEL = re.compile(_LABELLED, re.I | re.M)
_ANYWHERE = re.compile(rf"{_LABELLED}|(?<![^\W_])(?:{_ANSWER})[*_\"']*\s*:[*_]*", re.I | re.M)
_STATED = re.compile(
    r"(?:\b(?:answer|guess)[*_]*(?:\s+to\s+(?:the|this|your)\s+question(?:\s+\"[^\"\n]*\")?)?"
    r"\s+(?:is|was|are|(?:would|must|should|has\s+to)\s+be|=)[*_]*"
    r"|\b(?:correct|right|best)\s+(?:option|choice)\s+is"
    rf"|(?:\b|(?=[^\x00-\x7f]))(?:{_ANSWER})(?![a-z])\s*(?:\w{{1,20}}\s+)?"
    r"(?:(?:ist|lautet|est|es|é|è|is|هي|هو|[\u2013\u2014])\s"
    r"(?:(?:la|die|a|l['\u2019])(?:\s+(?:\w*op[cçt]\w+|lettre|letra))?\s+(?=[A-J]\b))?|是|为|は|은|는)"
    r"|(?:\A|[故应以此\uff0c。])选择?|选择)\s*(?!\s*not\b):?",
    re.I,
)
_CONCLUDED = re.compile(
    r"(?:(?:^|[.!?:]\s)\W{0,9}(?:so|overall|in\s+(?:conclusion|summary)|to\s+(?:conclude|summarize)"
    r"|(?:based\s+on|given)\s+(?:this|these|that|those|the)\b[^,.\n]*)"
    r"|\b(?:therefore|thus|hence|consequently|accordingly))\b\s*[,:]?\s+"
    r"(?!(?:is|are|was|were|do|does|did|far|that|much|many)\b)",
    re.I | re.M,
)
_HASHES = re.compile(r"^####[ \t]*([^\sA-Za-z#][^A-Za-z\n]*)$", re.M)
_BOXED = re.compile(r"\\(?:boxed|fbox)\s*(?=[{\w])")
_TAGGED = re.compile(r"<(?:final_)?answer>(.*?)(?:</(?:final_)?answer>|\Z)", re.I | re.S)
_KEYED = re.compile(  # in JSON
    r"\"(?:(?:final|correct|best|selected|chosen|predicted|short)[ _]?)?"
    r"(answer|guess|choice|option|prediction)(?:[ _](?:letter|choice|option|text))?\"\s*:\s*"
    r"(?:\"((?:[^\"\\\n]|\\.)*)\"|([^\s\"\[{,}]+)|\[((?:\s*\"[^\"\n]*\",?)+)\s*\])",
    re.I,
)
_TABLE = re.compile(r"(?:^[ \t]*\|.*\|[ \t]*(?:\n|\Z))+", re.M)
ITEM = re.compile(r"[-*\u2022]\s+|\(?(?:\d{1,2}|[A-Ja-j])[.)]\s+|option\s+\d:\s+", re.I)
_ASKED = re.compile(r"[^.?!\n]*\?[\"'\u201d\u2019*_]*\s+(?=\S)")

# What says nothing
_THOUGHT = r"(?:[a-z]+[:_])?(?:think(?:ing)?|thoughts?|reasoning|scratchpad)\|?[>▷]"
_THOUGHT_ENDS = re.compile(
    rf"[<◁](?:/|\|end_of_){_THOUGHT}|\[/THINK\]"
    r"|(?:<\|channel\|>|\bassistant)final(?:<\|message\|>)?"
)
_THOUGHT_BEGINS = re.compile(rf"[<◁](?:\|begin_of_)?{_THOUGHT}|\[THINK\]|<\|channel\|>analysis")
_ENDS = re.compile(
    r"(?<=\S)\s*(?:<\|(?:end|end_?of_?text|im_end|eo[tm]_id|return)\|>|</s>|<(?:eos|end_of_turn)>)"
)
_STRUCK_OUT = re.compile(r"~~[^~\n]+~~|<(?:s|del)>[^<\n]+</(?:s|del)>|<\|\w+\|>")
_FENCE = re.compile(r"^[ \t]*(?:```|~~~)[\w+-]*[ \t]*$", re.M)
_OR_BELOW = re.compile(rf"\s*\n\s*({_OR})\s*\n\s*", re.I)
_EMOJI = re.compile(
    "[\U0001f000-\U0001faff\u2600-\u27bf\ufe0f]+(?=\\s|\\Z)|(?<!\\S)[\U0001f000-\U0001faff\u2600-\u27bf\ufe0f]+"
)
_PART = r"[^.!?;\n]{0,200}?"
_ITEM_OF = r"[^.!?;,\n]{0,99}?"
_UNDECIDED = re.compile(  # Some say Paris, others say Rome. Perhaps Paris, perhaps Rome.
    rf"\b(?:(?:{_SOME})\b{_ITEM_OF}\b(?:{_SAY})\b{_ITEM_OF}[,;]\s+(?:and\s+|but\s+)?(?:{_OTHERS})"
    rf"|(?P<maybe>{_MAYBE})\b{_ITEM_OF},\s+(?P=maybe))\b[^.!?;\n]*"
    rf"|,?\s+(?:{_BUT}|while)\s+(?:{_SOME}|{_OTHERS})\b{_ITEM_OF}\b(?:{_SAY})\b[^.!?;\n]*",
    re.I,
)
_BELIEF = (
    rf"{_PART}\b(?:(?<!is\s)(?<!are\s)(?<!be\s)thought|used\s+to|(?:may|might|could|would|people|many|most"
    r"|some|often|commonly)\s+(?:\w+\s+)?(?:think|believe|say|assume|expect|guess)|at\s+first|früher"
    rf"|mistaken|dachten?|pensais|creía|(?:was|were)\b(?={_PART}\bbut\b{_PART}\b(?:is|are)\s+(?:\S+\s+){{0,4}}?now\b))\b{_PART}"
)
_GIVEN_UP = re.compile(  # I thought it was Paris, but (it is Rome); not of an option, or in doubt
    rf"(?:\A|(?<=[.!?\n]))(?!{_PART}(?:\b(?:answer|option|choice)|\b(?-i:[A-HJ])\b))"
    rf"(?:{_BELIEF},?\s(?:but|however|aber|mais|pero)\b|\W*(?:although|though|while)\b{_BELIEF},)"
    rf"(?={_PART}(?:\b(?:is|are|was|were|ist|est|es|era|really|actually)|['\u2019]s)\s+(?:\w+\s+){{0,3}}(?-i:[A-Z\d])"
    r"|\s+(?:yes|no)\b)"
    rf"(?!{_PART}(?:\b(?:not|also|may|might|could|possible|un\w+)\b|n['\u2019]t\b))"
    rf"|(?:\A|(?<=[.!?\n])){_PART}\bbut\s+(?:that|this|it)(?:['\u2019]s|\s+is|\s+was)\s+"
    r"(?:not\s+(?:true|right|correct|so)|wrong|incorrect|false|a\s+(?:myth|mistake|misconception))\b"
    rf"|\bI(?:\s+a|['\u2019])m\s+not\s+(?:\w+\s+)?(?:sure|certain)\b{_PART},?\s+but\b(?!{_PART}\bnot\b)",
    re.I,
)
_CANDIDATES = re.compile(  # Between A and B, (B is right)
    r"(?:\A|(?<=[.!?\n]))\W*(?i:between|of|among|comparing|eliminating|excluding|ruling\s+out"
    r"|it\s+(?:can['\u2019]t|cannot|is\s+not)(?:\s+be)?)\s+"
    r"(?i:options?\s+)?[A-J]\b[^.;:\n]{0,99}?,\s+(?!(?:and|or)\b|[A-J](?:,|\s+(?:and|or)\b))"
)
_CORRECTED = re.compile(
    r"(?:^|[.!?…,;:\u2013\u2014-]\s{0,3})\W{0,5}(?:(?:no|oh|hmm)\W{1,5})?"
    r"(wait|actually|correction|sorry|i mean|scratch that|on second thought|i made an? \w+"
    r"|let me (?:re-?(?!peat)\w+|correct))\b"
    r"|(?<=[\w.!?…])(?:\?|\.\.|…| [\u2013\u2014-])\s+no\b[,.:]?\s+",
    re.I | re.M,
)
_WORD = r"(?:[^\s.!?\n]|[.!?](?=\S)){1,40}"
_AMENDED = re.compile(  # "no, it is Paris"
    r"\W{0,5}(?:(?:no(?=[,.:])|actually|sorry|wait|i meant?|it(?:\s+is|['\u2019]s)"
    r"|(?:it\s+)?should\s+be|the)\b\W{0,5}){0,5}"
    r"(?!\W*(?:not|right|correct|let|that|this|i|it|for|the|so)\b)"
    rf"({_WORD}(?:[ ]{_WORD}){{0,3}})[.!]?\s*(?:\n|\Z)",
    re.I,
)
_NEXT = re.compile(  # a model that goes on writes the next question, too
    r"\n[ \t]*[*_#>]*[ \t]*(?:question|q|human|user|problem|frage|pregunta|问题|問題)"
    r"[ \t]*\d*[*_]*\s*:",
    re.I,
)
_TELLING = re.compile(r"(?!\W*(?:yes|no)\b)", re.I)
_SIGNS = re.compile(r"(\W{200})\W+")  # a model that repeats itself, which patterns would try
_FULLWIDTH = {0xFF01 + shift: 0x21 + shift for shift in range(94)} | {0x3000: 0x20}


def plain(text: str) -> str:
    """Return a text in NFC, with full-width letters and signs as one types them."""
    return unicodedata.normalize("NFC", text).translate(_FULLWIDTH)


def after_thoughts(text: str) -> tuple[int, int]:
    """Return where a text says something: after its reasoning, nowhere in one without an end."""
    closed = _last(_THOUGHT_ENDS, text)
    start = closed.end() if closed else 0
    opened = _THOUGHT_BEGINS.search(text, start)
    return start, opened.start() if opened else len(text)


def spoken(text: str, means: Callable[[str], object] = _TELLING.match) -> str:
    """Return what a response says: after reasoning and corrections, before a next question."""
    start, end = after_thoughts(text)
    text = _ENDS.split(plain(text[start:end]), maxsplit=1)[0]
    text = _SIGNS.sub(r"\1", text)
    for pattern, instead in _REWRITTEN:
        text = pattern.sub(instead, text)
    return _corrected(_before_next(_EMOJI.sub("", text).strip() or text.strip()), means)


def _corrected(text: str, means: Callable[[str], object]) -> str:
    """Return what stands after the last correction that has an answer of its own."""
    for found in reversed([*_CORRECTED.finditer(text)][-MOST:]):
        rest = text[found.end() :]
        if any(marked(rest)):
            return rest
        before = text[: max(found.start(), found.start(1))]
        amended = _AMENDED.match(rest) if before.strip(" \n*_") else None
        if amended and means(amended[1]):
            return amended[1]
    return text


def _as_line(keyed: re.Match[str]) -> str:
    """Return the value of a key in JSON as a labelled line; a list may be of options."""
    name, text, other, listed = keyed.groups()
    if listed and name.lower() not in ("answer", "prediction"):
        return keyed[0]
    each = " and ".join(re.findall(r'"([^"]*)"', listed or ""))
    return f"\nAnswer: {text or other or each}\n"


def _out_of_table(table: re.Match[str]) -> str:
    """Return the one cell of a table in Markdown below, or beside, a word for answer."""
    lines = [tuple(line.strip().strip("|").split("|")) for line in table[0].splitlines()]
    head, *rows = [line for line in lines if "".join(line).strip(" :-")] or [()]
    below = [*zip(head, *rows, strict=False)] if len(rows) == 1 else []
    beside = [line for line in (*rows, head) if len(line) == 2]
    found = [cell for name, cell in (*below, *beside) if _LABEL.match(f"{name.strip()}:")]
    return f"Answer: {found[0].strip()}\n" if found else table[0]


_REWRITTEN: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (_STRUCK_OUT, " "),
    (_TAGGED, r"\nAnswer: \1\n"),
    (_KEYED, _as_line),
    (_FENCE, ""),
    (_TABLE, _out_of_table),
    (_OR_BELOW, r" \1 "),
    (_UNDECIDED, ""),
    (_GIVEN_UP, ""),
    (_CANDIDATES, ""),
)


def _before_next(text: str) -> str:
    for cut in _NEXT.finditer(text):
        before = text[: cut.start()].rstrip("*_ \n")
        if before[-1:] != ":":  # "Let me repeat it:"
            return before
    return text


def short_answer(text: str) -> str:
    """Return the part that answers: boxed, labelled or after ####, else the first line."""
    said = spoken(text)
    return next(itertools.chain(boxed(said), labelled(said), hashed(said), opening(said)))


def opening(said: str) -> list[str]:
    """Return the lines that are not blank, without a question or an announcement before others."""
    found = [*lines(said)] or [""]
    if (asked := _ASKED.match(found[0])) and len(asked[0].split()) > 2:
        found[0] = found[0][asked.end() :]
    if len(found) > 1 and found[0][-1] in "?:" and len(found[0].split()) > 2:
        return found if ITEM.match(found[1]) else found[1:]
    return found


def marked(said: str) -> Iterator[str]:
    """Yield the parts of what is said that are marked as the answer, the surest mark first."""
    yield from boxed(said)
    yield from labelled(said, _ANYWHERE)
    yield from hashed(said)
    yield from stated(said)


def boxed(said: str) -> list[str]:
    r"""Return what is in the last `\boxed{}`, if any."""
    if (last := _last(_BOXED, said)) is None:
        return []
    if said[last.end()] != "{":
        return [said[last.end()]]
    depth = 0
    for place in range(last.end(), len(said)):
        depth += {"{": 1, "}": -1}.get(said[place], 0)
        if not depth:
            return [said[last.end() + 1 : place].strip()]
    return []


def labelled(said: str, label: re.Pattern[str] = _LABEL) -> list[str]:
    """Return the line after each label, or the next one that is not blank; final answers first."""
    found = [
        ("final" not in said[max(0, found.start() - 6) : found.end()].lower(), found.end())
        for found in itertools.islice(label.finditer(said), MOST)
    ]
    return [_line(said, end) for _, end in sorted(found)]


def hashed(said: str) -> list[str]:
    """Return what follows the last ####, as in GSM8K: without letters, or on the last line."""
    lines = [*_HASHES.findall(said), *re.findall(r"(?m)^####(.*)\Z", said.rstrip())]
    return [lines[-1].strip("# \t")] if lines else []


def stated(said: str) -> list[str]:
    """Return the rest of the line after the last "the answer is"."""
    last = _last(_STATED, said)
    return [_line(said, last.end())] if last else []


def concluded(said: str) -> str:
    """Return what follows the last "therefore", or its colon; nothing if much comes after it."""
    if (last := _last(_CONCLUDED, said)) is None:
        return ""
    line, *after = lines(said[last.end() :])
    if line.endswith(":") and after:
        line, *after = after
    return "" if len(after) > 1 else line[:LONGEST]


def joined(between: str, after: str = "") -> bool:
    """Return whether what stands between two answers leaves open which of them is meant."""
    between = re.sub(" (?:is|May) ", "  ", between[-_NEAR:])  # 10% of 50 is 5, 29 May 1453
    if _JOINING.fullmatch(between):
        return "=" not in between and re.search(r"[^\W\d_]|[,/&+]", between) is not None
    return _DOUBTED.match(f"{between}\0{after[:_NEAR]}") is not None


def parts(text: str) -> list[str]:
    """Return the parts of a text that is a list: hydrogen, oxygen and carbon."""
    pieces = ALTERNATIVE.split(text)
    found = [part for part in pieces[::2] if part.strip()]
    listed = any(pieces[1::2]) or (len(found) > 2 and text == text.lower())
    return found if listed and all(len(part.split()) <= _FEW for part in found) else []


def lines(said: str) -> Iterator[str]:
    """Yield the lines that are not blank."""
    yield from filter(None, map(str.strip, said.splitlines()))


def _last(pattern: re.Pattern[str], said: str) -> re.Match[str] | None:
    return next(iter(collections.deque(pattern.finditer(said), maxlen=1)), None)


def _line(said: str, start: int) -> str:
    """Return the rest of a line from `start`, or if that is blank the next line."""
    end = said.find("\n", start)
    line = said[start : end if end >= 0 else None][:LONGEST].strip()
    return line or next(lines(said[start : start + LONGEST]), "")
