"""The convex fit of the rows and the evidence, on made-up states."""

import functools
import tracemalloc

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from grace import metrics
from grace.cnf import HeadShape
from grace.engines import Features
from grace.evidence import confidence, features
from grace.methods.grace import fit as readout
from grace.methods.grace.fit import choose_layer, fit_evidence, fit_readout, placed, read_by
from grace.methods.grace.rounding import round_rows
from grace.probe import logistic
from grace.probe.logistic import EVERY_FOLD, fit_logistic

WIDTH = 24


def made_up(count=800, seed=0, strength=2.0):
    """Responses of 1 to 5 tokens: states by step, log-probabilities, and grades they explain."""
    rng = np.random.default_rng(seed)
    direction = np.random.default_rng(99).normal(size=WIDTH)
    direction /= np.linalg.norm(direction)
    offset = 3 * np.random.default_rng(98).normal(size=WIDTH)  # as deep models have
    rows = []
    for _ in range(count):
        tokens = int(rng.integers(1, 6))
        steps = offset + rng.normal(size=(tokens + 1, WIDTH)) + rng.normal(size=WIDTH)
        logprobs = -rng.exponential(0.5, tokens)
        odds = strength * (steps - offset).mean(0) @ direction + 2 * (logprobs.mean() + 0.5)
        rows.append((steps, logprobs.tolist(), bool(rng.random() < 1 / (1 + np.exp(-odds)))))
    return rows


def inputs(rows):
    states = Features(
        mean_ND=np.array([steps[1:].mean(0) for steps, _, _ in rows]),
        last_ND=np.array([steps[-1] for steps, _, _ in rows]),
        first_ND=np.array([steps[0] for steps, _, _ in rows]),
    )
    phi = np.array([features(logprobs, -0.2) for _, logprobs, _ in rows])
    return states, phi, np.array([right for _, _, right in rows])


def rated(made, rows, scale=1.0):
    """c as an engine reads it: from the logits of all rows at every step."""
    values = []
    for steps, logprobs, _ in rows:
        logits = scale * steps @ made.rows_ED.T.astype(np.float64)
        readings = (logits[:, :-1] - logits[:, -1:]).tolist()
        values.append(confidence(readings, logprobs, -0.2, made.evidence))
    return np.array(values)


def fit(rows, head=None, groups=None):
    states, phi, right = inputs(rows)
    groups = groups or list(range(len(rows)))
    return fit_readout(lambda _: states, phi, right, groups, head or HeadShape(np.zeros(WIDTH)))


@functools.cache
def usual():
    """The fit to `made_up()`."""
    return fit(made_up())


def test_the_rows_rate_unseen_answers_and_the_evidence_alone_less_well():
    made, unseen = usual(), made_up(600, seed=1)
    right = [row[2] for row in unseen]
    assert metrics.auroc(rated(made, unseen), right) > 0.8
    assert metrics.ece(rated(made, unseen), right) < 0.06
    assert made.losses.mean() < made.alone.mean() - 0.05


def test_held_out_confidences_are_of_fits_that_have_not_seen_the_question():
    """Four answers to each question with states of its own, and grades by a coin."""
    rng = np.random.default_rng(5)
    rows, groups = [], []
    for question in range(40):
        state, right = 3 * rng.normal(size=WIDTH), bool(rng.random() < 0.5)
        for _ in range(4):
            rows.append((state + 0.01 * rng.normal(size=(2, WIDTH)), [-0.5], right))
            groups.append(question)
    made = fit(rows, groups=groups)
    right = [row[2] for row in rows]
    assert metrics.auroc(made.held_out, right) < 0.75


def test_shuffled_grades_teach_nothing():
    rng = np.random.default_rng(6)
    rows = [(s, p, bool(rng.random() < 0.3)) for s, p, _ in made_up(1500)]
    unseen = made_up(1500, seed=2)
    values = rated(fit(rows), unseen)
    assert values.mean() == pytest.approx(0.3, abs=0.06)
    assert metrics.auroc(values, [row[2] for row in unseen]) == pytest.approx(0.5, abs=0.1)


def test_the_read_out_is_a_mean_of_the_fit_with_rows_and_of_100_answers_worth_without():
    count = 800  # enough not to be drawn to the base rate
    rows = made_up(count)
    states, phi, right = inputs(rows)
    made, groups = usual(), list(range(count))
    evidence = [phi[:, :-1], phi[:, -1:]]
    ours, alone = (
        fit_logistic(blocks, right, groups, free=True, nested=EVERY_FOLD)
        for blocks in ([*placed(states), *evidence], evidence)
    )
    weights = np.array([count, 100]) / (count + 100)
    assert made.weights_QD == pytest.approx(weights[0] * np.stack(ours.weights[:3]))
    both = [np.concatenate(some) for some in (ours.weights[3:], alone.weights)]
    assert made.evidence.weights == pytest.approx(weights @ both)
    limit = made.evidence.limit
    odds = np.clip(weights @ [ours.nested, alone.nested], -limit, limit)
    assert np.log(made.held_out / (1 - made.held_out)) == pytest.approx(odds)


