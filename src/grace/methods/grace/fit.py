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
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from grace.calibration import log_losses, standard_error
from grace.cnf import PLACES, HeadShape
from grace.engines import LAST, Features
from grace.evidence import Evidence, clipped
from grace.evidence.familiar import Familiar, Own
from grace.evidence.trace import READINGS, features_at
from grace.methods.grace.prompts import Prompts, describe, distances
from grace.methods.grace.rounding import round_rows
from grace.probe.logistic import (
    EVERY_FOLD,
    FIRST,
    LayerLoss,
    Logistic,
    fit_logistic,
    nested_scores,
    quick_loss,
)
from grace.probe.rows import Array, assign_folds, base_rate, losses_at, sigmoid, sources_in, varying

FLOOR = 20.0  # logits by which all rows are pushed below the mean row of the head
SAME_SIDE = 0.3  # smallest projection (mean 1) on the shared direction for pushing along it
PRIOR = 100  # number of answers at which the evidence alone counts as much as the fit with rows
FEW = 300  # questions up to which log-odds shrink as far as held-out answers do not support them
SURE = 4.0  # the slope of the likelihood counts from this likelihood ratio on
COMPARED = 5_000  # most answers on which a layer is rated; the time grows as their square or cube
SHARES = np.linspace(0, 1, 21)  # of a fit to one source in the log-odds for prompts like its
RIDGE = 1e-3  # penalty of the shared direction, relative to the mean squared norm of a state


class Steps(NamedTuple):
    """B steps of each response."""

    at_NBD: Array  # hidden states there
    mean_NBD: Array  # mean of the tokens before each; the prompt's end if none
    first_ND: Array  # of the prompts' ends
    step_NB: Array  # number of tokens before each
    logprobs: Sequence[Sequence[float]]  # of all tokens of each response

    def placed(self) -> list[Array]:
        """Return the states that count at each step, (N, B, D), in the order of `PLACES`."""
        first_NBD = np.broadcast_to(self.first_ND[:, None], self.at_NBD.shape)
        return [self.at_NBD, first_NBD, self.mean_NBD]

    def features(self, reading_NBQ: Array) -> Array:
        """Return the `TRACE_FEATURES` (M, F) for readings pooled at the steps."""
        rows = zip(self.logprobs, self.step_NB, reading_NBQ, strict=True)
        return varying(np.concatenate([features_at(clipped(row[0]), *row[1:]) for row in rows]))

    def known(self) -> Array:
        """Return those of the `TRACE_FEATURES` that need no readings, (M, F)."""
        return self.features(np.zeros((*self.step_NB.shape, len(PLACES))))[:, : -len(READINGS)]


class Fit(NamedTuple):
    """The fitted rows and evidence, with their cross-validated quality."""

    rows_ED: Array  # of the tokens that are read, that of `<NOC>` last
    evidence: Evidence
    held_out: Array  # c of each response (N,) by a fit, and choices, without its question
    ranks: Array  # log-odds (N,) of `held_out` without the mean difference of the folds, to rank by
    losses: Array  # log loss (N,) of `held_out`
    alone: Array  # held-out log loss (N,) of the evidence without rows
    weights_QD: Array  # differences of the others from `<NOC>`, without the head's scale
    held_out_KQD: Array  # the same in the fits without each of K folds
    fold_N: Array
    layer_rows: tuple[int, Array] | None = None  # a block, and rows (E, H) that read its MLP
    prompts: tuple[int, Prompts] | None = None  # a block, and its MLP at the prompts' ends


def fit_evidence(
    features_NF: Array, labels_N: Array, groups_N: Sequence[Hashable] | None = None
) -> Evidence:
    """Fit the evidence alone, by logistic regression of correctness on its features.

    Features that hardly vary are left out, the penalty is chosen on folds grouped by question, and
    the log-odds are bounded by what N answers support.
    """
    groups = list(range(len(labels_N))) if groups_N is None else groups_N
    made = fit_logistic(_blocks(features_NF), labels_N, groups, free=True, nested=EVERY_FOLD)
    shrunk = _shrunk(made, features_NF, labels_N, groups)
    weights_F, bias = shrunk.applied(np.concatenate(made.weights), made.bias)
    return evidence_of(features_NF, weights_F, bias)


class Layer(NamedTuple):
    """The layer that c reads and the penalty to start with; `inner` are those without each fold."""

    layer: int
    first: float
    inner: tuple[tuple[int, float], ...]

    def chosen_without(self, layer: int) -> dict[int, float]:
        """Return the folds without which this layer is chosen, with the penalties to start with."""
        return {fold: first for fold, (one, first) in enumerate(self.inner) if one == layer}


