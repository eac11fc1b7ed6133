"""Grade a response as right or wrong, by what `grace.answers` reads in it.

`GRADERS` holds the graders by name; a name `module:function` stands for one of your own, called as
`function(text, question) -> bool` with the whole response.
"""

from __future__ import annotations

import functools
import json
import reprlib
from collections.abc import Callable
from threading import current_thread, main_thread
from typing import Any

from grace import answers, plugins
from grace.answers import numbers, options, short_answer, yes_no
from grace.answers.finding import marked, plain, spoken
from grace.config import GradeSettings
from grace.errors import ConfigError, DataError
from grace.metrics.rouge import rouge_l
from grace.records import Question

Grader = Callable[[str, Question], bool]
MATH_SECONDS = 10  # of one formula, and of one comparison


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
        for accepted in map(plain, question.answers)
    )


def _rouge_or_substring(text: str, question: Question, threshold: float) -> bool:
    """As `rouge`, or the first accepted answer occurs verbatim in the short answer.

    Example: "7 of all those I know" is right, "8 of all those I know" is wrong; accepted: "7".
    Source: Apricot, arXiv 2403.05973, published code.
    """
    return _rouge(text, question, threshold) or plain(question.answers[0]) in short_answer(text)


def _exact(text: str, question: Question, threshold: float) -> bool:
    """Equal to an accepted answer apart from case, punctuation, articles and spelling of numbers.

    Example: "The Beatles!" is right, "Beatles, I think" is wrong; accepted: "beatles".
    """
    _expect(question, "exact", choices=False)
    answer = answers.read(text, "open")
    return answer is not None and answer in map(answers.text.canonical, question.answers)


def _choice(text: str, question: Question, threshold: float) -> bool:
    """The option that is named, by its letter or its text, is the right one.

    Example: "Answer: (B)" is right, "Answer: A" is wrong; accepted: "B".
    """
    _expect(question, "choice", choices=True)
    return options.read(text, question.choices) == question.answers[0]


def _number(text: str, question: Question, threshold: float) -> bool:
    """The number after `Answer:` or `Guess:`, else the last one, is an accepted number.

    Example: "Answer: $1,200" is right, "Answer: 12" is wrong; accepted: "1200".
    """
    _expect(question, "number", choices=False)
    accepted = [value for value in map(numbers.read, question.answers) if value is not None]
    if not accepted:
        raise DataError(
            f"question {question.id!r} accepts {question.answers[0]!r}, which is no number; "
            "use another grader, e.g. grade.grader=exact"
        )
    value = numbers.read(text)
    return value is not None and any(numbers.same(value, other) for other in accepted)


def _yes_no(text: str, question: Question, threshold: float) -> bool:
    """The first yes or no is the accepted one; true and false, and negations, count.

    Example: "No, it does not." is right, "Yes, no doubt." is wrong; accepted: "no".
    """
    _expect(question, "yes_no", choices=False)
    accepted = {*map(yes_no.canonical, question.answers)}
    if None in accepted:
        raise DataError(
            f"question {question.id!r} accepts {question.answers[0]!r}, which is neither yes nor "
            "no; use another grader, e.g. grade.grader=auto"
        )
    return (yes_no.read(text) or yes_no.restated(text, question.text)) in accepted


def _math(text: str, question: Question, threshold: float) -> bool:
    r"""The formula is equal to an accepted one, as math-verify finds (extra `math`).

    Example: "\boxed{(x+1)^2}" is right, "\boxed{x^2+1}" is wrong; accepted: "x^2+2x+1".
    """
    _expect(question, "math", choices=False)
    try:
        import math_verify
    except ModuleNotFoundError as error:
        raise ConfigError(
            "grade.grader=math needs math-verify, which is not installed: "
            "pip install 'grace-confidence[math]'"
        ) from error
    # A formula such as 9^{9^9} never ends; the limits are signals, which only the main thread gets.
    seconds = MATH_SECONDS if current_thread() is main_thread() else None
    said = next(marked(spoken(text)), short_answer(text))
    given, *accepted = (
        math_verify.parse(f"${formula.strip('$')}$", parsing_timeout=seconds)
        for formula in (said, *question.answers)
    )
    return any(math_verify.verify(gold, given, timeout_seconds=seconds) for gold in accepted)


def _auto(text: str, question: Question, threshold: float) -> bool:
    """As `choice`, `number` or `yes_no` if it fits; else by the words of an accepted answer.

    Example: "by George Eliot" is right, "T. S. Eliot" is wrong; accepted: "George Eliot".
    """
    kind = answers.kind_of(question.answers, question.choices)
    if kind != "open":
        return GRADERS[kind](text, question, threshold)
    said = answers.text.answered(text)
    if not said or answers.text.hedges(said, question.answers, threshold, question.text):
        return False
    return any(answers.alike(one, said, threshold, question.text) for one in question.answers)


def said_in(value: Any) -> str:
    """Return the value of a field as a text to grade."""
    if isinstance(value, list):
        return ", ".join(map(said_in, value))
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)


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
    "yes_no": _yes_no,
    "math": _math,
    "auto": _auto,
}
