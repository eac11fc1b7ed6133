from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import grace.probe as probe_module
import grace.probe.iterative as iterative_module
from grace.errors import UserInputError
from grace.probe import AdamW, assign_folds, fit_probe, kfold_scores
from grace.probe.direct import Direct


def problem(count: int, width: int, dtype: Any = np.float64, seed: int = 0) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    scale, offset = rng.uniform(0.1, 30, width), rng.normal(size=width) * 50
    features = (rng.normal(size=(count, width)) * scale + offset).astype(dtype)
    signal = (features[:, 0] - offset[0]) / scale[0]
    labels = signal + rng.normal(size=count) > 0
    return features, labels, np.arange(count) // 2


def by_scikit_learn(
    features: Any, labels: Any, fold_N: Any, lam: float, standardise: bool
) -> np.ndarray:
    from sklearn.linear_model import Ridge

    scores = np.empty(len(labels))
    exact = features.astype(np.float64)
    for fold in np.unique(fold_N):
        train = fold_N != fold
        used = exact
        if standardise:
            used = (exact - exact[train].mean(axis=0)) / exact[train].std(axis=0)
        model = Ridge(alpha=lam * train.sum()).fit(used[train], labels[train].astype(float))
        scores[~train] = model.predict(used[~train])
    return scores


@pytest.mark.parametrize("standardise", [True, False])
@pytest.mark.parametrize("width", [20, 300], ids=["primal", "dual"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-9), (np.float32, 1e-4)])
def test_scores_equal_scikit_learns_ridge_fitted_fold_by_fold(
    width: int, standardise: bool, dtype: Any, tolerance: float
) -> None:
    features, labels, groups = problem(200, width, dtype)
    scores = kfold_scores(
        features, labels, groups, folds=5, lambdas=(0.1,), standardise=standardise
    )
    oracle = by_scikit_learn(features, labels, assign_folds(groups, 5), 0.1, standardise)
    np.testing.assert_allclose(scores, oracle, atol=tolerance)


