from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import grace.methods.paper.probe as probe_module
from grace.errors import DataError, UserInputError
from grace.methods.paper.probe import assign_folds, kfold_scores


def problem(count: int, width: int, dtype: Any = np.float64, seed: int = 0) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    scale, offset = rng.uniform(0.1, 30, width), rng.normal(size=width) * 50
    features = (rng.normal(size=(count, width)) * scale + offset).astype(dtype)
    signal = (features[:, 0] - offset[0]) / scale[0]
    labels = signal + rng.normal(size=count) > 0
    return features, labels, np.arange(count) // 2


def by_scikit_learn(features: Any, labels: Any, fold_N: Any, lam: float) -> np.ndarray:
    from sklearn.linear_model import Ridge

    scores = np.empty(len(labels))
    exact = features.astype(np.float64)
    for fold in np.unique(fold_N):
        train = fold_N != fold
        used = (exact - exact[train].mean(axis=0)) / exact[train].std(axis=0)
        model = Ridge(alpha=lam * train.sum()).fit(used[train], labels[train].astype(float))
        scores[~train] = model.predict(used[~train])
    return scores


@pytest.mark.parametrize("width", [20, 300], ids=["primal", "dual"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-9), (np.float32, 1e-4)])
def test_scores_equal_scikit_learns_ridge_fitted_fold_by_fold(
    width: int, dtype: Any, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_module, "LAMBDAS", (0.1,))
    features, labels, groups = problem(200, width, dtype)
    scores = kfold_scores(features, labels, groups, folds=5)
    oracle = by_scikit_learn(features, labels, assign_folds(groups, 5), 0.1)
    np.testing.assert_allclose(scores, oracle, atol=tolerance)


def test_float32_survives_features_with_a_huge_common_offset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe_module, "LAMBDAS", (0.01,))
    features, labels, groups = problem(300, 10)
    features[:, 3] += 3000.0
    exact = kfold_scores(features, labels, groups, folds=5)
    single = kfold_scores(features.astype(np.float32), labels, groups, folds=5)
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
    fold_N = assign_folds(groups, 5)
    fits: list[tuple[int, set[int]]] = []
    real = probe_module._scores

    def scores(features_ND: Any, label_N: Any, train_N: Any, held_N: Any, lambdas: Any) -> Any:
        fits.append((len(lambdas), set(range(5)) - set(fold_N[train_N].tolist())))
        return real(features_ND, label_N, train_N, held_N, lambdas)

    monkeypatch.setattr(probe_module, "_scores", scores)
    monkeypatch.setattr(probe_module, "LAMBDAS", (0.1, 1.0))
    kfold_scores(features, labels, groups, folds=5)
    for fold in range(5):
        *choosing, (tried, held) = fits[4 * fold : 4 * fold + 4]
        assert (tried, held) == (1, {fold})
        assert all(tried == 2 and fold in held and len(held) == 2 for tried, held in choosing)
        assert len({frozenset(held) for _, held in choosing}) == 3


def test_pure_noise_scores_no_better_than_chance() -> None:
    rng = np.random.default_rng(1)
    features, labels = rng.normal(size=(400, 100)), rng.random(400) < 0.5
    scores = kfold_scores(features, labels, np.arange(400))
    assert np.square(scores - labels).mean() > 0.24


def test_with_two_folds_nothing_is_left_to_choose_a_penalty_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    features, labels, groups = problem(80, 60)
    scores = kfold_scores(features, labels, groups, folds=2)
    monkeypatch.setattr(probe_module, "LAMBDAS", (100.0,))
    np.testing.assert_array_equal(scores, kfold_scores(features, labels, groups, folds=2))


def test_there_is_at_most_one_fold_per_question_and_one_question_is_refused() -> None:
    features, labels, groups = problem(10, 3)
    scores = kfold_scores(features, labels, groups, folds=10)
    np.testing.assert_array_equal(scores, kfold_scores(features, labels, groups, folds=5))
    with pytest.raises(DataError, match=r"at least 2 training questions; raise data\.train"):
        kfold_scores(features, labels, ["q"] * 10)


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
