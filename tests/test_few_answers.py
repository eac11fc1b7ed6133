"""Fits of made-up worlds: what few answers support, and what held-out figures say of noise."""

from __future__ import annotations

import numpy as np
import pytest

from grace.cli.commands.fit import _measure
from grace.cnf import HeadShape
from grace.engines import Features
from grace.methods.grace.fit import (
    _of_likelihood,
    choose_layer,
    fit_evidence,
    fit_readout,
    placed,
    read_by,
)
from grace.pipeline.stages.graded import GradedRow
from grace.probe.rows import sigmoid

WIDTH, LAYERS = 8, (0, 7)
WORLDS = {  # how much is to be learned, and the log-odds of an average answer
    "nothing": (0.0, 0.0),
    "easy": (2.0, 0.0),
    "hard": (0.5, 0.0),
    "unbalanced": (1.0, -2.2),
}


def draw(world, count, seed, layers=LAYERS):
    """States by layer, features, and the chance that each answer is right."""
    rng, (slope, level) = np.random.default_rng(seed), WORLDS[world]
    told_N, said_N = rng.normal(size=(2, count))
    states = {}
    for layer in layers:
        of_layer = np.random.default_rng(layer)
        along_3D = of_layer.normal(size=(3, WIDTH))
        mix_DD = of_layer.normal(size=(WIDTH, WIDTH)) / WIDTH**0.5
        strength = 0.4 if layer else 0.2
        states[layer] = Features(
            *(
                (rng.normal(size=(count, WIDTH)) + strength * told_N[:, None] * along_D) @ mix_DD
                for along_D in along_3D
            )
        )
    phi_NF = 0.5 * rng.normal(size=(count, 7)) + 0.3 * said_N[:, None]
    return states, phi_NF, sigmoid(level + slope * told_N + 0.5 * slope * said_N)


def fitted(world, count, seed):
    """A fit to answers of a world, some right and some wrong, their grades, and its layer."""
    states, phi_NF, chance_N = draw(world, count, [seed, count])
    for attempt in range(100):
        right_N = np.random.default_rng([seed, count, attempt]).random(count) < chance_N
        if 0 < right_N.sum() < count:
            break
    read, groups = states.__getitem__, list(range(count))
    layer = choose_layer(read_by(read, phi_NF), LAYERS, right_N, groups, free=True)
    head = HeadShape(np.zeros(WIDTH))
    return fit_readout(read, phi_NF, right_N, groups, head, layer=layer), right_N, layer.layer


def log_loss(made, layer, world, seed):
    """The expected log loss of new answers."""
    states, phi_NF, chance_N = draw(world, 2000, [seed, 0])
    pairs = zip(placed(states[layer]), made.weights_QD, strict=True)
    state_N = sum(state_ND @ weights_D for state_ND, weights_D in pairs)
    c_N = np.array(
        [
            made.evidence.confidence(state, made.evidence.shift_of(phi))
            for state, phi in zip(state_N, phi_NF, strict=True)
        ]
    )
    return float(np.mean(-chance_N * np.log(c_N) - (1 - chance_N) * np.log(1 - c_N))), chance_N


@pytest.mark.slow
@pytest.mark.parametrize("count", [20, 50, 100])
@pytest.mark.parametrize("world", WORLDS)
def test_few_answers_are_never_worse_than_the_base_rate_on_average(world, count):
    gains = []
    for seed in range(16):
        made, right_N, layer = fitted(world, count, seed)
        loss, chance_N = log_loss(made, layer, world, seed)
        rate = right_N.mean()
        base = float(np.mean(-chance_N * np.log(rate) - (1 - chance_N) * np.log(1 - rate)))
        gains.append(base - loss)
    error = np.std(gains) / len(gains) ** 0.5  # of 16 fits, one of which may have had bad luck
    print(f"{world}, {count} answers: log loss {-np.mean(gains):+.4f} against the base rate's")
    assert np.mean(gains) > -2e-4 - 2 * error


