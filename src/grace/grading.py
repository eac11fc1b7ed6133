"""Extract the answer from a response, and grade it as right or wrong.

Graders of open questions compare the *short answer* with the accepted ones: the first line labelled
`Guess:` or `Answer:`, else the first line that is not blank. `GRADERS` holds the graders by name; a
name `module:function` stands for one of your own, called as `function(text, question) -> bool` with
the whole response.
"""

from __future__ import annotations

import functools
import math
import re
import reprlib
import string
import unicodedata
from collections.abc import Callable, Sequence

from grace import plugins
from grace.config import GradeSettings
from grace.errors import ConfigError, DataError
from grace.metrics.rouge import rouge_l
from grace.records import Question

Grader = Callable[[str, Question], bool]

LETTERS = "ABCDEFGHIJ"


def lettered(choices: Sequence[str]) -> list[str]:
    """Return the lines that show the options of a question, each with its letter."""
    return [f"{letter}. {text}" for letter, text in zip(LETTERS, choices, strict=False)]


_ARTICLE = re.compile(r"\b(a|an|the)\b")
_FULLWIDTH = "\uff01\uff08\uff09\uff0c\uff1a\uff1b\uff1f"  # ! ( ) , : ; ?
_PUNCTUATION = dict.fromkeys(
    map(ord, string.punctuation + "\u2018\u2019\u00b4“”„«»…¡¿、。「」『』《》・।؟،؛" + _FULLWIDTH),
    " ",
)
_LABEL = re.compile(r"^[ \t*_#>]*(?:(?:final\s+)?answer|(?:best\s+)?guess)[*_]*[ \t]*:[*_]*", re.I)
_LABELLED = re.compile(_LABEL.pattern, re.I | re.M)
_ANSWER = re.compile(r"\banswer[*_]*\s*:[*_]*", re.I)
_LETTER = re.compile(
    r"(?:(?:the\s+)?(?:correct\s+|right\s+|best\s+)?(?:answer|option|choice)(?:\s+letter)?"
    r"(?:\s+is)?:?\s+)?"
    r"(?:[*_`\"'\u2018\u201c(\[{$<]|\\boxed|\\text(?:bf)?|\\(?=[(\[]))*"
    r"(?-i:([A-J])|([a-j])(?=\s*(?:[).,:;\]}*]|\Z)))(?!['\u2019-]?\w)",
    re.I,
)
_PRONOUN = re.compile(r"\s+[a-z]")
_IN_PARENTHESES = re.compile(r"\(([A-J])\)")
_NUMBER = re.compile(
    r"(?P<sign>(?<![\w.)])[-+]\s?)?(?<![\w.])(?:[$€£]\s?)?"
    r"(?P<value>(?:\d{1,3}(?:,\d{3})+(?!,?\d)|\d+)(?:\.\d+)?(?:e[-+]?\d+)?|\.\d+)"
    r"(?:(?: (?P<over>\d+))?\s*/\s*(?P<under>\d+(?:\.\d+)?))?",
    re.I,
)
_FRACTION = re.compile(r"\\[dt]?frac\s*\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}")


def load_grader(name: str, threshold: float = 0.3) -> Grader:
    """Return a grader by its name: `grader(response text, question) -> bool`."""
    if ":" in name:
        function = plugins.load_object(name)
        if not callable(function):
            raise ConfigError(
                f"grader {name!r} is {reprlib.repr(function)}; name a function(text, question)"
            )
        return functools.partial(_own, function=function, name=name)
    if name not in GRADERS:
        closest = plugins.suggest(name, list(GRADERS), own="module:function")
        raise ConfigError(f"unknown grader {name!r}{closest}")
    return lambda text, question: GRADERS[name](text, question, threshold)


def grader_of(settings: GradeSettings, usual: str) -> Grader:
    """Return the grader that the settings name, or else the `usual` one of the task."""
    return load_grader(settings.grader or usual, settings.rouge_threshold)


