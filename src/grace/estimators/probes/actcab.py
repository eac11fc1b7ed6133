"""ActCab: a linear layer and a sigmoid on the mean hidden state, trained on soft labels.

Probes on k folds score the training responses out of fold. A response's soft label is the accuracy
of the bin of its score, and one more probe is trained on the soft labels.
Cost: one forward pass over prompt and response for each response, for its hidden states.
Source: ActCab (arXiv 2406.13230), `src/train_ICL_K_fold_seq_avg.py` of its published code.

Shapes: N responses, D features, C candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from grace.config import setting
from grace.engines import Engine
from grace.errors import DataError
from grace.estimators import Answers, Fitted, Rows, Samples, Splits, ended_rows, of_ended
from grace.grading import labels_of
from grace.metrics import brier
from grace.metrics.samples import bin_index
from grace.probe import assign_folds
from grace.probe.adamw import train_probes
from grace.probe.rows import Array, check_several, sigmoid, spread


class Candidate(NamedTuple):
    """A learning rate and a number of epochs to try."""

    learning_rate: float
    epochs: int


GRID = tuple(
    Candidate(rate, epochs) for rate in (1e-5, 1e-4, 1e-3, 1e-2) for epochs in (3, 10, 30, 100)
)


class Scale(NamedTuple):
    """Standardises features by the training rows, and appends a constant 1 if there is a bias."""

    mean_D: Array
    scale_D: Array
    bias: bool

    def __call__(self, states_ND: Array) -> Array:
        """Scale rows of any split."""
        rows_ND = ((states_ND - self.mean_D) / self.scale_D).astype(np.float32)
        ones_N1 = np.ones((len(rows_ND), int(self.bias)), dtype=np.float32)
        return np.concatenate([rows_ND, ones_N1], axis=1)


@dataclass(frozen=True, slots=True)
class ActCab:
    """A sigmoid probe on the mean last-layer hidden state, with k-fold soft labels.

    The published optimisation leaves most values near 0.5 on a few thousand rows, so learning rate
    and epochs are chosen on validation Brier by default.
    """

    tune: bool = setting(True, "choose learning_rate and epochs on validation Brier")
    learning_rate: float = setting(1e-3, "learning rate of AdamW, if tune=false", low=0)
    epochs: int = setting(30, "epochs of training, if tune=false", low=1)
    batch_size: int = setting(128, "responses per optimizer step", low=1)
    weight_decay: float = setting(0.01, "weight decay of AdamW", low=0)
    bias: bool = setting(True, "train a bias")
    folds: int = setting(10, "folds for the soft labels", low=2)
    bins: int = setting(50, "equal-width bins of the soft labels", low=1)

    answers: ClassVar[Answers] = "base"

    def fit(self, splits: Splits, engine: Engine, seed: int) -> Fitted:
        """Train the probes of the folds, then one on the soft labels.

        Raises:
            DataError: all training responses are right or all are wrong, they answer fewer than
                two questions, or no validation response ended.
        """
        train = splits.train
        label_N, fold_N = labels_of(train.correct), self._folds(train, seed)
        states_ND = _states(train, range(len(label_N)), engine)
        scale = Scale(states_ND.mean(axis=0, dtype=np.float64), spread(states_ND), self.bias)
        rows_ND = scale(states_ND)
        soft_NC = self._soft_labels(rows_ND, label_N, fold_N, seed)
        weights_CD = self._train(rows_ND, soft_NC, seed)
        best = 0 if len(weights_CD) == 1 else _best(splits.validation, engine, scale, weights_CD)
        weights_D = weights_CD[best]

        def rate(samples: Samples, rows: Rows) -> list[float]:
            return list(_rate(scale(_states(samples, rows, engine)), weights_D).tolist())

        return of_ended(rate, len(weights_D))

    @property
    def _candidates(self) -> Sequence[Candidate]:
        return GRID if self.tune else [Candidate(self.learning_rate, self.epochs)]

    def _folds(self, train: Samples, seed: int) -> Array:
        questions = [question.id for question in train.questions]
        check_several(questions)
        return assign_folds(questions, self.folds, seed)

    def _soft_labels(self, rows_ND: Array, label_N: Array, fold_N: Array, seed: int) -> Array:
        """Return the accuracy of each row's bin of out-of-fold scores, per candidate, (N, C)."""
        labels_NC = np.repeat(label_N[:, None], len(self._candidates), axis=1)
        scores_NC = np.empty_like(labels_NC)
        for fold in np.unique(fold_N):
            held_N = fold_N == fold
            weights_CD = self._train(rows_ND[~held_N], labels_NC[~held_N], seed)
            scores_NC[held_N] = _rate(rows_ND[held_N], weights_CD.T)
        return np.stack([bin_accuracy(s_N, label_N, self.bins) for s_N in scores_NC.T], axis=1)

    def _train(self, rows_ND: Array, labels_NC: Array, seed: int) -> Array:
        rates, epochs = zip(*self._candidates, strict=True)
        return train_probes(
            rows_ND,
            labels_NC,
            rates,
            epochs,
            batch_size=self.batch_size,
            weight_decay=self.weight_decay,
            seed=seed,
        )


def bin_accuracy(scores_N: Array, label_N: Array, bins: int) -> Array:
    """Return, for every row, the accuracy of its equal-width bin of scores in [0, 1]."""
    bin_N = bin_index(scores_N, bins)
    right_M = np.bincount(bin_N, weights=label_N, minlength=bins)
    return (right_M / np.maximum(np.bincount(bin_N, minlength=bins), 1))[bin_N]


def _states(samples: Samples, rows: Rows, engine: Engine) -> Array:
    return engine.features(*samples.token_ids(rows)).mean_ND


def _rate(rows_ND: Array, weights: Array) -> Array:
    """Return the scores of one probe (D,) or of several (D, C), in float64."""
    return sigmoid((rows_ND @ weights).astype(np.float64))


def _best(validation: Samples, engine: Engine, scale: Scale, weights_CD: Array) -> int:
    """Return the candidate with the least Brier score on the validation responses that ended."""
    rows = ended_rows(validation)
    if not rows:
        raise DataError(
            "no validation response ended, so there is nothing to tune on; raise "
            "sample.max_new_tokens, or set estimators.actcab.tune=false"
        )
    correct_N = np.array([validation.correct[row] for row in rows])
    p_NC = _rate(scale(_states(validation, rows, engine)), weights_CD.T)
    return int(np.argmin([brier(p_N, correct_N) for p_N in p_NC.T]))


ESTIMATOR = ActCab
