"""Linear probe: grouped k-fold scores and a fitted estimator, in closed form.

Ridge with an unpenalised bias, `min mean (y - w.x - b)^2 + lambda |w|^2` on features
standardised with the training rows' own mean and spread.

- Up to 2,048 features: the Gram matrix of every fold is computed once; a training set is the
  total minus the folds held out. Memory: (k + 3) d^2 numbers beside the features.
- More features and at least twice as many rows: all folds at once by preconditioned conjugate
  gradients to the working precision. Memory: a copy of the features and 2 d^2 numbers.
- Fewer training rows than features: the dual form on n x n kernels.

Shapes: N rows, D features, L lambdas.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Literal

import numpy as np

from grace.probe.adamw import AdamW, fit_adamw
from grace.probe.problem import FoldFit, Problem, make_problem
from grace.probe.rows import Array, Probe, assign_folds, checked

__all__ = ["AdamW", "Probe", "assign_folds", "fit_probe", "kfold_scores"]

Kind = Literal["ridge", "adamw"]
LAMBDAS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2)
ITERATIVE_WIDTH = 2048


def kfold_scores(
    features_ND: Array,
    labels_N: Array,
    groups_N: Sequence[Hashable],
    *,
    folds: int = 10,
    kind: Kind = "ridge",
    lambdas: Sequence[float] = LAMBDAS,
    inner: int = 3,
    standardise: bool = True,
    blocks: Sequence[int] = (),
    adamw: AdamW | None = None,
    seed: int = 0,
) -> Array:
    """Score every row with a probe that has seen neither the row nor its group.

    Args:
        features_ND: float32 or float64; the closed form works in that precision.
        labels_N: 1 or True where the response is right.
        groups_N: question of each row.
        folds: number of folds.
        kind: closed-form ridge, or ActCab's short AdamW.
        lambdas: ridge penalties per training row; with more than one, each outer fold chooses
            its own on `inner` folds that are held out of its training set.
        inner: how many folds take their turn as the inner held-out fold.
        standardise: scale by the training rows' spread.
        blocks: sizes of consecutive feature parts that should weigh the same in total.
        adamw: settings of `kind="adamw"`.
        seed: seed of the folds (and of AdamW's batches).

    Returns:
        Uncalibrated scores, float64 of shape (N,).

    Raises:
        UserInputError: features that are not finite, equal labels, or fewer groups than folds.
    Source: arXiv 2509.09438 section 3.2.2.
    """
    features_ND, label_N = checked(features_ND, labels_N)
    fold_N = assign_folds(groups_N, folds, seed)
    held = [np.flatnonzero(fold_N == fold) for fold in range(folds)]
    if kind == "adamw":
        trains = [np.flatnonzero(fold_N != fold) for fold in range(folds)]
        settings = adamw or AdamW()
        probes = [fit_adamw(features_ND[rows], label_N[rows], settings, seed) for rows in trains]
    else:
        problem = make_problem(features_ND, label_N, fold_N, standardise=standardise, blocks=blocks)
        solver, outers = _Solver(problem), [(fold,) for fold in range(folds)]
        chosen = _choose_lambdas(problem, solver, outers, lambdas, inner)
        probes = solver.fit([FoldFit(*pair) for pair in zip(outers, chosen, strict=True)])
    scores_N = np.empty(len(label_N), dtype=np.float64)
    for rows, probe in zip(held, probes, strict=True):
        scores_N[rows] = probe.predict(features_ND[rows])
    return scores_N


def fit_probe(
    features_ND: Array,
    labels_N: Array,
    groups_N: Sequence[Hashable],
    *,
    folds: int = 10,
    kind: Kind = "ridge",
    lambdas: Sequence[float] = LAMBDAS,
    inner: int = 3,
    standardise: bool = True,
    blocks: Sequence[int] = (),
    adamw: AdamW | None = None,
    seed: int = 0,
) -> Probe:
    """Fit one probe on all rows, for scoring rows of other splits (see `kfold_scores`).

    Raises:
        UserInputError: features that are not finite, equal labels, or fewer groups than folds.
    """
    features_ND, label_N = checked(features_ND, labels_N)
    if kind == "adamw":
        return fit_adamw(features_ND, label_N, adamw or AdamW(), seed)
    fold_N = assign_folds(groups_N, 1 if len(lambdas) == 1 else folds, seed)
    problem = make_problem(features_ND, label_N, fold_N, standardise=standardise, blocks=blocks)
    solver = _Solver(problem)
    lam = _choose_lambdas(problem, solver, [()], lambdas, inner)[0]
    return solver.fit([FoldFit((), lam)])[0]


class _Solver:
    """Iterates where that is faster; solves directly elsewhere and where it did not converge."""

    def __init__(self, problem: Problem) -> None:
        from grace.probe.direct import Direct  # on SciPy, as Iterative
        from grace.probe.iterative import SAMPLE_PER_FEATURE, Iterative

        self._direct = Direct(problem)
        rows = len(problem.label_N)
        wide = problem.width > ITERATIVE_WIDTH and rows >= SAMPLE_PER_FEATURE * problem.width
        self._iterative = Iterative(problem) if wide else None

    def fit(self, jobs: Sequence[FoldFit]) -> list[Probe]:
        found: list[Probe | None] = [None] * len(jobs)
        if self._iterative is not None:
            found = self._iterative.fit(jobs)
        rest = [job for job, probe in zip(jobs, found, strict=True) if probe is None]
        direct = iter(self._direct.fit(rest))
        return [next(direct) if probe is None else probe for probe in found]


def _choose_lambdas(
    problem: Problem,
    solver: _Solver,
    outers: Sequence[tuple[int, ...]],
    lambdas: Sequence[float],
    inner: int,
) -> list[float]:
    """Return, for each set of outer folds, the lambda that does best on inner held-out folds."""
    if len(lambdas) == 1:
        return [lambdas[0]] * len(outers)
    pairs = [(outer, fold) for outer in outers for fold in _inner_folds(problem, outer, inner)]
    jobs = [FoldFit((*outer, fold), lam) for outer, fold in pairs for lam in lambdas]
    probes = solver.fit(jobs)
    error_OL = {outer: np.zeros(len(lambdas)) for outer in outers}
    for number, (outer, fold) in enumerate(pairs):
        rows = np.flatnonzero(problem.fold_N == fold)
        held_ND, label_N = problem.features_ND[rows], problem.label_N[rows]
        for index in range(len(lambdas)):
            score_N = probes[number * len(lambdas) + index].predict(held_ND)
            error_OL[outer][index] += np.square(score_N - label_N).sum()
    return [lambdas[int(np.argmin(error_OL[outer]))] for outer in outers]


def _inner_folds(problem: Problem, outer: tuple[int, ...], inner: int) -> list[int]:
    rest = [fold for fold in range(problem.folds) if fold not in outer]
    start = (outer[0] if outer else 0) % len(rest)
    return (rest[start:] + rest[:start])[: max(1, min(inner, len(rest) - 1))]