def normalise(text: str) -> str:
    """Return the text lower-cased, without punctuation, articles and extra space.

    A text that consists of nothing else ("The The", "!!!") keeps its words as they are.

    Source: TriviaQA, arXiv 1705.03551, published evaluation code, whose punctuation is that of
    ASCII and the quotes ‘’´.
    """
    lowered = unicodedata.normalize("NFC", text.lower())
    words = _ARTICLE.sub(" ", lowered.translate(_PUNCTUATION)).split()
    return " ".join(words or lowered.split())


def short_answer(text: str) -> str:
    """Return the line that answers: the first one labelled Guess or Answer, else the first.

    Reasoning up to `</think>` is skipped. A blank response has the short answer "".
    """
    lines = [line.strip() for line in _spoken(text).splitlines() if line.strip()]
    for number, line in enumerate(lines):
        label = _LABEL.match(line)
        if label:
            return line[label.end() :].strip() or "".join(lines[number + 1 : number + 2])
    return lines[0] if lines else ""


def _spoken(text: str) -> str:
    """Return what comes after the reasoning, if there is any."""
    return text.rpartition("</think>")[2]


def letter(text: str) -> str | None:
    r"""Return the option letter after the first `Answer:` that is followed by one, else None.

    `Answer: B`, `Answer: (B)`, `**Answer:** b)`, `Answer: option B` and `Answer: 4 apples (B)`
    count; a word that merely begins with a letter, as in `Answer: Apples`, does not.

    Source: arXiv 2503.00031, published code: `Answer:\s*([A-E])`, first match.
    """
    text = _spoken(text)
    for label in _ANSWER.finditer(text):
        line = text[label.end() :].lstrip().partition("\n")[0]
        match = _LETTER.match(line)
        if match and not (match[1] == "I" and _PRONOUN.match(line, match.end())):
            return (match[1] or match[2]).upper()
        marked = set(_IN_PARENTHESES.findall(line))
        if len(marked) == 1:
            return str(marked.pop())
    return None


def offered(answer: str | None, choices: Sequence[str]) -> str | None:
    """Return an answer, but None for a letter that no option has; without `choices` all count."""
    beyond = LETTERS[len(choices) :] if choices else ""
    return None if answer and len(answer) == 1 and answer.upper() in beyond else answer


def chosen(text: str, choices: Sequence[str]) -> str | None:
    """Return the letter after `Answer:`, or that of a short answer: a letter, or an option."""
    short, options = short_answer(text), list(map(normalise, choices))
    said, match, named = normalise(short), _LETTER.match(short), None
    if match:
        first = (match[1] or match[2]).upper()
        rest = normalise(short[match.end() :].strip(string.punctuation + " "))
        named = first if rest in ("", *options[LETTERS.index(first) :][:1]) else None
    if not named and said and options.count(said) == 1:
        named = LETTERS[options.index(said)]
    return offered(letter(text) or named, choices)


def number(text: str) -> float | None:
    """Return the number after `Answer:` or `Guess:`, else the last number, else None.

    Thousands separators, currency and percent signs are skipped; `1 3/4` is 1.75, also in LaTeX.
    """
    text = _typed(_spoken(text))
    label = _LABELLED.search(text)
    labelled = _NUMBER.search(text, label.end()) if label else None
    numbers = [labelled] if labelled else list(_NUMBER.finditer(text))
    return _value(numbers[-1]) if numbers else None


def is_number(text: str) -> bool:
    """Return whether a text is a number and nothing else, as `number` reads it."""
    match = _NUMBER.fullmatch(_typed(text).strip().removesuffix("%"))
    return match is not None and _value(match) is not None


def _typed(text: str) -> str:
    """Return a text with a typographic minus, and commas and fractions of LaTeX, as one types."""
    text = text.replace("\N{MINUS SIGN}", "-").replace("{,}", ",")
    return _FRACTION.sub(r" \1/\2", text)


def _value(match: re.Match[str]) -> float | None:
    value, under = float(match["value"].replace(",", "")), float(match["under"] or 1)
    if not under:
        return None
    whole, value = (value, float(match["over"])) if match["over"] else (0.0, value)
    value = whole + value / under
    return -value if (match["sign"] or "").startswith("-") else value