def test_all_rows_are_far_below_the_others_where_states_share_a_direction():
    made, unseen = usual(), made_up(300, seed=3)
    logits = np.concatenate([steps for steps, _, _ in unseen]) @ made.rows_ED.T
    assert logits.max() < -5


def test_a_model_that_scales_its_logits_reads_the_same_confidence():
    rows, unseen = made_up(), made_up(50, seed=4)
    plain = rated(usual(), unseen)
    scaled = rated(fit(rows, HeadShape(np.zeros(WIDTH), scale=0.25)), unseen, scale=0.25)
    assert scaled == pytest.approx(plain, abs=1e-5)


def test_where_logits_are_capped_the_rows_stay_at_the_mean_row():
    made = fit(made_up(), HeadShape(np.full(WIDTH, 0.1), capped=True))
    assert made.rows_ED.mean(0) == pytest.approx(np.full(WIDTH, 0.1), abs=1e-3)  # in bfloat16


def test_the_rows_are_bfloat16_numbers_whose_errors_cancel():
    """Else an engine in half precision adds a shift to all c, since states share a direction."""
    rng = np.random.default_rng(7)
    offset, rows = rng.normal(size=256), rng.normal(size=(4, 256))
    apart = np.geomspace(2, 0.02, 256)[:, None] * np.linalg.qr(rng.normal(size=(256, 256)))[0]
    seen, unseen = (offset + rng.normal(size=(500, 256)) @ apart for _ in range(2))
    made = round_rows(rows, [seen] * 3)
    nearest = torch.tensor(rows).bfloat16().double().numpy()
    assert torch.tensor(made).bfloat16().float().numpy().tolist() == made.tolist()
    assert np.abs(made - rows).max() < 0.1

    def error(rounded):
        return unseen @ ((rounded[:3] - rounded[3]) - (rows[:3] - rows[3])).T

    assert np.abs(error(made).mean(0)).max() < 0.05 * np.abs(error(nearest).mean(0)).max()
    assert error(made).std(0).max() < 0.5 * error(nearest).std(0).max()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("width", [6, 700])  # fewer columns than rows, and more
def test_logistic_regression_is_that_of_scikit_learn(width, weighted):
    rng = np.random.default_rng(7)
    x = rng.normal(size=(500, width)) * rng.choice([1, 5, 0.1, 2], width) + 3
    y = rng.random(500) < 1 / (1 + np.exp(-(x[:, 0] - 3) / x[:, 0].std()))
    weight = rng.choice([0.1, 1, 3], 500) if weighted else None
    made = fit_logistic([x], y, list(range(500)), weights_N=weight)
    scaled = (x - x.mean(0)) / x.std(0) / np.sqrt(width)
    strength = 1 / (made.penalties[0] * (len(y) if weight is None else weight.sum()))
    oracle = LogisticRegression(C=strength, tol=1e-10, max_iter=10_000).fit(scaled, y, weight)
    ours = made.bias + x @ made.weights[0]
    np.testing.assert_allclose(ours, oracle.decision_function(scaled), atol=2e-3)


def test_more_columns_than_rows_are_fitted_as_if_every_row_came_three_times():
    """Then there are more rows than columns, and the loss is the same."""
    rng = np.random.default_rng(11)
    wide, known = rng.normal(size=(80, 200)), rng.normal(size=(80, 1))
    y = rng.random(80) < 1 / (1 + np.exp(-2 * wide[:, 0] - known[:, 0]))
    groups = list(range(80))
    made = fit_logistic([wide, known], y, groups, free=True)
    tall = np.vstack([np.hstack([wide, known])] * 3)
    same = fit_logistic([tall[:, :-1], tall[:, -1:]], np.tile(y, 3), groups * 3, free=True)
    assert same.penalties == made.penalties
    assert same.weights[0] == pytest.approx(made.weights[0], abs=1e-5)
    assert same.held_out[1][0] == pytest.approx(made.held_out[1][0], abs=1e-3)


