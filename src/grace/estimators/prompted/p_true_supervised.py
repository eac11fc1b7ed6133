"""Supervised P(True): logistic regression on the hidden state at the end of the P(True) prompt.

It is fitted on the training responses, and takes the place of the probabilities of two words.
Cost: one more forward pass per response, over the question and the response.
Source: the supervised variants of Kadavath et al. 2022 (arXiv 2207.05221).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from grace.config import setting
from grace.engines import Engine
from grace.estimators import Answers, Fitted, Rows, Samples, Splits
from grace.estimators.probes.states import fit_on_states
from grace.estimators.prompted.p_true import TEMPLATES
from grace.estimators.prompted.prompts import Shots, asks_in_text
from grace.probe.rows import Array


@dataclass(frozen=True, slots=True)
class PTrueSupervised:
    """sigmoid(w . state + bias); the penalty is chosen on folds of the training questions."""

    template: Literal["true_false", "words", "yes_no"] = setting(
        "true_false", "the prompt, as in p_true"
    )

    answers: ClassVar[Answers] = "base"

    def fit(self, splits: Splits, engine: Engine, seed: int) -> Fitted:
        """Fit weights and bias on the training responses."""
        prompt = TEMPLATES[self.template].prompt

        def read(samples: Samples, rows: Rows) -> list[Array]:
            no_shots = Shots(text=asks_in_text(samples, engine.tokenizer))
            contexts = no_shots.contexts(engine.tokenizer, prompt, samples, rows)
            return [engine.features(contexts, [()] * len(contexts)).last_ND]

        return fit_on_states(read, splits, seed)


ESTIMATOR = PTrueSupervised