@pytest.mark.parametrize("standardise", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-8), (np.float32, 1e-4)])
@pytest.mark.parametrize("lam", [1e-4, 0.1, 100.0])
def test_iterating_gives_the_scores_of_solving_directly(
    lam: float, dtype: Any, tolerance: float, standardise: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    features, labels, groups = problem(400, 60, dtype)
    options: dict[str, Any] = {"folds": 5, "lambdas": (lam,), "standardise": standardise}
    direct = kfold_scores(features, labels, groups, **options)
    monkeypatch.setattr(probe_module, "ITERATIVE_WIDTH", 10)
    monkeypatch.setattr(Direct, "fit", lambda self, jobs: [] if not jobs else 1 / 0)
    iterative = kfold_scores(features, labels, groups, **options)
    np.testing.assert_allclose(iterative, direct, atol=tolerance)


def test_iterating_chooses_the_lambdas_of_solving_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels, groups = problem(400, 60)
    direct = kfold_scores(features, labels, groups)
    monkeypatch.setattr(probe_module, "ITERATIVE_WIDTH", 10)
    np.testing.assert_allclose(kfold_scores(features, labels, groups), direct, atol=1e-7)


def test_what_does_not_converge_is_solved_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels, groups = problem(400, 60)
    direct = kfold_scores(features, labels, groups, lambdas=(0.1,))
    monkeypatch.setattr(probe_module, "ITERATIVE_WIDTH", 10)
    monkeypatch.setattr(iterative_module, "MAX_STEPS", 2)
    np.testing.assert_array_equal(kfold_scores(features, labels, groups, lambdas=(0.1,)), direct)


def test_float32_survives_features_with_a_huge_common_offset() -> None:
    features, labels, groups = problem(300, 10)
    features[:, 3] += 3000.0
    exact = kfold_scores(features, labels, groups, folds=5, lambdas=(0.01,))
    single = kfold_scores(features.astype(np.float32), labels, groups, folds=5, lambdas=(0.01,))
    np.testing.assert_allclose(single, exact, atol=1e-4)


def test_no_row_of_a_question_sees_another_row_of_it() -> None:
    groups = np.random.default_rng(0).integers(0, 40, 400)
    fold_N = assign_folds(groups, 10, seed=3)
    assert all(len(set(fold_N[groups == group])) == 1 for group in set(groups))
    sizes = np.bincount(fold_N)
    assert sizes.max() - sizes.min() <= np.bincount(groups).max()


def test_the_label_of_a_row_does_not_change_the_scores_of_its_own_question() -> None:
    features, labels, groups = problem(120, 15)
    scores = kfold_scores(features, labels, groups, folds=5)
    flipped = labels.copy()
    flipped[:2] = ~flipped[:2]
    again = kfold_scores(features, flipped, groups, folds=5)
    held = assign_folds(groups, 5) == assign_folds(groups, 5)[0]
    np.testing.assert_allclose(scores[held], again[held], atol=1e-12)
    assert np.abs(scores[~held] - again[~held]).max() > 1e-6


def test_the_fold_that_is_scored_takes_no_part_in_choosing_its_lambda(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    features, labels, groups = problem(120, 15)
    jobs: list[Any] = []
    real = Direct.fit
    monkeypatch.setattr(
        Direct, "fit", lambda self, asked: (jobs.append(asked), real(self, asked))[1]
    )
    kfold_scores(features, labels, groups, folds=5, lambdas=(0.1, 1.0), inner=3)
    choosing, scoring = ([job.held for job in asked] for asked in jobs)
    assert sorted(set(scoring)) == [(fold,) for fold in range(5)]
    assert len(set(choosing)) == 5 * 3
    assert all(outer != inner for outer, inner in choosing)


def test_pure_noise_scores_no_better_than_chance() -> None:
    rng = np.random.default_rng(1)
    features, labels = rng.normal(size=(400, 100)), rng.random(400) < 0.5
    scores = kfold_scores(features, labels, np.arange(400))
    assert np.square(scores - labels).mean() > 0.24


def test_the_chosen_lambda_beats_the_extremes_of_the_grid() -> None:
    features, labels, groups = problem(400, 200)
    chosen = np.square(kfold_scores(features, labels, groups) - labels).mean()
    for lam in (1e-4, 1e2):
        fixed = np.square(kfold_scores(features, labels, groups, lambdas=(lam,)) - labels).mean()
        assert chosen < fixed


def test_primal_and_dual_agree_on_the_same_rows() -> None:
    features, labels, groups = problem(100, 60)
    wide = np.concatenate([features, np.ones((100, 60))], axis=1)
    primal = fit_probe(features, labels, groups, lambdas=(0.3,))
    dual = fit_probe(wide, labels, groups, lambdas=(0.3,))
    np.testing.assert_allclose(dual.predict(wide), primal.predict(features), atol=1e-10)
    np.testing.assert_allclose(dual.weights[60:], 0, atol=1e-12)


def test_blocks_give_a_narrow_part_the_weight_of_a_wide_one() -> None:
    rng = np.random.default_rng(0)
    labels = rng.random(300) < 0.5
    narrow = labels[:, None] + rng.normal(size=(300, 1))
    features = np.concatenate([rng.normal(size=(300, 250)), narrow], axis=1)
    groups = np.arange(300)
    plain = np.square(kfold_scores(features, labels, groups) - labels).mean()
    blocks = np.square(kfold_scores(features, labels, groups, blocks=(250, 1)) - labels).mean()
    assert blocks < plain


def test_a_constant_feature_changes_nothing() -> None:
    features, labels, groups = problem(100, 10)
    padded = np.concatenate([features, np.full((100, 1), 7.0)], axis=1)
    np.testing.assert_allclose(
        kfold_scores(padded, labels, groups), kfold_scores(features, labels, groups), atol=1e-9
    )


def test_equal_columns_without_penalty_still_give_finite_scores() -> None:
    features, labels, groups = problem(100, 5)
    twice = np.concatenate([features, features], axis=1).astype(np.float32)
    assert np.isfinite(kfold_scores(twice, labels, groups, lambdas=(0.0,))).all()


def test_a_fitted_probe_scores_new_rows_with_training_statistics() -> None:
    features, labels, groups = problem(400, 8)
    probe = fit_probe(features[:300], labels[:300], groups[:300])
    centred = (features[300:] - probe.mean) / probe.scale
    np.testing.assert_allclose(probe.predict(features[300:]), centred @ probe.weights + probe.bias)
    assert ((probe.predict(features[300:]) > 0.5) == labels[300:]).mean() > 0.7


def test_adamw_learns_with_a_large_rate_and_barely_moves_at_actcabs() -> None:
    features, labels, groups = problem(400, 8)
    settings = AdamW(learning_rate=0.05, epochs=10)
    scores = kfold_scores(features, labels, groups, folds=5, kind="adamw", adamw=settings)
    assert ((scores > 0.5) == labels).mean() > 0.7
    assert kfold_scores(features, labels, groups, folds=5, kind="adamw").std() < 0.05


def test_adamw_takes_the_steps_of_torchs_adamw() -> None:
    import torch

    features, labels, groups = problem(64, 5)
    settings = AdamW(learning_rate=0.02, epochs=30, batch_size=64, weight_decay=0.1)
    probe = fit_probe(features, labels, groups, kind="adamw", adamw=settings)
    rows = torch.tensor((features - features.mean(axis=0)) / features.std(axis=0))
    weights = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.AdamW([weights], lr=0.02, weight_decay=0.1)
    start = float(labels.mean())
    for _ in range(30):
        optimizer.zero_grad()
        error = rows @ weights[:5] + weights[5] + start - torch.tensor(labels, dtype=torch.float64)
        error.square().mean().backward()
        optimizer.step()
    np.testing.assert_allclose(probe.weights, weights[:5].detach().numpy(), atol=1e-9)


def test_scores_are_the_same_for_the_same_seed() -> None:
    features, labels, groups = problem(100, 12)
    first = kfold_scores(features, labels, groups, seed=4)
    np.testing.assert_array_equal(first, kfold_scores(features, labels, groups, seed=4))


def test_too_few_questions_are_refused_with_the_way_out() -> None:
    features, labels, groups = problem(10, 3)
    with pytest.raises(UserInputError, match=r"10 folds need at least 10 questions, got 5; lower"):
        kfold_scores(features, labels, groups)


def test_equal_labels_are_refused() -> None:
    features, _, groups = problem(40, 3)
    with pytest.raises(UserInputError, match="all 40 responses have the same label"):
        kfold_scores(features, np.ones(40), groups)


def test_features_that_are_not_finite_are_refused_with_their_row() -> None:
    features, labels, groups = problem(40, 3)
    features[17, 1] = np.nan
    with pytest.raises(UserInputError, match="row 17 are not finite"):
        kfold_scores(features, labels, groups)


def test_half_precision_features_are_worked_on_in_float32() -> None:
    features, labels, groups = problem(60, 3)
    small = (features / 100).astype(np.float16)
    scores = kfold_scores(small, labels, groups, folds=5)
    np.testing.assert_allclose(
        scores, kfold_scores(small.astype(np.float32), labels, groups, folds=5)
    )