@pytest.mark.parametrize("jitter", [1e-4, 1e-12])
def test_rows_that_are_nearly_equal_have_a_fit(
    jitter: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their kernel has no factor in single precision until enough is added to its diagonal."""
    monkeypatch.setitem(logistic.JITTER, np.float32, jitter)
    rng = np.random.default_rng(12)
    few = np.repeat(1e3 * rng.normal(size=(6, 900)), 100, axis=0)
    wide = few + 1e-4 * rng.normal(size=few.shape)
    y = np.repeat(rng.random(6), 100) > rng.random(600)
    made = fit_logistic([wide, np.ones((600, 1))], y, list(range(600)), free=True)
    odds = wide @ made.weights[0] + made.bias
    shares = y.reshape(6, 100).mean(1)
    assert np.ptp(odds.reshape(6, 100), axis=1).max() < 0.1
    assert 1 / (1 + np.exp(-odds.reshape(6, 100).mean(1))) == pytest.approx(shares, abs=0.1)


def test_a_block_of_noise_is_shrunk_and_the_other_kept():
    rng = np.random.default_rng(8)
    signal, noise = rng.normal(size=(400, 2)), rng.normal(size=(400, 300))
    y = rng.random(400) < 1 / (1 + np.exp(-2 * signal[:, 0]))
    made = fit_logistic([noise, signal], y, list(range(400)))
    assert made.penalties[0] > made.penalties[1]
    fresh = rng.normal(size=(2000, 2))
    right = rng.random(2000) < 1 / (1 + np.exp(-2 * fresh[:, 0]))
    odds = fresh @ made.weights[1] + rng.normal(size=(2000, 300)) @ made.weights[0]
    assert metrics.auroc(1 / (1 + np.exp(-odds)), right) > 0.8


def test_noise_beside_a_free_feature_leaves_a_fit_of_that_alone():
    rng = np.random.default_rng(10)
    noise, known = rng.normal(size=(60, 40)), 3 * rng.normal(size=(60, 1))
    y = rng.random(60) < 1 / (1 + np.exp(-known[:, 0]))
    groups = list(range(60))
    made = fit_logistic([noise, known], y, groups, free=True)
    wanted = fit_logistic([np.zeros((60, 1)), known], y, groups, free=True)
    shrunk = fit_logistic([noise, known], y, groups)
    assert made.weights[1] == pytest.approx(wanted.weights[1], rel=0.05)
    assert shrunk.weights[1] < 0.9 * made.weights[1]


@pytest.mark.parametrize("seed", range(6))
def test_a_likelihood_that_hardly_varies_is_no_evidence(seed):
    """A nearly deterministic model; its mean likelihood is no exact number."""
    rng = np.random.default_rng(seed)
    phi = np.array([features(-rng.exponential(2e-4, 3), -1e-4) for _ in range(300)])
    made = fit_evidence(phi, rng.random(300) < 0.5)
    assert np.abs(made.weights).max() < 100
    assert np.ptp([made.shift_of(row) for row in phi]) < 0.5


def test_a_layer_is_rated_on_whole_questions_of_many_answers(monkeypatch):
    """The time of a fit grows with their square or cube."""
    states, phi, right = inputs(made_up(900))
    groups = [row // 3 for row in range(900)]
    rated_on = []

    def quick_loss(blocks, labels_N, fold_N, groups_N, **options):
        places = [int(np.flatnonzero(row == phi[:, 0])[0]) for row in blocks[3][:, 0]]
        rated_on.append([groups[place] for place in places])
        assert {len(block) for block in blocks} == {len(labels_N)} == {len(fold_N)}
        assert list(groups_N) == rated_on[-1]
        return logistic.quick_loss(blocks, labels_N, fold_N, groups_N, **options)

    monkeypatch.setattr(readout, "quick_loss", quick_loss)
    noise, told = Features(*np.random.default_rng(0).normal(size=(3, 900, WIDTH))), {}
    read = {0: noise, 7: states}.__getitem__
    for most in (5000, 500):
        monkeypatch.setattr(readout, "COMPARED", most)
        every = read_by(read, phi)
        chosen = choose_layer(every, [7, 0], right, groups, free=True, tell=told.__setitem__)
        assert chosen.layer == 7 and {layer for layer, _ in chosen.inner} == {7}
        assert told[7] < told[0] - 0.03
    assert [len(groups) for groups in rated_on[::2]] == [900, 450]
    assert all(rated_on[2].count(group) == 3 for group in rated_on[2])


def test_memory_grows_with_the_answers_and_not_with_their_square(monkeypatch):
    """Of many answers some span the weights, which loses little."""
    rng = np.random.default_rng(3)
    wide = rng.normal(size=(1600, 10)) @ rng.normal(size=(10, 3000))
    wide = (wide + rng.normal(size=wide.shape)).astype(np.float32)
    right = rng.random(1600) < 1 / (1 + np.exp(-wide[:, 0]))

    def peak(count):
        tracemalloc.start()
        made = fit_logistic([wide[:count]], right[:count], list(range(count)))
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most, made.losses.mean()

    peak(100)  # imports
    exact = peak(800)[1]
    monkeypatch.setattr(logistic, "LANDMARKS", 100)
    (few, loss), (many, _) = peak(800), peak(1600)
    assert many < 2.5 * few
    assert loss == pytest.approx(exact, abs=0.03)
