"""ActCab: the optimisation against torch, soft labels by hand, and the choice of a candidate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from made_up_samples import ScriptedEngine, Splits, response, samples

from grace.errors import DataError
from grace.estimators import Samples, actcab
from grace.estimators.actcab import bin_accuracy, train_probes
from grace.estimators.recalibrated import load_estimator
from grace.metrics import brier

RNG = np.random.default_rng(1)
STATES_ND = RNG.normal(size=(160, 6)) + 2
CORRECT = list(STATES_ND[:, 0] + RNG.normal(size=160) > 2)


def part(numbers: range, **kind: Any) -> Samples:
    responses = [response(i, **kind) for i in numbers]
    return samples(responses, correct=[bool(CORRECT[i]) for i in numbers])


KNOWN = Splits(part(range(100)), part(range(100, 130)))
TEST = part(range(130, 160))


def rate(known: Splits = KNOWN, **options: Any) -> list[Any]:
    engine = ScriptedEngine(states=lambda numbers: STATES_ND[list(numbers)])
    return load_estimator("actcab", options).fit(known, engine, 3).rate(TEST)


def test_the_probe_is_trained_as_torch_trains_it():
    import torch

    x_ND, y_N = STATES_ND[:50], RNG.random(50)
    weights_CD = train_probes(
        x_ND, y_N[:, None], [0.02], [4], batch_size=16, weight_decay=0.1, seed=5
    )
    layer = torch.nn.Linear(6, 1, bias=False, dtype=torch.float64)
    layer.weight.data[0] = 0
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.02, weight_decay=0.1)
    order = np.random.default_rng(5)
    for _ in range(4):
        rows_N = order.permutation(50)
        for first in range(0, 50, 16):
            rows = rows_N[first : first + 16]
            p_B = torch.sigmoid(layer(torch.tensor(x_ND[rows])))[:, 0]
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(p_B, torch.tensor(y_N[rows])).backward()
            optimizer.step()
    assert weights_CD[0] == pytest.approx(layer.weight.detach().numpy()[0], abs=1e-9)


def test_a_probe_trained_among_others_is_the_probe_trained_alone():
    labels_NC = RNG.random((50, 3))
    together = train_probes(STATES_ND[:50], labels_NC, [0.1, 0.01, 0.1], [2, 5, 1])
    for c, (learning_rate, epochs) in enumerate([(0.1, 2), (0.01, 5), (0.1, 1)]):
        alone = train_probes(STATES_ND[:50], labels_NC[:, [c]], [learning_rate], [epochs])
        assert together[c] == pytest.approx(alone[0], abs=1e-12)


def test_a_soft_label_is_the_accuracy_of_the_bin():
    scores_N, label_N = np.array([0.0, 0.4, 0.5, 0.9, 1.0]), np.array([1.0, 0, 1, 0, 1])
    assert bin_accuracy(scores_N, label_N, 2) == pytest.approx([1 / 2, 1 / 2, 2 / 3, 2 / 3, 2 / 3])


def test_every_response_is_scored_for_its_soft_label_by_the_one_probe_that_did_not_see_it(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(actcab, "GRID", ((1e-2, 3),))
    seen, train = list[set[bytes]](), actcab._train

    def spy(rows_ND: Any, labels_NC: Any, seed: int) -> Any:
        seen.append({row.tobytes() for row in rows_ND})
        return train(rows_ND, labels_NC, seed)

    monkeypatch.setattr(actcab, "_train", spy)
    rate(folds=4)
    *folds, last = seen
    assert len(folds) == 4 and len(last) == 100
    assert [sum(row in fold for fold in folds) for row in last] == [3] * 100


def test_the_candidate_with_the_best_validation_brier_is_chosen(monkeypatch: pytest.MonkeyPatch):
    def values_on(rated: Samples, candidate: tuple[float, int]) -> list[Any]:
        monkeypatch.setattr(actcab, "GRID", (candidate,))
        engine = ScriptedEngine(states=lambda numbers: STATES_ND[list(numbers)])
        return load_estimator("actcab").fit(KNOWN, engine, 3).rate(rated)

    grid = actcab.GRID[::3]
    monkeypatch.setattr(actcab, "GRID", grid)
    chosen = rate()
    validation = KNOWN.validation
    scores = [brier(values_on(validation, one), validation.correct) for one in grid]
    assert chosen == pytest.approx(values_on(TEST, grid[int(np.argmin(scores))]), abs=1e-5)


def test_it_learns_what_can_be_learnt():
    values = rate()
    right = np.mean([v for v, c in zip(values, TEST.correct, strict=True) if c])
    wrong = np.mean([v for v, c in zip(values, TEST.correct, strict=True) if not c])
    assert right > wrong + 0.1


def test_equal_labels_are_refused():
    train = samples([response(i) for i in range(5)], correct=[True] * 5)
    with pytest.raises(DataError, match="all 5 training responses are right"):
        rate(Splits(train, KNOWN.validation))


def test_tuning_without_validation_responses_is_refused():
    with pytest.raises(DataError, match="no validation response ended"):
        rate(Splits(KNOWN.train, part(range(100, 130), cut=True)))
