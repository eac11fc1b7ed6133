"""The read-out of c as a convex fit: two rows of the vocabulary, and the evidence beside them.

With the model as it is, log-odds of c are linear in what a response leaves behind: the hidden
states at its steps (`Evidence.share` blends the mean over all steps with the last one) and the
features of its log-probabilities. So the rows of `<CNF>` and `<NOC>`, whose logits differ by
w . state, and the evidence are one logistic regression: exact, without a gradient through the
model, in seconds.

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

SHARES = (1.0, 0.5, 0.0)  # of the mean over all steps, beside the last one
FLOOR = 20.0  # how far both rows are kept below a row that is as likely as the mean one, in logits
SAME_SIDE = 0.3  # how even the states must be along a direction to be lowered along it
PRIOR = 50  # answers that the evidence alone is worth beside the rows
RIDGE = 1e-3  # of the fit of what both rows share, relative to the mean squared length of a state


class Fit(NamedTuple):
    """Two rows (2, D), `<CNF>` first, and the evidence, fitted on all responses.

    `held_out` is c of each response (N,) by a fit that has not seen its question, and `losses` its
    log loss; `alone` is that of the evidence without the rows. `weights_D` is what the rows differ
    by, `held_out_KD` the same of the fit without each of K folds, and `fold_N` who is in which.
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
    """Fit weights and bias of the evidence alone by logistic regression of correctness.

    Features that hardly vary are left out, the penalty is chosen on folds grouped by question, and
    log-odds stay within what N answers support.

    Args:
        features_NF: the evidence's features of each training response.
        labels_N: 1 or True where it is right.
        groups_N: its question; None: each response is one of its own.
    """
    groups = list(range(len(labels_N))) if groups_N is None else groups_N
    made = fit_logistic(_blocks(features_NF), labels_N, groups, free=True)
    return _evidence(features_NF, np.concatenate(made.weights), made.bias, share=0.0)


def step_states(
    mean_ND: Array, last_ND: Array, first_ND: Array, counts: Sequence[int]
) -> dict[str, Array]:
    """Return what `fit_readout` wants of pooled states and the number of tokens of each response.

    The steps of a response of K tokens are K + 1: the state at the last prompt token makes its
    first token, the one at its last token makes its end. An empty response has the same state in
    all three.
    """
    count_N1 = np.asarray(counts)[:, None]
    steps_ND = (first_ND + count_N1 * mean_ND) / (count_N1 + 1)
    return {"steps": steps_ND, "last": last_ND, "first": first_ND}


def blend(states: Mapping[str, Array], share: float) -> Array:
    """Return the state that is read, (N, D): `share` of the mean over all steps, else the last."""
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
    """Fit the two rows and the evidence together, and how the states of the steps are blended.

    With few responses the rows fit noise. So the read-out is a mean, in log-odds, of this fit and
    one of the evidence alone, with weights N and `PRIOR`.

    Args:
        states: hidden states (N, D) by name: `steps`, the mean over all steps; `last`, the step
            that ends the response; `first`, the last token of the prompt.
        features_NF: the evidence's features of each training response.
        labels_N: 1 or True where it is right.
        groups_N: its question.
        head: of the model (`grace.cnf.head_shape`).
        along: steps of the responses. The rows are then fitted to them too, unless they rate the
            ends worse for it by more than a standard error.
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
    """Return the fit of the ends whose rows are also those of the steps, half the weight each.

    The log-probabilities have weights of their own at the ends and at the steps.
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
    """Return the evidence in two blocks: what has a penalty, and the likelihood, which has none.

    The largest penalty then leaves a logistic regression on the likelihood, as Platt scaling is.
    """
    varying_NF = varying(features_NF)
    return [varying_NF[:, :-1], varying_NF[:, -1:]]


def _evidence(features_NF: Array, weights_F: Array, intercept: float, share: float) -> Evidence:
    """Return the evidence of fitted weights; `intercept` is what is added where all features are 0.

    c stays between 1 / (N + 2) and 1 - 1 / (N + 2), which is all that N answers can tell.
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
    """Return the rows of `<CNF>` and `<NOC>`: half the weights up and down from a low level.

    The mean row of the head is already far less likely than the likely tokens, whatever the state.
    Where the states share a direction, as in deep models, both rows go down along it (a ridge
    regression of a constant on the states). Only their difference is read.
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
