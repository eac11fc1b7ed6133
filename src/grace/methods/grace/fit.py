"""The convex fit of c: the rows of the tokens that are read, together with the evidence.

While the model itself stays frozen, the log-odds of c are linear in three hidden states of a
response, its last one, that of its prompt and the mean over its tokens, and in the features of its
log-probabilities. What the rows of `<CNF>`, `<CNF-PROMPT>` and `<CNF-ANSWER>` add to that of
`<NOC>` and the weights of the evidence are therefore one logistic regression, solved in seconds and
without a gradient through the model.

Shapes: N responses, B steps of each, M = N * B, D hidden size, F features, Q readings of a step, in
the order of `grace.cnf.PLACES`, E = Q + 1 rows.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from grace.calibration import log_losses, standard_error
from grace.cnf import PLACES, HeadShape
from grace.engines import Features
from grace.evidence import Evidence
from grace.methods.grace.rounding import round_rows
from grace.methods.grace.trace import Steps
from grace.probe.logistic import Logistic, fit_logistic, quick_loss
from grace.probe.penalties import FIRST
from grace.probe.rows import Array, assign_folds, sigmoid, varying

FLOOR = 20.0  # logits by which all rows are pushed below the mean row of the head
SAME_SIDE = 0.3  # smallest projection (mean 1) on the shared direction for pushing along it
PRIOR = 100  # number of answers at which the evidence alone counts as much as the fit with rows
COMPARED = 5_000  # most answers on which a layer is rated; the time grows as their square or cube
RIDGE = 1e-3  # penalty of the shared direction, relative to the mean squared norm of a state


class Fit(NamedTuple):
    """The fitted rows and evidence, with their cross-validated quality.

    Attributes:
        rows_ED: the rows of the tokens that are read, that of `<NOC>` last.
        layer_rows: the block and the rows (E, H) that read its MLP, if c reads one.
        evidence: fitted with them.
        held_out: c of each response (N,) by a fit that has not seen its question.
        losses: the log loss of `held_out` (N,).
        alone: the held-out log loss of the evidence without rows (N,).
        weights_QD: the differences of the others from that of `<NOC>`, without the head's scale.
        held_out_KQD: the same differences in the fits that leave out each of K folds.
        fold_N: the fold of each response.
    """

    rows_ED: Array
    evidence: Evidence
    held_out: Array
    losses: Array
    alone: Array
    weights_QD: Array
    held_out_KQD: Array
    fold_N: Array
    layer_rows: tuple[int, Array] | None = None


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
    return _evidence(features_NF, np.concatenate(made.weights), made.bias)


def layer_loss(
    states: Features,
    features_NF: Array,
    labels_N: Array,
    groups_N: Sequence[Hashable],
    *,
    first: float = FIRST,
    seed: int = 0,
) -> tuple[float, float]:
    """Return how well a layer tells right responses: the held-out log loss of a quick fit.

    It gives every state and the evidence the same penalty, which is returned, too. Of more than
    `COMPARED` answers it takes a half, a third or so on, by question. The arguments are those of
    `fit_readout`.
    """
    read, parts = [*placed(states), *_blocks(features_NF)], -(-len(labels_N) // COMPARED)
    if parts > 1:
        kept = np.flatnonzero(assign_folds(groups_N, parts, seed) == 0).tolist()
        read, labels_N = [block[kept] for block in read], labels_N[kept]
        groups_N = [groups_N[row] for row in kept]
    return quick_loss(read, labels_N, groups_N, free=True, first=first, seed=seed)


def placed(features: Features) -> list[Array]:
    """Return the states of responses that count, each (N, D), in the order of `PLACES`."""
    return [features.last_ND, features.first_ND, features.mean_ND]


def fit_readout(
    states: Features,
    features_NF: Array,
    labels_N: Array,
    groups_N: Sequence[Hashable],
    head: HeadShape,
    *,
    middle: tuple[int, Features] | None = None,
    along: Steps | None = None,
    first: float = FIRST,
    seed: int = 0,
) -> Fit:
    """Fit the rows and the evidence together, with a penalty for each state and the evidence.

    On few responses the rows fit noise. The result is therefore the mean, in log-odds, of this fit
    with weight N and a fit of the evidence alone with weight `PRIOR`.

    Args:
        states: pooled hidden states of the responses.
        features_NF: the features of each training response (`grace.evidence.features`).
        labels_N: 1 or True where the response is right.
        groups_N: its question.
        head: the model's output head (`grace.cnf.head_shape`).
        middle: a block and the activations of its MLP, for c to read them in place of `states`.
        along: further steps of the responses, to fit the rows to as well; dropped if that makes c
            at the end worse by more than a standard error.
        first: the penalty with which the search for those of the states and the evidence starts.
        seed: seed of the folds.
    """
    read = placed(states if middle is None else middle[1])
    blocks = _blocks(features_NF)
    made = fit_logistic([*read, *blocks], labels_N, groups_N, free=True, first=first, seed=seed)
    alone = fit_logistic(blocks, labels_N, groups_N, free=True, seed=seed)
    if along is not None:
        joint = _fit_along(read, blocks, along, labels_N, groups_N, seed)
        worse_N = joint.losses - made.losses
        if worse_N.mean() <= standard_error(worse_N, groups_N):
            made = joint
    count = len(read)
    both = np.array([len(labels_N), PRIOR]) / (len(labels_N) + PRIOR)
    weights_QD = both[0] * np.stack(made.weights[:count])
    weights_F = both @ [np.concatenate(made.weights[count:]), np.concatenate(alone.weights)]
    bias = float(both @ [made.bias, alone.bias])
    evidence = _evidence(features_NF, weights_F, bias)
    scores_FN = np.stack([both @ [made.scores, alone.scores], alone.scores])
    held_out_N, alone_N = sigmoid(np.clip(scores_FN, -evidence.limit, evidence.limit))
    layer_rows = None
    rows_ED = _rows(states, weights_QD if middle is None else None, head)
    if middle is not None:
        apart_EH = _apart(weights_QD)
        layer_rows = (middle[0], round_rows(apart_EH, read))
    return Fit(
        rows_ED,
        evidence,
        held_out_N,
        log_losses(held_out_N, labels_N),
        log_losses(alone_N, labels_N),
        weights_QD,
        both[0] * np.array([weights[:count] for weights in made.held_out]),
        made.fold_N,
        layer_rows,
    )


def _fit_along(
    read: Sequence[Array],
    blocks: Sequence[Array],
    along: Steps,
    labels_N: Array,
    groups_N: Sequence[Hashable],
    seed: int,
) -> Logistic:
    """Fit the rows to the ends and to the steps of the responses, with half of the weight each.

    The rows are shared; the log-probabilities have separate weights at ends and at steps.
    """
    from scipy.linalg import block_diag

    ends, width = along.step_NB.shape
    at_steps = [state_NBD.reshape(ends * width, -1) for state_NBD in along.placed()]
    pairs = zip(read, at_steps, strict=True)
    made = fit_logistic(
        [
            *(np.concatenate([end_ND, step_MD]) for end_ND, step_MD in pairs),
            block_diag(blocks[0], along.known()),
            block_diag(blocks[1], np.ones((ends * width, 1))),
        ],
        np.concatenate([labels_N, np.repeat(labels_N, width)]),
        [*groups_N, *(group for group in groups_N for _ in range(width))],
        weights_N=np.repeat([1, 1 / width], [ends, ends * width]),
        free=True,
        seed=seed,
    )
    *rows, evidence, likelihood = made.weights
    return made._replace(
        weights=[*rows, evidence[: blocks[0].shape[1]], likelihood[:1]],
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


def _evidence(features_NF: Array, weights_F: Array, intercept: float) -> Evidence:
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
        limit=math.log(len(features_NF) + 1),
    )


def _apart(weights_QD: Array) -> Array:
    """Return rows (E, D) with these differences from the last one, and a mean of 0."""
    rows_ED = np.vstack([weights_QD, np.zeros_like(weights_QD[:1])])
    apart_ED: Array = rows_ED - rows_ED.mean(0)
    return apart_ED


def _rows(states: Features, weights_QD: Array | None, head: HeadShape) -> Array:
    """Return the rows of the tokens: an improbable row, and around it rows with these differences.

    Only what the rows differ by is read, so their mean is free to keep all tokens improbable. The
    mean row of the head is improbable already, whatever the state. Where all states share a
    direction (a ridge regression of a constant on them finds it), as in deep models, all rows are
    pushed down along it by `FLOOR` logits more. Without differences all rows are the same.
    """
    seen_ND = np.concatenate([states.first_ND, states.last_ND]).astype(np.float64)
    gram_DD = seen_ND.T @ seen_ND / len(seen_ND)
    gram_DD[np.diag_indices_from(gram_DD)] += RIDGE * np.trace(gram_DD) / len(gram_DD)
    even_D = np.linalg.solve(gram_DD, seen_ND.mean(0))
    low_D = np.asarray(head.mean_D, dtype=np.float64)
    if not head.capped and float((seen_ND @ even_D).min()) > SAME_SIDE:
        low_D = low_D - FLOOR / head.scale * even_D
    if weights_QD is None:
        weights_QD = np.zeros((len(PLACES), len(low_D)))
    return round_rows(low_D + _apart(weights_QD) / head.scale, placed(states))