def choose_layer(
    read: Callable[[int], Sequence[Array]],
    layers: Sequence[int],
    labels_N: Array,
    groups_N: Sequence[Hashable],
    *,
    free: bool = False,
    seed: int = 0,
    nested: bool = True,
    tell: Callable[[int, float], None] = lambda layer, loss: None,
) -> Layer:
    """Choose the layer that tells right responses best, by the held-out log loss of a quick fit.

    The fit gives all blocks of features that `read` returns the same penalty, and none to the last
    one if that is `free`. Of more than `COMPARED` answers it takes a half, a third or so on, by
    question. `tell` is called with the loss of each layer. `inner` is empty unless `nested`.
    """
    fold_N, first = assign_folds(groups_N, seed=seed), FIRST
    if len(layers) == 1:
        return Layer(layers[0], first, ((layers[0], first),) * (int(fold_N.max()) + 1))
    parts = -(-len(labels_N) // COMPARED)
    kept = np.flatnonzero(assign_folds(groups_N, parts, seed) == 0) if parts > 1 else np.s_[:]
    groups = [groups_N[row] for row in np.arange(len(labels_N))[kept]]
    right_N, tried = np.asarray(labels_N), dict[int, LayerLoss]()
    for layer in layers:
        tried[layer] = quick_loss(
            [block[kept] for block in read(layer)],
            right_N[kept],
            fold_N[kept],
            groups,
            free=free,
            first=first,
            nested=nested,
        )
        first = tried[layer].penalty
        tell(layer, tried[layer].loss)
    best = min(tried, key=lambda layer: tried[layer].loss)
    by_fold = zip(*(rated.inner for rated in tried.values()), strict=True)
    places = [min(range(len(tried)), key=lambda n: found[n][0]) for found in by_fold]
    inner = ((layers[n], tried[layers[n]].inner[k][1]) for k, n in enumerate(places))
    return Layer(best, tried[best].penalty, tuple(inner))


def read_by(read: Callable[[int], Features], features_NF: Array) -> Callable[[int], list[Array]]:
    """Return what reads the blocks of features of a layer: its states, and the evidence's."""
    return lambda layer: [*placed(read(layer)), *_blocks(features_NF)]


def placed(features: Features) -> list[Array]:
    """Return the states of responses that count, each (N, D), in the order of `PLACES`."""
    return [features.last_ND, features.first_ND, features.mean_ND]


def fit_readout(
    read: Callable[[int], Features],
    features_NF: Array,
    labels_N: Array,
    groups_N: Sequence[Hashable],
    head: HeadShape,
    *,
    layer: Layer | None = None,
    along: Steps | None = None,
    seed: int = 0,
) -> Fit:
    """Fit the rows and the evidence together, with a penalty for each state and the evidence.

    On few responses the rows fit noise. The result is therefore the mean, in log-odds, of this fit
    with weight N and a fit of the evidence alone with weight `PRIOR`. With fewer questions than
    about `FEW` it is drawn towards a fit of the likelihood alone, as far as held-out answers do not
    support it, and that towards the base rate.

    `read` returns the pooled states of the responses in a layer; no `layer` is the last state.
    `along` are further steps of the responses, to fit the rows to as well; they are dropped if that
    makes c at the end worse by more than a standard error.
    """
    every = read_by(read, features_NF)
    layer = layer or choose_layer(every, [LAST], labels_N, groups_N, seed=seed)
    blocks = _blocks(features_NF)
    folds = assign_folds(groups_N, seed=seed)
    elsewhere = _of_other_layers(every, labels_N, groups_N, folds, layer)
    states = placed(read(layer.layer))
    made = fit_logistic(
        [*states, *blocks],
        labels_N,
        groups_N,
        free=True,
        first=layer.first,
        nested=layer.chosen_without(layer.layer),
        seed=seed,
    )
    made = made._replace(nested=np.where(np.isnan(elsewhere), made.nested, elsewhere))
    alone = fit_logistic(blocks, labels_N, groups_N, free=True, nested=EVERY_FOLD, seed=seed)
    if along is not None:
        joint = _fit_along(states, blocks, along, labels_N, groups_N, seed)
        worse_N = joint.losses - made.losses
        if worse_N.mean() <= standard_error(worse_N, groups_N):
            made = joint
    count = len(states)
    both = np.array([len(labels_N), PRIOR]) / (len(labels_N) + PRIOR)
    mixed = made._replace(
        scores=both @ [made.scores, alone.scores], nested=both @ [made.nested, alone.nested]
    )
    shrunk = _shrunk(mixed, features_NF, labels_N, groups_N)
    weights_F = both @ [np.concatenate(made.weights[count:]), np.concatenate(alone.weights)]
    weights_F, bias = shrunk.applied(weights_F, float(both @ [made.bias, alone.bias]))
    both *= shrunk.factor
    weights_QD = both[0] * np.stack(made.weights[:count])
    evidence = evidence_of(features_NF, weights_F, bias)
    scores_FN = np.stack([shrunk.scores, alone.nested])
    held_out_N, alone_N = sigmoid(np.clip(scores_FN, -evidence.limit, evidence.limit))
    layer_rows = None
    rows_ED = _rows(read(LAST), weights_QD if layer.layer == LAST else None, head)
    if layer.layer != LAST:
        layer_rows = (layer.layer, round_rows(_apart(weights_QD), states))
    return Fit(
        rows_ED,
        evidence,
        held_out_N,
        shrunk.ranks,
        log_losses(held_out_N, labels_N),
        log_losses(alone_N, labels_N),
        weights_QD,
        both[0] * np.array([weights[:count] for weights in made.held_out]),
        made.fold_N,
        layer_rows,
    )


def knowing_prompts(
    fit: Fit,
    layer: int,
    first_NH: Array,
    features_NF: Array,
    labels_N: Array,
    groups_N: Sequence[Hashable],
    whole_N: Any = slice(None),
) -> Fit:
    """Return a fit to several sources whose rows count for familiar prompts only.

    For the others the evidence counts, as it is fitted alone. `first_NH` is what the MLP of block
    `layer` held at the end of each prompt, `whole_N` says for which rows: the others are fields.
    """
    prompts = describe(first_NH[whole_N], np.array(sources_in(groups_N))[whole_N].tolist())
    alone, evidence = fit_evidence(features_NF, labels_N, groups_N), fit.evidence
    weights_F = np.subtract(alone.weights, evidence.weights)
    familiar = Familiar(prompts.near, tuple(weights_F.tolist()), alone.bias - evidence.bias)
    return fit._replace(evidence=replace(evidence, familiar=familiar), prompts=(layer, prompts))


def knowing_sources(
    fit: Fit,
    read: Callable[[int], Features],
    layers: Sequence[int],
    first_NH: Array,
    features_NF: Array,
    labels_N: Array,
    groups_N: Sequence[Hashable],
    head: HeadShape,
    whole_N: Any = slice(None),
    seed: int = 0,
) -> tuple[Fit, dict[str, float]]:
    """Return a fit of `knowing_prompts` that has a fit to each source alone for prompts like its.

    Of the log-odds of both, the latter get the share with which held-out answers to the prompts
    that are nearest to the source are told best; these shares follow, none if all are 0. `layers`
    are the blocks that it may read.
    """
    evidence, familiar, described = fit.evidence, fit.evidence.familiar, fit.prompts
    assert familiar is not None and described is not None
    (block, prompts), center_F = described, np.array(evidence.center)
    sources_N, right_N = np.array(sources_in(groups_N)), np.asarray(labels_N, dtype=np.float64)
    held_2N, weights_F = _held_out(fit), np.array(evidence.weights)
    nearest_N = _nearest(first_NH, sources_N, fit.fold_N, whole_N)
    nothing = layers[0], np.zeros((len(PLACES), first_NH.shape[1]))
    own = dict[str, tuple[Own, tuple[int, Array]]]()
    for source in np.unique(sources_N[whole_N]).tolist():
        in_N, near_N = np.flatnonzero(sources_N == source), np.flatnonzero(nearest_N == source)
        own[source] = Own(0.0, (0.0,) * len(weights_F), 0.0), nothing
        groups = [groups_N[row] for row in in_N.tolist()]
        if len(set(groups)) < 2 or len(set(right_N[in_N])) < 2 or not len(near_N):
            continue
        graded = (features_NF, right_N, groups)
        alone, rows, said_2N = _fit_alone(read, layers, *graded, in_N, near_N, center_F, head, seed)
        given = (right_N[near_N], fit.fold_N[near_N])
        share, held_2N[:, near_N] = _shared(held_2N[:, near_N], said_2N, *given)
        if share:
            added = tuple((np.array(alone.weights) - weights_F).tolist())
            own[source] = Own(share, added, alone.bias - evidence.bias), rows
    shares = {source: one.share for source, (one, _) in own.items()}
    if not any(shares.values()):
        return fit, {}
    alone_S, rows_S = zip(*own.values(), strict=True)
    held_out_N = sigmoid(held_2N[0])
    known = fit._replace(
        held_out=held_out_N,
        ranks=held_2N[1],
        losses=log_losses(held_out_N, labels_N),
        evidence=replace(evidence, familiar=replace(familiar, own=alone_S)),
        prompts=(block, prompts._replace(own=rows_S)),
    )
    return known, shares


def _fit_alone(
    read: Callable[[int], Features],
    layers: Sequence[int],
    features_NF: Array,
    right_N: Array,
    groups: Sequence[Hashable],
    in_N: Array,
    near_N: Array,
    center_F: Array,
    head: HeadShape,
    seed: int,
) -> tuple[Evidence, tuple[int, Array], Array]:
    """Fit to the rows `in_N`: evidence, block and rows, and log-odds as `_held_out` of `near_N`."""

    def of_source(layer: int) -> Features:
        return Features(*(state_ND[in_N] for state_ND in read(layer)))

    own_NF, graded = features_NF[in_N], (right_N[in_N], groups)
    every = read_by(of_source, own_NF)
    layer = choose_layer(every, layers, *graded, free=True, seed=seed)
    fit = fit_readout(of_source, own_NF, *graded, head, layer=layer, seed=seed)
    weights_F, away_F = np.array(fit.evidence.weights), center_F - fit.evidence.center
    evidence = replace(fit.evidence, bias=fit.evidence.bias + float(weights_F @ away_F))
    said_N = (features_NF[near_N] - center_F) @ weights_F + evidence.bias
    for state_ND, row_D in zip(placed(read(layer.layer)), fit.weights_QD, strict=True):
        said_N += state_ND[near_N] @ row_D
    said_2N = np.tile(said_N, (2, 1))
    _, at_near, at_in = np.intersect1d(near_N, in_N, return_indices=True)
    said_2N[:, at_near] = _held_out(fit)[:, at_in]
    return evidence, (layer.layer, fit.weights_QD), said_2N


def _shared(held_2N: Array, said_2N: Array, right_N: Array, fold_N: Array) -> tuple[float, Array]:
    """Return the best share of the latter log-odds, and both with that without each one's fold."""
    odds_K2N = held_2N + SHARES[:, None, None] * (said_2N - held_2N)
    loss_KN, mixed_2N = losses_at(odds_K2N[:, 0], right_N), held_2N.copy()
    for fold in np.unique(fold_N):
        out_N = fold_N == fold
        mixed_2N[:, out_N] = odds_K2N[loss_KN[:, ~out_N].sum(1).argmin()][:, out_N]
    return float(SHARES[loss_KN.sum(1).argmin()]), mixed_2N


def _held_out(fit: Fit) -> Array:
    """Return the held-out log-odds of a fit, and those to rank by (2, N)."""
    return np.stack([np.log(fit.held_out / (1 - fit.held_out)), fit.ranks])


def _nearest(first_NH: Array, sources_N: Array, fold_N: Array, whole_N: Any) -> Array:
    """Return the source that each prompt is nearest to without its fold, None for fields."""
    kept_N = np.zeros(len(fold_N), dtype=bool)
    kept_N[whole_N] = True
    nearest_N: Array = np.full(len(fold_N), None)
    for fold in np.unique(fold_N[kept_N]):
        out_N, rest_N = kept_N & (fold_N == fold), kept_N & (fold_N != fold)
        known = describe(first_NH[rest_N], sources_N[rest_N].tolist())
        away_SN = distances(first_NH[out_N], known.mean_SH, known.spread_SH)
        nearest_N[out_N] = np.unique(sources_N[rest_N])[away_SN.argmin(0)]
    return nearest_N


def _of_other_layers(
    read: Callable[[int], list[Array]],
    labels_N: Array,
    groups_N: Sequence[Hashable],
    fold_N: Array,
    layer: Layer,
) -> Array:
    """Return log-odds (N,) by another layer, of the folds without which it is chosen; else nan."""
    found_N = np.full(len(fold_N), np.nan)
    for other in {one for one, _ in layer.inner} - {layer.layer}:
        firsts = layer.chosen_without(other)
        nested_N = nested_scores(read(other), labels_N, fold_N, groups_N, firsts, free=True)
        found_N = np.where(np.isnan(nested_N), found_N, nested_N)
    return found_N


class _Shrunk(NamedTuple):
    """Log-odds drawn by `factor` towards those of the likelihood alone, where answers are few."""

    factor: float
    slope: float
    offset: float
    scores: Array
    ranks: Array

    def applied(self, weights_F: Array, bias: float) -> tuple[Array, float]:
        """Return shrunken weights, the last of which is the likelihood's, and the bias."""
        shrunk_F = self.factor * weights_F
        shrunk_F[-1] += (1 - self.factor) * self.slope
        return shrunk_F, self.factor * bias + (1 - self.factor) * self.offset


def _shrunk(
    fit: Logistic, features_NF: Array, labels_N: Array, groups_N: Sequence[Hashable]
) -> _Shrunk:
    """Shrink log-odds, the less the more questions there are, by what held-out answers support.

    They support those at penalties that were chosen without them; what ships has no wider spread.
    Of the square of a gain in standard errors, t^2, chance adds 1: a share of 1 - 1 / t^2 counts.
    """
    fold_N, said_N = fit.fold_N, _blocks(features_NF)[-1][:, 0]
    right_N, count = np.asarray(labels_N, dtype=np.float64), len(set(groups_N))
    share = count / len(right_N)  # answers to one question tell less
    base_N, usual_N = np.zeros_like(right_N), np.zeros_like(right_N)
    for fold in range(int(fold_N.max()) + 1):
        out_N = fold_N == fold
        base_N[out_N] = base_rate(right_N[~out_N])
        slope, offset = _of_likelihood(said_N[~out_N], right_N[~out_N], share)
        usual_N[out_N] = slope * said_N[out_N] + offset
    moved_N, few = fit.nested - usual_N, math.exp(-((count / FEW) ** 3))
    spread = float(moved_N.std() / max((fit.scores - usual_N).std(), 1e-12))
    odds_SN = usual_N + np.outer(np.linspace(0, 1, 21), moved_N)
    loss_SN = losses_at(odds_SN, right_N)
    best = int(loss_SN.mean(1).argmin())
    gain_N = loss_SN[0] - loss_SN[best]
    error = standard_error(gain_N, groups_N) / max(float(gain_N.mean()), 1e-12)
    supported = best / 20 * min(1.0, spread) * max(0.0, 1 - error**2)
    factor, usual = 1 - few * (1 - supported), _of_likelihood(said_N, right_N, share)
    scores_N = usual_N + factor * moved_N
    return _Shrunk(factor, *usual, scores_N, base_rate(right_N) + scores_N - base_N)


def _of_likelihood(said_N: Array, right_N: Array, share: float) -> tuple[float, float]:
    """Return slope and offset of log-odds by the likelihood alone, drawn towards the base rate.

    Its standard deviation is worth a step of log-odds drawn from a normal distribution.
    """
    from scipy.optimize import minimize

    base, center, scale = base_rate(right_N), said_N.mean(), said_N.std() or 1.0
    x_2N = np.stack([(said_N - center) / scale, np.ones_like(said_N)])

    def loss(point_2: Array) -> tuple[float, Array]:
        odds_N = point_2 @ x_2N
        slope_2 = x_2N @ (sigmoid(odds_N) - right_N) + [point_2[0], 0]
        value = losses_at(odds_N, right_N).sum() + point_2[0] ** 2 / 2
        return float(value), slope_2

    start_2 = np.array([0.0, base])
    found_2 = minimize(loss, start_2, jac=True, method="BFGS").x
    ratio = 2 * share * (loss(start_2)[0] - loss(found_2)[0])
    kept = max(0.0, 1 - SURE / max(ratio, 1e-12))
    slope = kept * float(found_2[0]) / float(scale)
    return slope, base + kept * float(found_2[1] - base) - slope * float(center)


def _fit_along(
    read: Sequence[Array],
    blocks: Sequence[Array],
    along: Steps,
    labels_N: Array,
    groups_N: Sequence[Hashable],
    seed: int,
) -> Logistic:
    """Fit shared rows to ends and to steps, of half the weight each; log-probabilities apart."""
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
        nested=EVERY_FOLD,
        seed=seed,
    )
    *rows, evidence, likelihood = made.weights
    return made._replace(
        weights=[*rows, evidence[: blocks[0].shape[1]], likelihood[:1]],
        losses=made.losses[:ends],
        scores=made.scores[:ends],
        fold_N=made.fold_N[:ends],
        nested=made.nested[:ends],
    )


def _blocks(features_NF: Array) -> list[Array]:
    """Split the features into a penalised block and the likelihood, free as in Platt scaling."""
    varying_NF = varying(features_NF)
    return [varying_NF[:, :-1], varying_NF[:, -1:]]


def evidence_of(features_NF: Array, weights_F: Array, intercept: float) -> Evidence:
    """Return the evidence, with c from 1 / (N + 2) on: N answers support no more."""
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
