"""P(True): the probability that the model calls its own response true.

Source: Kadavath et al. 2022 (arXiv 2207.05221), as compared in arXiv 2509.09438.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from grace.calibration import log_odds
from grace.chat import encode_text
from grace.config import setting
from grace.engines import Engine
from grace.errors import ModelError
from grace.estimators import Fitted, Rows, Samples, Splits, Values, of_ended
from grace.estimators.probes import fit_on_states
from grace.estimators.prompts import (
    Prompt,
    Shots,
    Verdicts,
    asks_in_text,
    candidates,
    draw_shots,
    tuned,
)
from grace.probe.rows import Array

TRUE_FALSE = Prompt(
    "Question: {question}\n Possible answer:{answer}\n Is the possible answer:\n (A) True\n"
    " (B) False\n The possible answer is:"
)
YES_NO = Prompt("Is the answer correct? (Yes/No)", second_turn=True)

TEMPLATES: Mapping[str, Verdicts] = {
    "true_false": Verdicts(TRUE_FALSE, "A", "B"),
    "words": Verdicts(TRUE_FALSE, "True", "False"),
    "yes_no": Verdicts(YES_NO, "Yes", "No"),
}
"""The wording is that of LM-Polygraph's `PromptCalculator` (which reads the word `True`), and that
of the published code of Self-Calibration (arXiv 2503.00031)."""

LEADS = ("", " ", "\n")
"""Texts that may precede the first word of a reply."""


@dataclass(frozen=True, slots=True)
class PTrue:
    """P(True): the probability that the model calls its own response true.

    Cost: one more request per response, with the question and the response; nothing is sampled.
    """

    template: Literal["true_false", "words", "yes_no"] = setting(
        "true_false",
        "true_false: reply A or B; words: the same prompt, reply True or False; yes_no: a second "
        "turn after the answer, reply Yes or No",
    )
    shots: int = setting(0, "training responses shown first, with the right verdict", low=0)

    def fit(self, splits: Splits, engine: Engine, seed: int) -> Fitted:
        """Draw the shots, if any; nothing is fitted."""
        template = TEMPLATES[self.template]
        shots = draw_shots(template, self.shots, splits, engine, name="p_true", seed=seed)
        return of_ended(lambda samples, rows: self._rate(samples, rows, engine, shots))

    def _rate(self, samples: Samples, rows: Rows, engine: Engine, shots: Shots) -> Values:
        template, tokenizer = TEMPLATES[self.template], engine.tokenizer
        right, wrong = verdict_tokens(tokenizer, template)
        contexts = shots.contexts(tokenizer, template.prompt, samples, rows)
        probs_NE = engine.next_token_probs(contexts, [*right, *wrong]).astype(np.float64)
        true_N, false_N = probs_NE[:, : len(right)].sum(1), probs_NE[:, len(right) :].sum(1)
        pairs = zip(true_N.tolist(), false_N.tolist(), strict=True)
        return [true / (true + false) if true + false > 0 else None for true, false in pairs]


def verdict_tokens(tokenizer: Any, template: Verdicts) -> tuple[list[int], list[int]]:
    """Return the first tokens of the right and the wrong word, with any spacing; none in both."""
    right, wrong = (
        {_first_token(tokenizer, lead, word) for lead in LEADS}
        for word in (template.right, template.wrong)
    )
    if not right - wrong or not wrong - right:
        raise ModelError(
            f"the tokenizer begins {template.right!r} and {template.wrong!r} with the same token; "
            "set estimators.p_true.template to another one"
        )
    return sorted(right - wrong), sorted(wrong - right)


def _first_token(tokenizer: Any, lead: str, word: str) -> int:
    """Return the first token of a word that follows `lead`."""
    before, ids = encode_text(tokenizer, lead), encode_text(tokenizer, lead + word)
    shared = 0
    while ids[shared : shared + 1] == before[shared : shared + 1] and shared < len(ids) - 1:
        shared += 1
    return ids[shared]


@dataclass(frozen=True, slots=True)
class PTrueSupervised:
    """Supervised P(True): logistic regression on the hidden state at the end of the P(True) prompt.

    sigmoid(w . state + bias), fitted on the training responses, in place of the probabilities of
    two words; the penalty is chosen on folds of the training questions. Cost: one more forward pass
    per response, over the question and the response.
    """

    template: Literal["true_false", "words", "yes_no"] = setting(
        "true_false", "the prompt, as in p_true"
    )

    def fit(self, splits: Splits, engine: Engine, seed: int) -> Fitted:
        """Fit weights and bias on the training responses."""
        prompt = TEMPLATES[self.template].prompt

        def read(samples: Samples, rows: Rows) -> list[Array]:
            no_shots = Shots(text=asks_in_text(samples, engine.tokenizer))
            contexts = no_shots.contexts(engine.tokenizer, prompt, samples, rows)
            return [engine.features(contexts, [()] * len(contexts)).last_ND]

        return fit_on_states(read, splits, seed)


@dataclass(frozen=True, slots=True)
class PTrueTuned:
    """P(True) with prompt and shots chosen on validation answers, and calibrated there.

    sigmoid(a * log-odds of P(True) + b), with the best template and 0, 4 or 8 shots. Cost: one more
    request per response, as for P(True); the choice takes one per prompt and number of shots for
    each of at most 200 validation answers.
    """

    def fit(self, splits: Splits, engine: Engine, seed: int) -> Fitted:
        """Choose template and shots, then fit slope and offset."""
        choices = [PTrue(template, shots) for template, shots in candidates(splits, TEMPLATES)]
        return tuned(choices, lambda p: float(log_odds(p)), splits, engine, seed)


ESTIMATORS = {
    "p_true": PTrue,
    "p_true_supervised": PTrueSupervised,
    "p_true_tuned": PTrueTuned,
}
