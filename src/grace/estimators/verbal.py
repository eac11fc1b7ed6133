"""Verbalised confidence: the model is asked how sure it is, and its reply is parsed.

Sources: Tian et al. 2023 (arXiv 2305.14975); the percent prompt is that of Apricot's published
code (arXiv 2403.05973).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from grace.config import setting
from grace.engines import Engine, Sampling
from grace.estimators import Fitted, Rows, Samples, Splits, Values, of_ended
from grace.estimators.prompts import Prompt, Shots, Verdicts, candidates, draw_shots, tuned

PERCENT = "Please provide your confidence in the answer only in percent (0-100 %):"
PROBABILITY = (
    "Provide the probability that your guess is correct. Give ONLY the probability, no other "
    "words or explanation.\n\nFor example:\n\nProbability: <the probability between 0.0 and 1.0 "
    "that your guess is correct, without any extra commentary whatsoever; just the probability!>"
)
PROMPTS: Mapping[str, Prompt] = {
    "percent": Prompt("{question} {answer} .\n" + PERCENT),
    "percent_turn": Prompt(PERCENT, second_turn=True),
    "probability": Prompt(PROBABILITY, second_turn=True),
}

DECIMAL_COMMA = re.compile(r"(?<=\d),(?=\d\d?\b)")  # three digits after it are thousands
NUMBER = re.compile(
    r"(?P<sign>[-\N{MINUS SIGN}])?(?P<value>\d+(?:\.\d+)?|\.\d+)(?P<percent>\s*(?:%|percent))?",
    re.I,
)
SCALE = re.compile(
    r"\b0(?:\.0)?\s*%?\s*(?:[-\N{EN DASH}]|to|and)\s*1(?:00|\.0)?(?![.\d]*\d)\s*(?:%|percent)?",
    re.I,
)
SHARE = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)\s*(?:/|out of)\s*(100?)\b(?!\.\d)", re.I)


@dataclass(frozen=True, slots=True)
class Verbal:
    """Verbalised confidence: the model is asked how sure it is, and a number is parsed.

    None where there is no number; one minus the share of None is the parse success rate. Cost: one
    more request per response, with a reply of at most `max_new_tokens`. It needs only text.
    """

    template: Literal["percent", "percent_turn", "probability"] = setting(
        "percent",
        "percent: question and answer in one turn; percent_turn: a second turn after the answer; "
        "probability: a second turn that asks for 0.0 to 1.0",
    )
    max_new_tokens: int = setting(20, "longest reply, in tokens", low=1)
    unparsed: Literal["none", "half"] = setting(
        "none", "for a reply without a number: none leaves the response out, half counts it as 0.5"
    )
    shots: int = setting(
        0, "training responses shown first, right ones with 100%, wrong ones with 0%", low=0
    )

    def fit(self, splits: Splits, engine: Engine, seed: int) -> Fitted:
        """Draw the shots, if any; nothing is fitted."""
        sure = ("1.0", "0.0") if self.template == "probability" else ("100%", "0%")
        replies = Verdicts(PROMPTS[self.template], *sure)
        shots = draw_shots(replies, self.shots, splits, engine, name="verbal", seed=seed)
        return of_ended(lambda samples, rows: self._rate(samples, rows, engine, shots))

    def _rate(self, samples: Samples, rows: Rows, engine: Engine, shots: Shots) -> Values:
        contexts = shots.contexts(engine.tokenizer, PROMPTS[self.template], samples, rows)
        greedy = Sampling(max_new_tokens=self.max_new_tokens)
        values: Values = [None] * len(rows)
        for position, (reply,) in engine.generate(contexts, greedy):
            value = stated_confidence(reply.text, percent=self.template != "probability")
            values[position] = 0.5 if value is None and self.unparsed == "half" else value
        return values


def stated_confidence(reply: str, *, percent: bool) -> float | None:
    """Parse the first number of a reply as a fraction, None if there is none in [0, 1].

    The scale that a reply repeats from the prompt is skipped ("0-100%"), and "9/10" is 0.9.

    A number with a percent sign is divided by 100. Without one, the prompt says the scale, except
    that a bare decimal fraction of at most 1, such as "0.9", is a probability also where percent
    were asked for: nobody means 0.9%. (Apricot's code parses it as 0.009.) "0,9" counts as "0.9".
    """
    reply = SCALE.sub(" ", DECIMAL_COMMA.sub(".", reply))
    if parts := SHARE.search(reply):
        value = float(parts[1]) / float(parts[2])
        return value if value <= 1 else None
    match = NUMBER.search(reply)
    if match is None or match["sign"]:
        return None
    value = float(match["value"])
    fraction = "." in match["value"] and value <= 1
    if match["percent"] or (percent and not fraction):
        value /= 100
    return value if value <= 1 else None


@dataclass(frozen=True, slots=True)
class VerbalTuned:
    """Verbalised confidence with prompt and shots chosen, and calibrated, on validation answers.

    sigmoid(a * stated confidence + b), with the best template and 0, 4 or 8 shots. Cost: one more
    request per response, as for Verbal; the choice takes one per prompt and number of shots for
    each of at most 200 validation answers.
    """

    max_new_tokens: int = setting(20, "longest reply, in tokens", low=1)
    unparsed: Literal["none", "half"] = setting(
        "none", "for a reply without a number, as in verbal"
    )

    def fit(self, splits: Splits, engine: Engine, seed: int) -> Fitted:
        """Choose template and shots, then fit slope and offset."""
        choices = [
            Verbal(template, self.max_new_tokens, self.unparsed, shots)
            for template, shots in candidates(splits, PROMPTS)
        ]
        return tuned(choices, float, splits, engine, seed)


ESTIMATORS = {
    "verbal": Verbal,
    "verbal_tuned": VerbalTuned,
}
