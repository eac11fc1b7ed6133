"""The features of the linear probe: pooled hidden states and token likelihoods.

Shapes: N responses, D features, T tokens of one response.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from grace import evidence
from grace.probe.rows import Array
from grace.records import Response

LIKELIHOOD_FEATURES = (
    *evidence.FEATURES,
    "mean_prob",
    "first_logprob",
    "last_logprob",
    "end_logprob",
    "end_prob",
    "cut",
)


def likelihood_features(logprobs: Sequence[float], end_logprob: float | None) -> Array:
    """Return the likelihood features of one response, float32 of shape (13,), always finite.

    Names and order are `LIKELIHOOD_FEATURES`: the features of `grace.evidence` and six more.
    Log-probabilities are floored at `evidence.LOWEST`. An empty response counts as one token of
    probability 1. `cut` is 1 for a response without an end, whose log-probability is the floor.
    """
    cut = end_logprob is None
    end = evidence.LOWEST if end_logprob is None else max(evidence.LOWEST, end_logprob)
    log_T = np.nan_to_num(np.asarray(logprobs or [0.0], dtype=np.float64), nan=evidence.LOWEST)
    log_T = np.clip(log_T, evidence.LOWEST, 0.0)
    more = (np.exp(log_T).mean(), log_T[0], log_T[-1], end, math.exp(min(end, 0.0)), float(cut))
    return np.asarray((*evidence.features(logprobs, end), *more), dtype=np.float32)


def feature_parts(
    names: Sequence[str], states: Mapping[str, Array], responses: Sequence[Response]
) -> list[Array]:
    """Return the named parts of the features, such as "mean" or "likelihood", each (N, width)."""
    given = dict(states)
    if "likelihood" in names:
        rows = [likelihood_features(item.logprobs, item.end_logprob) for item in responses]
        given["likelihood"] = np.stack(rows)
    return [np.asarray(given[name], dtype=np.float32) for name in names]
