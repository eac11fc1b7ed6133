"""Apricot: a small text model learns from question and response how often such answers are right.

Source: Ulmer et al. 2024 (arXiv 2403.05973) and its published code; the corrections to that code
are listed at `apricot_compat`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from grace.estimators import Answers, Fitted, Known, Samples, Values
from grace.estimators.apricot.settings import Settings
from grace.grading import LETTERS
from grace.records import Question

if TYPE_CHECKING:
    import torch

    from grace.engines import Engine


@dataclass(frozen=True, slots=True)
class Apricot(Settings):
    """An auxiliary text classifier, trained on the accuracy of clusters of like questions.

    Targets are made from training questions only, where the published code clusters training,
    validation and test questions together. Learning rate, head and patience were chosen on
    validation answers for the default encoder; for another one, choose them again.
    """

    answers: ClassVar[Answers] = "base"

    def check(self) -> None:
        """Refuse a text model whose package is not installed.

        Raises:
            ConfigError: says what to install.
        """
        from grace.estimators.apricot.encoder import locate

        for name in filter(None, (self.encoder, self.auxiliary)):
            locate(name)

    def fit(self, known: Known, engine: Engine, seed: int) -> Fitted:
        """Make the targets, then fine-tune the auxiliary model on them.

        Raises:
            ConfigError: a text model cannot be loaded; the message says what to install.
            TrainingError: the loss is not finite.
        """
        from grace.engines.local.loading import pick_device
        from grace.estimators.apricot.encoder import load_classifier, seeded
        from grace.estimators.apricot.training import train

        samples, device = known.train, pick_device(self.device)
        target_N = self._targets(samples, device)
        with seeded(seed, device):
            name = self.auxiliary or self.encoder
            model = load_classifier(name, self.head, self.max_tokens, device)

            def rate(samples: Samples) -> Values:
                return [float(confidence) for confidence in model.confidences(pairs(samples))]

            def validation_brier() -> float:
                confidence_N = model.confidences(pairs(known.validation))
                return float(np.mean((confidence_N - known.validation.correct) ** 2))

            train(model, pairs(samples), target_N, validation_brier, self, seed)
        return Fitted(rate, sum(weight.numel() for weight in model.network.parameters()))

    def _targets(self, samples: Samples, device: torch.device) -> list[float]:
        """Return what the auxiliary model is to say of each training response."""
        from grace.estimators.apricot.encoder import load_encoder
        from grace.estimators.apricot.targets import cluster_accuracies, clusters, embed

        if self.targets == "labels":
            return [float(correct) for correct in samples.correct]
        encoder = load_encoder(self.encoder, self.max_tokens, device)
        asked = {question.id: question_text(question) for question in samples.questions}
        cluster_Q = clusters(embed(encoder, list(asked.values())))
        row = {key: row for row, key in enumerate(asked)}
        question_N = [row[question.id] for question in samples.questions]
        return cluster_accuracies(
            cluster_Q, question_N, samples.correct, cluster_0_is_noise=self.apricot_compat
        )


def question_text(question: Question) -> str:
    """Return what is asked, with the options if there are any."""
    options = zip(LETTERS, question.choices, strict=False)
    return "\n".join([question.text, *(f"{key}. {text}" for key, text in options)])


def pairs(samples: Samples) -> list[tuple[str, str]]:
    """Return question and response of every row."""
    return [
        (question_text(question), response.text)
        for question, response in zip(samples.questions, samples.responses, strict=True)
    ]


ESTIMATOR = Apricot
