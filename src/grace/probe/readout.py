"""The convex fit of c: the rows of `<CNF>` and `<NOC>`, together with the evidence.

While the model itself stays frozen, the log-odds of c are linear in the hidden states at a
response's steps (`Evidence.share` blends the mean over all steps with the last one) and in the
features of its log-probabilities. The difference of the two rows and the weights of the evidence
are therefore one logistic regression, solved in seconds and without a gradient through the model.

Shapes: N responses, B steps of each, M = N * B, D hidden size, F features.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from grace.calibration import log_losses
from grace.cnf import HeadShape
from grace.evidence import Evidence
from grace.evidence.trace import READINGS
from grace.probe.logistic import Logistic, fit_logistic
from grace.probe.rows import Array, varying
from grace.probe.steps import Steps

SHARES = (1.0, 0.5, 0.0)  # candidate weights of the mean over all steps against the last step
FLOOR = 20.0  # logits by which both rows are pushed below the mean row of the head
SAME_SIDE = 0.3  # smallest projection (mean 1) on the shared direction for pushing along it
PRIOR = 50  # number of answers at which the evidence alone counts as much as the fit with rows
RIDGE = 1e-3  # penalty of the shared direction, relative to the mean squared norm of a state


class Fit(NamedTuple):
    """The fitted rows and evidence, with their cross-validated quality.

    Attributes:
        rows_2D: the rows of `<CNF>` and `<NOC>`, fitted on all responses.
        evidence: fitted with them.
        held_out: c of each response (N,) by a fit that has not seen its question.
        losses: the log loss of `held_out` (N,).
        alone: the held-out log loss of the evidence without rows (N,).
        weights_D: the difference of the two rows, without the head's scale.
        held_out_KD: the same difference in the fits that leave out each of K folds.
        fold_N: the fold of each response.
    """

    rows_2D: Array
    evidence: Evidence
    held_out: Array
    losses: Array
    alone: Array
    weights_D: Array
    held_out_KD: Array
    fold_N: Array


def fit_evidence(
    features_NF: Array, labels_N: Array, groups_N: Sequence[Hashable] | None = None
) -> Evidence:
    """Fit the evidence alone, by logistic regression of correctness on its features.

    Features that hardly vary are left out, the penalty is chosen on folds grouped by question, and
    the log-odds are bounded by what N answers support.

    Args:
        features_NF: the features of each training response (`grace.evidence.features`).
        labels_N: 1 or True where the response is right.
        groups_N: its question; None: every response has its own.
    """
    groups = list(range(len(labels_N))) if groups_N is None else groups_N
    made = fit_logistic(_blocks(features_NF), labels_N, groups, free=True)
    return _evidence(features_NF, np.concatenate(made.weights), made.bias, share=0.0)


def step_states(
    mean_ND: Array, last_ND: Array, first_ND: Array, counts: Sequence[int]
) -> dict[str, Array]:
    """Return the `states` of `fit_readout` from pooled states and each response's token count.

    A response of K tokens has K + 1 steps: the state at the last prompt token predicts its first
    token, and the state at its last token predicts its end. The three states of an empty response
    are equal.
    """
    count_N1 = np.asarray(counts)[:, None]
    steps_ND = (first_ND + count_N1 * mean_ND) / (count_N1 + 1)
    return {"steps": steps_ND, "last": last_ND, "first": first_ND}


def blend(states: Mapping[str, Array], share: float) -> Array:
    """Return `share` times the mean state over all steps plus the rest of the last one, (N, D)."""
    state_ND: Array = share * states["steps"] + (1 - share) * states["last"]
    return state_ND


def fit_readout(
    states: Mapping[str, Array],
    features_NF: Array,
    labels_N: Array,
    groups_N: Sequence[Hashable],
    head: HeadShape,
    *,
    along: Steps | None = None,
    seed: int = 0,
) -> Fit:
    """Fit the two rows and the evidence together, and choose the blend of the steps' states.

    On few responses the rows fit noise. The result is therefore the mean, in log-odds, of this fit
    with weight N and a fit of the evidence alone with weight `PRIOR`.

    Args:
        states: hidden states (N, D) by name: `steps`, the mean over all steps; `last`, the step
            that ends the response; `first`, the last token of the prompt.
        features_NF: the features of each training response (`grace.evidence.features`).
        labels_N: 1 or True where the response is right.
        groups_N: its question.
        head: the model's output head (`grace.cnf.head_shape`).
        along: further steps of the responses, to fit the rows to as well; dropped if that makes c
            at the end worse by more than a standard error.
        seed: seed of the folds.
    """
    blocks = _blocks(features_NF)

    def fitted(*read: Array) -> Logistic:
        return fit_logistic([*read, *blocks], labels_N, groups_N, free=True, seed=seed)

    fits = {share: fitted(blend(states, share)) for share in SHARES}
    share = min(SHARES, key=lambda one: float(fits[one].losses.mean()))
    made, alone = fits[share], fitted()
    if along is not None:
        joint = _fit_along(blend(states, share), blocks, along, share, labels_N, groups_N, seed)
        worse_N = joint.losses - made.losses
        if worse_N.mean() <= worse_N.std() / math.sqrt(len(worse_N)):
            made = joint
    both = np.array([len(labels_N), PRIOR]) / (len(labels_N) + PRIOR)
    weights_D = both[0] * made.weights[0]
    weights_F = both @ [np.concatenate(made.weights[1:]), np.concatenate(alone.weights)]
    bias = float(both @ [made.bias, alone.bias])
    evidence = _evidence(features_NF, weights_F, bias, share=share)
    odds_N = np.clip(both @ [made.scores, alone.scores], -evidence.limit, evidence.limit)
    held_out_N = 1 / (1 + np.exp(-odds_N))
    return Fit(
        _rows(states, weights_D, head),
        evidence,
        held_out_N,
        log_losses(held_out_N, labels_N),
        alone.losses,
        weights_D,
        both[0] * np.array([weights[0] for weights in made.held_out]),
        made.fold_N,
    )


def _fit_along(
    state_ND: Array,
    blocks: Sequence[Array],
    along: Steps,
    share: float,
    labels_N: Array,
    groups_N: Sequence[Hashable],
    seed: int,
) -> Logistic:
    """Fit the rows to the ends and to the steps of the responses, with half of the weight each.

    The rows are shared; the log-probabilities have separate weights at ends and at steps.
    """
    from scipy.linalg import block_diag

    ends, width = along.step_NB.shape
    step_NBD = blend({"steps": along.mean_NBD, "last": along.at_NBD}, share)
    none_NB = np.zeros(along.step_NB.shape)
    known_MF = along.features(none_NB, none_NB)[:, : -len(READINGS)]
    made = fit_logistic(
        [
            np.concatenate([state_ND, step_NBD.reshape(ends * width, -1)]),
            block_diag(blocks[0], known_MF),
            block_diag(blocks[1], np.ones((ends * width, 1))),
        ],
        np.concatenate([labels_N, np.repeat(labels_N, width)]),
        [*groups_N, *(group for group in groups_N for _ in range(width))],
        weights_N=np.repeat([1, 1 / width], [ends, ends * width]),
        free=True,
        seed=seed,
    )
    rows, evidence, likelihood = made.weights
    return made._replace(
        weights=[rows, evidence[: blocks[0].shape[1]], likelihood[:1]],
        losses=made.losses[:ends],
        scores=made.scores[:ends],
        fold_N=made.fold_N[:ends],
    )


def _blocks(features_NF: Array) -> list[Array]:
    """Split the features into a penalised block and the likelihood, which has no penalty.

    Under the largest penalty the fit is thus a logistic regression on the likelihood, like Platt
    scaling.
    """
    varying_NF = varying(features_NF)
    return [varying_NF[:, :-1], varying_NF[:, -1:]]


def _evidence(features_NF: Array, weights_F: Array, intercept: float, share: float) -> Evidence:
    """Return the evidence for fitted weights and the intercept of uncentred features.

    c stays between 1 / (N + 2) and 1 - 1 / (N + 2): N answers support no more.
    """
    center_F = features_NF.mean(0)
    return Evidence(
        tuple(weights_F.tolist()),
        tuple(center_F.tolist()),
        float(intercept + weights_F @ center_F),
        low=tuple(features_NF.min(0).tolist()),
        high=tuple(features_NF.max(0).tolist()),
        share=share,
        limit=math.log(len(features_NF) + 1),
    )


def _rows(states: Mapping[str, Array], weights_D: Array, head: HeadShape) -> Array:
    """Return the rows of `<CNF>` and `<NOC>`: an improbable row, plus and minus half the weights.

    Only the difference of the rows is read, so their mean is free to keep both tokens improbable.
    The mean row of the head is one already, whatever the state. Where all states share a direction
    (a ridge regression of a constant on them finds it), as in deep models, both rows are pushed
    down along it by `FLOOR` logits more.
    """
    seen_ND = np.concatenate([states["first"], states["last"]]).astype(np.float64)
    gram_DD = seen_ND.T @ seen_ND / len(seen_ND)
    gram_DD[np.diag_indices_from(gram_DD)] += RIDGE * np.trace(gram_DD) / len(gram_DD)
    even_D = np.linalg.solve(gram_DD, seen_ND.mean(0))
    low_D = np.asarray(head.mean_D, dtype=np.float64)
    if not head.capped and float((seen_ND @ even_D).min()) > SAME_SIDE:
        low_D = low_D - FLOOR / head.scale * even_D
    half_D = weights_D / head.scale / 2
    rows_2D: Array = np.stack([low_D + half_D, low_D - half_D])
    return rows_2D.astype(np.float32)
