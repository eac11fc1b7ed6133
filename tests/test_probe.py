from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import grace.probe as probe_module
from grace.errors import DataError, UserInputError
from grace.probe import assign_folds, kfold_scores


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
    width: int, dtype: Any, tolerance: float
) -> None:
    features, labels, groups = problem(200, width, dtype)
    scores = kfold_scores(features, labels, groups, folds=5, lambdas=(0.1,))
    oracle = by_scikit_learn(features, labels, assign_folds(groups, 5), 0.1)
    np.testing.assert_allclose(scores, oracle, atol=tolerance)


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
    fold_N, row_of = (
        assign_folds(groups, 5),
        {value: row for row, value in enumerate(features[:, 0])},
    )
    fits: list[tuple[int, set[int]]] = []
    real = probe_module._ridge

    def ridge(features_ND: Any, label_N: Any, lambdas: Any, blocks: Any) -> Any:
        seen = {int(fold_N[row_of[value]]) for value in features_ND[:, 0]}
        fits.append((len(lambdas), set(range(5)) - seen))
        return real(features_ND, label_N, lambdas, blocks)

    monkeypatch.setattr(probe_module, "_ridge", ridge)
    kfold_scores(features, labels, groups, folds=5, lambdas=(0.1, 1.0))
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


def test_blocks_give_a_narrow_part_the_weight_of_a_wide_one() -> None:
    rng = np.random.default_rng(0)
    labels = rng.random(300) < 0.5
    narrow = labels[:, None] + rng.normal(size=(300, 1))
    features = np.concatenate([rng.normal(size=(300, 250)), narrow], axis=1)
    groups = np.arange(300)
    plain = np.square(kfold_scores(features, labels, groups) - labels).mean()
    blocks = np.square(kfold_scores(features, labels, groups, blocks=(250, 1)) - labels).mean()
    assert blocks < plain


def test_with_two_folds_nothing_is_left_to_choose_a_penalty_on() -> None:
    features, labels, groups = problem(80, 60)
    largest = kfold_scores(features, labels, groups, folds=2, lambdas=[100.0])
    scores = kfold_scores(features, labels, groups, folds=2)
    np.testing.assert_array_equal(scores, largest)


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