def _rouge(text: str, question: Question, threshold: float) -> bool:
    """ROUGE-L F1 with an accepted answer of at least `grade.rouge_threshold`, or equal to one.

    Example: "by George Eliot" is right, "Jane Austen" is wrong; accepted: "George Eliot".
    Source: arXiv 2509.09438 section 4.1.1 and Appendix A.
    """
    _expect(question, "rouge", choices=False)
    answer = short_answer(text)
    if not answer:
        return False
    return any(
        accepted == answer or rouge_l(accepted, answer) >= threshold - 1e-9
        for accepted in question.answers
    )


def _rouge_or_substring(text: str, question: Question, threshold: float) -> bool:
    """As `rouge`, or the first accepted answer occurs verbatim in the short answer.

    Example: "7 of all those I know" is right, "8 of all those I know" is wrong; accepted: "7".
    Source: Apricot, arXiv 2403.05973, published code.
    """
    return _rouge(text, question, threshold) or question.answers[0] in short_answer(text)


def _exact(text: str, question: Question, threshold: float) -> bool:
    """Equal to an accepted answer apart from case, punctuation and articles (TriviaQA).

    Example: "The Beatles!" is right, "Beatles, I think" is wrong; accepted: "beatles".
    """
    _expect(question, "exact", choices=False)
    answer = normalise(short_answer(text))
    return bool(answer) and answer in map(normalise, question.answers)


def _choice(text: str, question: Question, threshold: float) -> bool:
    """The letter after `Answer:` is the right one.

    Example: "Answer: (B)" is right, "Answer: A" is wrong; accepted: "B".
    """
    _expect(question, "choice", choices=True)
    return letter(text) == question.answers[0]


def _number(text: str, question: Question, threshold: float) -> bool:
    """The number after `Answer:` or `Guess:`, else the last one, is an accepted number.

    Example: "Answer: $1,200" is right, "Answer: 12" is wrong; accepted: "1200".
    """
    _expect(question, "number", choices=False)
    accepted = [value for value in map(number, question.answers) if value is not None]
    if not accepted:
        raise DataError(
            f"question {question.id!r} accepts {question.answers[0]!r}, which is no number; "
            "use another grader, e.g. grade.grader=exact"
        )
    value = number(text)
    return value is not None and any(_is_same(value, other) for other in accepted)


def _is_same(value: float, accepted: float) -> bool:
    """Return whether two numbers are equal, but for rounding if one of them is no whole number."""
    whole = value.is_integer() and accepted.is_integer()
    return math.isclose(value, accepted, rel_tol=0.0 if whole else 1e-6)


def _auto(text: str, question: Question, threshold: float) -> bool:
    """The right letter or option; for open questions as `number` if it fits, else as `rouge`.

    Example: "by George Eliot" is right, "Jane Austen" is wrong; accepted: "George Eliot".
    """
    if question.choices:
        return chosen(text, question.choices) == question.answers[0]
    numeric = all(map(is_number, question.answers))
    return (_number if numeric else _rouge)(text, question, threshold)


def _own(text: str, question: Question, function: Grader, name: str) -> bool:
    failed = f"grader {name!r} failed on question {question.id!r}"
    with plugins.own_code(name, failed, "correct it: it is called with (text, question)"):
        verdict = function(text, question)
        if verdict in (True, False):
            return bool(verdict)
    raise ConfigError(f"grader {name!r} returned {verdict!r}; it must return True or False")


def _expect(question: Question, grader: str, *, choices: bool) -> None:
    if bool(question.choices) != choices:
        has, use = ("choices", "choice") if question.choices else ("no choices", "rouge or exact")
        raise ConfigError(
            f"grader {grader!r} cannot grade question {question.id!r}, which has {has}; "
            f"set grade.grader to {use}"
        )


GRADERS: dict[str, Callable[[str, Question, float], bool]] = {
    "rouge": _rouge,
    "rouge_or_substring": _rouge_or_substring,
    "exact": _exact,
    "choice": _choice,
    "number": _number,
    "auto": _auto,
}
