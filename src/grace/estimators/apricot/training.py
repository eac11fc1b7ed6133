"""Apricot's targets, and the training of its auxiliary model on them.

A target is the accuracy in a question's cluster among the training questions; the loss is the
squared error of softmax(logits)[1].

Shapes: Q questions, N responses, B responses of a batch, D dimensions.
Source: arXiv 2403.05973 section 3.1 and its published code (optimizer, schedule, clipping).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from grace.errors import TrainingError
from grace.estimators.apricot.encoder import Text, TextModel
from grace.progress import progress

MAX_GRAD_NORM = 10.0
WARMUP, MAX_WARMUP = 0.1, 100  # share of the steps, and steps
HORIZON = 1.1  # the cosine reaches zero after this multiple of the steps
GROUP = 16  # responses of similar length are batched among those of this many batches
MIN_CLUSTER_SIZE, MIN_SAMPLES = 3, 1  # of HDBSCAN
EPSILON = 1e-6
NOISE = -1


def train(
    model: TextModel,
    texts: Sequence[Text],
    target_N: Sequence[float],
    validation_brier: Callable[[], float],
    settings: Any,
    seed: int,
) -> None:
    """Fine-tune a classifier in place, to the weights that are best on validation answers."""
    from transformers import get_cosine_schedule_with_warmup

    network, rows, last = model.network, model.tokens(texts), settings.steps
    weights = list(network.parameters())
    optimizer = torch.optim.AdamW(
        weights, lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
    )
    warmup = int(min(WARMUP * last, MAX_WARMUP))
    schedule = get_cosine_schedule_with_warmup(optimizer, warmup, HORIZON * last)
    order = batches([len(ids) for ids in rows], settings.batch_size, seed)
    best, kept, since = math.inf, network.state_dict(), 0
    with progress("apricot: train", last, unit="steps") as advance:
        for number, at in zip(range(1, last + 1), order, strict=False):
            network.train()
            confidence_B = torch.softmax(model.forward([rows[row] for row in at]), dim=-1)[:, 1]
            target_B = torch.tensor([target_N[row] for row in at], device=confidence_B.device)
            loss = torch.nn.functional.mse_loss(confidence_B, target_B)
            _finite("loss", loss.item(), number)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(weights, MAX_GRAD_NORM)
            optimizer.step()
            schedule.step()
            if number % settings.validate_every == 0 or number == last:
                brier, since = (
                    _finite("validation Brier score", validation_brier(), number),
                    since + 1,
                )
                if brier < best:
                    best, kept, since = brier, copy.deepcopy(network.state_dict()), 0
                if 0 < settings.patience <= since:
                    break
            advance(1, f"best validation Brier {best:.4f}" if best < 1 else "")
    network.load_state_dict(kept)


def batches(lengths: Sequence[int], size: int, seed: int) -> Iterator[list[int]]:
    """Yield the rows of batches without end: each row once per pass, similar lengths together."""
    random = np.random.default_rng(seed)
    while True:
        shuffled, batched = random.permutation(len(lengths)), []
        for start in range(0, len(shuffled), size * GROUP):
            group = sorted(shuffled[start : start + size * GROUP].tolist(), key=lengths.__getitem__)
            batched += [group[at : at + size] for at in range(0, len(group), size)]
        for index in random.permutation(len(batched)):
            yield batched[index]


def _finite(what: str, value: float, step: int) -> float:
    if not math.isfinite(value):
        raise TrainingError(
            f"apricot: the {what} is {value} at step {step}; lower estimators.apricot.learning_rate"
        )
    return value


def embed(encoder: TextModel, questions: Sequence[str]) -> NDArray[np.float64]:
    """Return the sentence embeddings, shape (Q, D), each of length 1."""
    with progress("apricot: embed", len(questions), unit="questions") as advance:
        vector_QD = encoder.run([(question,) for question in questions], advance)
    vector_QD /= np.linalg.norm(vector_QD, axis=1, keepdims=True).clip(EPSILON)
    return vector_QD


def clusters(vector_QD: ArrayLike) -> NDArray[np.int64]:
    """Return the cluster of every question by HDBSCAN on z-scored dimensions, -1 for noise."""
    from sklearn.cluster import HDBSCAN

    raw_QD = np.asarray(vector_QD, dtype=np.float64)
    if len(raw_QD) < MIN_CLUSTER_SIZE:
        return np.full(len(raw_QD), NOISE)
    z_QD = (raw_QD - raw_QD.mean(axis=0)) / (raw_QD.std(axis=0) + EPSILON)
    model = HDBSCAN(min_cluster_size=MIN_CLUSTER_SIZE, min_samples=MIN_SAMPLES, copy=True)
    cluster_Q: NDArray[np.int64] = model.fit_predict(z_QD).astype(np.int64)
    return cluster_Q


def cluster_accuracies(
    cluster_Q: ArrayLike, question_N: ArrayLike, correct_N: Sequence[bool]
) -> list[float]:
    """Return the accuracy in each response's cluster; a question in none (-1) is one of its own."""
    cluster_Q, question_N = np.asarray(cluster_Q), np.asarray(question_N)
    alone_Q = cluster_Q < 0
    own_Q = cluster_Q.max() + 1 + np.arange(len(cluster_Q))
    group_N = np.where(alone_Q, own_Q, cluster_Q)[question_N]
    right = np.bincount(group_N, weights=np.asarray(correct_N, dtype=np.float64))
    count = np.bincount(group_N)
    accuracy_N: list[float] = (right[group_N] / count[group_N]).tolist()
    return accuracy_N