@pytest.mark.parametrize("count", [20, 50, 100])
@pytest.mark.parametrize("world", WORLDS)
def test_the_likelihood_of_few_answers_costs_nothing_where_it_tells_nothing(world, count):
    """What the fit is drawn towards, on many more draws than a whole fit allows."""
    gains = []
    for seed in range(100):
        _, phi_NF, chance_N = draw(world, count, [seed, count], ())
        right_N = np.random.default_rng([seed, count]).random(count) < chance_N
        if not 0 < right_N.sum() < count:
            continue
        slope, offset = _of_likelihood(phi_NF[:, -1], right_N.astype(float), 1.0)
        _, phi_NF, chance_N = draw(world, 500, [seed, 0], ())
        odds_N, base = slope * phi_NF[:, -1] + offset, np.log(right_N.mean() / (~right_N).mean())
        losses = [np.logaddexp(0, odds) - chance_N * odds for odds in (base, odds_N)]
        gains.append(np.mean(losses[0]) - np.mean(losses[1]))
    assert np.mean(gains) > -1e-3


def test_a_hundred_answers_keep_what_their_likelihood_tells():
    """A fit that held-out answers do not support falls back to the likelihood."""
    rng = np.random.default_rng(0)
    said_N = rng.normal(size=4100)
    right_N = rng.random(4100) < sigmoid(1.2 * said_N)
    phi_NF = np.column_stack([rng.normal(size=(4100, 6)), said_N])
    made = fit_evidence(phi_NF[:100], right_N[:100])
    c_N = np.array([sigmoid(made.shift_of(row)) for row in phi_NF[100:]])
    brier, constant = np.mean((c_N - right_N[100:]) ** 2), right_N.mean() * (1 - right_N.mean())
    assert brier < constant - 0.03


@pytest.mark.slow
@pytest.mark.parametrize("count", [100, 300])
def test_the_interval_of_a_fit_to_noise_holds_an_auroc_of_50(count):
    held, values = [], []
    for seed in range(100):
        made, right_N, _ = fitted("nothing", count, seed)
        rows = [GradedRow(row, right) for row, right in enumerate(right_N.tolist())]
        value, low, high = _measure(made, rows, range(count), range(count))["auroc"]
        held.append(low <= 0.5 <= high)
        values.append(value)
    print(
        f"{count} answers: AUROC {np.mean(values):.3f} on average, 0.5 held in {np.mean(held):.0%}"
    )
    assert np.mean(held) >= 0.93
    assert np.mean(values) == pytest.approx(0.5, abs=0.02)


def test_with_nothing_to_learn_few_answers_get_nearly_their_base_rate():
    made, right_N, _ = fitted("nothing", 60, 0)
    assert np.ptp(made.held_out) < 0.2
    rate = (right_N.sum() + 0.5) / (len(right_N) + 1)
    assert sigmoid(made.evidence.shift_of(made.evidence.center)) == pytest.approx(rate, abs=0.05)


def test_held_out_figures_come_from_choices_that_have_not_seen_the_fold():
    """Grades of one fold changed: its own held-out confidences stay as they are."""
    states, phi_NF, chance_N = draw("easy", 800, 1)
    right_N = np.random.default_rng(1).random(800) < chance_N
    groups, head = list(range(800)), HeadShape(np.zeros(WIDTH))

    def made(grades_N):
        read = states.__getitem__
        layer = choose_layer(read_by(read, phi_NF), LAYERS, grades_N, groups, free=True)
        return fit_readout(read, phi_NF, grades_N, groups, head, layer=layer)

    one = made(right_N)
    other = made(np.where(one.fold_N == 2, ~right_N, right_N))
    moved_N = np.abs(one.held_out - other.held_out)
    assert moved_N[one.fold_N == 2].max() < 5e-3 < 0.05 < moved_N[one.fold_N != 2].mean()
