"""Apricot's targets: the accuracy of a question's cluster among the training questions.

Shapes: Q questions, N responses, D dimensions.
Source: arXiv 2403.05973 section 3.1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from grace.estimators.apricot.encoder import TextModel
from grace.progress import progress

MIN_CLUSTER_SIZE = 3
MIN_SAMPLES = 1
EPSILON = 1e-6
NOISE = -1


def embed(encoder: TextModel, questions: Sequence[str]) -> NDArray[np.float64]:
    """Return the sentence embeddings, shape (Q, D), each of length 1."""
    with progress("apricot: embed", len(questions), unit="questions") as advance:
        vector_QD = encoder.run([(question,) for question in questions], advance)
    vector_QD /= np.linalg.norm(vector_QD, axis=1, keepdims=True).clip(EPSILON)
    return vector_QD


def clusters(vector_QD: ArrayLike) -> NDArray[np.int64]:
    """Return every question's cluster by HDBSCAN on z-scored dimensions, -1 for noise."""
    from sklearn.cluster import HDBSCAN

    raw_QD = np.asarray(vector_QD, dtype=np.float64)
    if len(raw_QD) < MIN_CLUSTER_SIZE:
        return np.full(len(raw_QD), NOISE)
    z_QD = (raw_QD - raw_QD.mean(axis=0)) / (raw_QD.std(axis=0) + EPSILON)
    found = HDBSCAN(min_cluster_size=MIN_CLUSTER_SIZE, min_samples=MIN_SAMPLES, copy=True)
    cluster_Q: NDArray[np.int64] = found.fit_predict(z_QD).astype(np.int64)
    return cluster_Q


def cluster_accuracies(
    cluster_Q: ArrayLike,
    question_N: ArrayLike,
    correct_N: Sequence[bool],
    *,
    cluster_0_is_noise: bool = False,
) -> list[float]:
    """Return the share of right responses in each response's cluster.

    A question that is noise keeps the share among its own responses.

    Args:
        cluster_Q: every question's cluster, -1 for noise.
        question_N: every response's question, as a row of `cluster_Q`.
        correct_N: whether each response is right.
        cluster_0_is_noise: the published code's test, `> 0`, leaves cluster 0 out too.
    """
    cluster_Q, question_N = np.asarray(cluster_Q), np.asarray(question_N)
    alone_Q = cluster_Q < (1 if cluster_0_is_noise else 0)
    own_Q = cluster_Q.max() + 1 + np.arange(len(cluster_Q))
    group_N = np.where(alone_Q, own_Q, cluster_Q)[question_N]
    right = np.bincount(group_N, weights=np.asarray(correct_N, dtype=np.float64))
    count = np.bincount(group_N)
    accuracy_N: list[float] = (right[group_N] / count[group_N]).tolist()
    return accuracy_N
