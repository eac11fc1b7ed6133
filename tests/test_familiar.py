"""Several sources in one fit: folds, weights, and what counts where a prompt is strange."""

import dataclasses
import json

import numpy as np
import pytest

from grace.cnf import HeadShape
from grace.engines import Features
from grace.errors import ModelError
from grace.evidence import FEATURES, Evidence, along, confidence, distance_in, features
from grace.evidence.familiar import Familiar, Near, Own
from grace.methods.grace.fit import fit_evidence, fit_readout, knowing_prompts, knowing_sources
from grace.methods.grace.prompts import describe, distances
from grace.probe.logistic import fit_logistic
from grace.probe.rows import Sourced, sources_in, weights_of

WIDTH = 20
GROUPS = [Sourced(name, n) for name, size in (("a", 60), ("b", 30), ("c", 90)) for n in range(size)]
KNOWN = Familiar(2.0, (0.0, 0.0, 0.0, 0.5, 0.0, 0.0, 0.4, -1.0), -0.3)


def test_sources_weigh_the_same_whatever_their_size():
    weight_N, names = weights_of(GROUPS), [group.source for group in GROUPS]
    assert sources_in(GROUPS) == names and weight_N.mean() == pytest.approx(1)
    sums = [weight_N[[name == one for name in names]].sum() for one in "abc"]
    assert sums == pytest.approx([60, 60, 60])


@pytest.mark.parametrize("groups", [list(range(40)), [Sourced("", n) for n in range(40)]])
def test_one_source_has_no_weights(groups):
    assert sources_in(groups) == [] and (weights_of(groups) == 1).all()


def test_the_distance_is_that_from_the_nearest_source():
    rng = np.random.default_rng(0)
    states = np.concatenate([rng.normal(5 * n, 1 + n, size=(200, 50)) for n in range(3)])
    prompts = describe(states, [name for name in "abc" for _ in range(200)])
    within = distances(states, prompts.mean_SH, prompts.spread_SH).min(0)
    assert 0.9 < within.mean() < 1.1 and prompts.near < within.max() < 2
    assert (within <= prompts.near).mean() == pytest.approx(0.95, abs=0.01)
    far = distances(np.full((1, 50), -40.0), prompts.mean_SH, prompts.spread_SH)
    assert far.min() == pytest.approx(
        (50 / 3) ** 2, rel=0.1
    )  # the third source has the widest spread


def test_a_source_that_no_other_is_like_does_not_make_strangers_familiar():
    """`near` is what prompts keep from their own source, so that no odd one widens it."""
    rng = np.random.default_rng(1)
    akin = [rng.normal(0, 1, size=(50, 200)) + rng.normal(0, 0.5, 200) for _ in range(4)]
    odd = rng.normal(10, 1, size=(50, 200))
    names = [str(n) for n in range(5) for _ in range(50)]
    prompts = describe(np.concatenate([*akin, odd]), names)
    known = dataclasses.replace(KNOWN, near=prompts.near)
    own = rng.normal(0, 1, size=(50, 200)) + akin[0].mean(0)
    left_out = rng.normal(0, 1, size=(50, 200)) + rng.normal(0, 0.5, 200)
    away = [
        distances(one, prompts.mean_SH, prompts.spread_SH).min(0) for one in (own, left_out, -odd)
    ]
    of_own, of_akin, of_strange = [np.mean([known.of(d) for d in one]) for one in away]
    assert of_own > 0.95 > of_akin > 0.5 > 10 * of_strange > 0


def evidence(**changes):
    rng = np.random.default_rng(3)
    weights, center = (tuple(rng.normal(size=len(FEATURES)).tolist()) for _ in range(2))
    return Evidence(weights, center, 0.3, familiar=KNOWN, **changes)


@pytest.mark.parametrize(
    "distance, share", [(0.0, 1), (2.0, 1), (4.0, 0.5), (20.0, 0.1), (np.inf, 0)]
)
def test_what_counts_by_the_distance(distance, share):
    made, logprobs, end = evidence(), [-0.5, -1.2], -0.1
    readings = [[0.3, 1.5, -2.0, distance], [0.1, 9.0, 0.5, distance], [0.7, 9.0, 1.5, distance]]
    state, phi = 0.7 + 1.5 + (0.5 + 1.5) / 2, np.array(features(logprobs, end))
    joint = state + made.bias + np.array(made.weights) @ (phi - made.center)
    alone = made.bias + KNOWN.bias
    alone += (np.array(made.weights) + KNOWN.weights) @ (phi - made.center)
    expected = 1 / (1 + np.exp(-(share * joint + (1 - share) * alone)))
    assert confidence(readings, logprobs, end, made) == pytest.approx(expected)
    assert along(readings, logprobs, [0.0, 0.0, end], made)[-1] == pytest.approx(expected)
    assert made.familiar_at(distance) == share


def test_without_a_distance_the_rows_count_whole():
    made, logprobs = evidence(), [-0.5]
    readings = [[0.3, 1.5, -2.0], [0.1, 9.0, 0.5]]
    near = [[*one, 0.0] for one in readings]
    assert confidence(readings, logprobs, -0.1, made) == confidence(near, logprobs, -0.1, made)
    assert made.familiar_at(distance_in(readings)) is None
    assert made.familiar_at(distance_in(near)) == 1


OWN = (Own(0.0, (0.0,) * 8, 0.0), Own(0.6, (0.2, 0.0, 0.0, 0.0, -1.0, 0.0, 0.3, 0.5), 0.7))


@pytest.mark.parametrize("distance, part", [(0.0, 1), (2.0, 1), (2.2, 6 / 11), (2.5, 0), (40.0, 0)])
@pytest.mark.parametrize("source", [0, 1])
def test_the_fit_to_the_nearest_source_alone_has_its_share_near_by(source, distance, part):
    made, logprobs, end = evidence(), [-0.5, -1.2], -0.1
    both = dataclasses.replace(made, familiar=dataclasses.replace(KNOWN, own=OWN))
    steps = np.random.default_rng(4).normal(size=(3, 6))
    plain = [[*one[:3], distance] for one in steps]
    readings = [[*one, float(source), *other[3:]] for one, other in zip(plain, steps, strict=True)]

    def log_odds(readings, evidence):
        c = confidence(readings, logprobs, end, evidence)
        assert along(readings, logprobs, [0.0, 0.0, end], evidence)[-1] == pytest.approx(c)
        return np.log(c / (1 - c))

    shift = log_odds([[0.0] * 3] * 3, made)
    away = np.array(features(logprobs, end)) - made.center
    joint, alone = (part[2, 0] + part[0, 1] + part[1:, 2].mean() for part in (steps, steps[:, 3:]))
    alone += OWN[source].bias + OWN[source].weights @ away
    counts, share = OWN[source].share * part, KNOWN.of(distance)
    strange = KNOWN.bias + KNOWN.weights @ away
    expected = share * ((1 - counts) * joint + counts * alone) + (1 - share) * strange
    assert log_odds(readings, both) == pytest.approx(expected + shift)
    if not counts:  # to the bit
        assert confidence(readings, logprobs, end, both) == confidence(plain, logprobs, end, made)
    assert log_odds(plain, both) == log_odds(plain, made)  # an engine that reads no rows of its own


def test_a_card_keeps_it_and_one_without_it_is_read():
    own = dataclasses.replace(evidence(), familiar=dataclasses.replace(KNOWN, own=OWN))
    assert Evidence.from_dict(json.loads(json.dumps(own.to_dict()))) == own
    made = evidence()
    assert Evidence.from_dict(made.to_dict()) == made
    plain = dataclasses.replace(made, familiar=None)
    assert "familiar" not in plain.to_dict() and Evidence.from_dict(plain.to_dict()) == plain
    few = {"share": 1, "weights": [1.0], "bias": 0}
    more = ({"own": [few]}, {"own": [{}]}, {"own": 3}, {"own": [few | {"share": float("nan")}]})
    for broken in ({"near": 0}, {"near": float("nan")}, {"weights": [1.0]}, {"bias": "x"}, *more):
        card = made.to_dict()
        card["familiar"] = card["familiar"] | broken
        with pytest.raises(ModelError, match="familiar prompts that this version cannot use"):
            Evidence.from_dict(card)


def mix(sizes, seed=0):
    """Sources with a direction of their own each."""
    rng = np.random.default_rng(seed)
    x_ND = rng.normal(size=(sum(sizes), WIDTH))
    source_N = np.repeat(np.arange(len(sizes)), sizes)
    right_N = rng.random(len(x_ND)) < 1 / (1 + np.exp(-3 * x_ND[np.arange(len(x_ND)), source_N]))
    others = (rng.normal(size=x_ND.shape) for _ in range(2))
    phi = np.array([features([-rng.exponential(0.5)], -0.1) for _ in right_N])
    groups = [Sourced(str(source), n) for n, source in enumerate(source_N)]
    return Features(next(others), x_ND, next(others)), phi, right_N, groups


def test_a_large_source_does_not_drown_a_small_one():
    states, phi, right, groups = mix((400, 100))
    ratios = []
    for groups_N in ([group.question for group in groups], groups):
        made = fit_readout(lambda _: states, phi, right, groups_N, HeadShape(np.zeros(WIDTH)))
        weight_D = made.weights_QD[0]
        ratios.append(weight_D[1] / weight_D[0])
    assert ratios[1] > 1.5 * ratios[0] > 0


def test_a_source_whose_prompts_are_all_the_same_has_a_distance():
    ends = np.random.default_rng(0).normal(size=(60, 40))
    ends[:30] = 1.0
    prompts = describe(ends, ["a"] * 30 + ["b"] * 30)
    away_SN = distances(ends, prompts.mean_SH, prompts.spread_SH)
    assert np.isfinite(prompts.near) and np.isfinite(away_SN).all()
    assert (away_SN.argmin(0) == np.repeat([0, 1], 30)).all()


def test_what_holds_in_one_source_only_counts_less_than_for_questions_of_the_sources():
    rng, sources = np.random.default_rng(0), np.repeat(np.arange(3), 400)
    right_N = rng.random(1200) < 0.5
    own_SD = rng.choice([-1, 1], size=(3, 6))  # the sign in which a number tells right from wrong
    x_ND = rng.normal(size=(1200, 12))
    x_ND[:, 0] += 0.8 * (2 * right_N - 1)
    x_ND[:, 1:7] += 0.6 * (2 * right_N - 1)[:, None] * own_SD[sources]
    groups = [Sourced(str(source), n) for n, source in enumerate(sources)]
    mixed = fit_logistic([x_ND], right_N, groups)
    plain = fit_logistic([x_ND], right_N, [group.question for group in groups])
    assert mixed.penalties[0] >= 10 * plain.penalties[0]


def test_how_often_a_source_is_right_says_nothing_about_a_penalty():
    """Else a source that is right far more often than the others would ask for no weights."""
    rng, sources = np.random.default_rng(1), np.repeat(np.arange(3), 400)
    x_N, chance_N, found = rng.normal(size=1200), rng.random(1200), []
    for level_S in ([0, 0, 0], [-3, 0, 3]):
        right_N = chance_N < 1 / (1 + np.exp(-x_N - np.array(level_S)[sources]))
        groups = [Sourced(str(source), n) for n, source in enumerate(sources)]
        found.append(fit_logistic([x_N[:, None]], right_N, groups).penalties[0])
    assert found[1] <= 10 * found[0]


def test_strangers_get_the_evidence_as_it_is_fitted_alone():
    states, phi, right, groups = mix((150, 150, 150))
    ends = np.random.default_rng(5).normal(size=(450, 40))
    made = fit_readout(lambda _: states, phi, right, groups, HeadShape(np.zeros(WIDTH)))
    known = knowing_prompts(made, 4, ends, phi, right, groups)
    layer, prompts = known.prompts
    assert layer == 4 and prompts.mean_SH.shape == (3, 40)
    familiar, alone = known.evidence.familiar, fit_evidence(phi, right, groups)
    assert np.add(familiar.weights, known.evidence.weights) == pytest.approx(alone.weights)
    assert familiar.bias + known.evidence.bias == pytest.approx(alone.bias)
    strange = [[0.0, 0.0, 0.0, np.inf]] * 2
    found = confidence(strange, [-0.7], -0.1, known.evidence)
    assert found == pytest.approx(confidence([[0.0] * 3] * 2, [-0.7], -0.1, alone))


ENDS = 6 * np.random.default_rng(8).normal(size=(4, 40))  # where the prompts of each source end


def known_sources(sizes, apart=1.0, right_too=()):
    """A fit to sources with a direction each, without and with fits to each of them alone."""
    states, phi, right, groups = mix(sizes)
    source_N = np.repeat(np.arange(len(sizes)), sizes)
    right |= np.isin(source_N, right_too)
    ends = apart * ENDS[source_N] + np.random.default_rng(0).normal(size=(len(right), 40))
    head, graded = HeadShape(np.zeros(WIDTH)), (phi, right, groups)
    made = fit_readout(lambda _: states, *graded, head)
    made = knowing_prompts(made, 1, ends, *graded)
    return made, knowing_sources(made, lambda _: states, [1], ends, *graded, head)[0]


def rate(fit, states, ends, phi):
    """c as an engine reads it."""
    known = fit.prompts[1]
    away_SN = distances(ends, known.mean_SH, known.spread_SH)
    places = (states.last_ND, states.first_ND, states.mean_ND)
    rows = [fit.weights_QD, *(rows for _, rows in known.own)]
    read = [sum(part @ row for part, row in zip(places, one, strict=True)) for one in rows]
    return np.array(
        [
            fit.evidence.rate(
                read[0][n], phi[n], Near(away_SN[at, n], at, read[1 + at][n] if known.own else None)
            )
            for n, at in enumerate(away_SN.argmin(0))
        ]
    )


def test_fits_to_each_source_alone_tell_its_own_questions_better_and_others_as_before():
    shared, own = known_sources((250,) * 4)
    assert (own.weights_QD == shared.weights_QD).all()
    assert all(0.3 < one.share <= 1 for one in own.evidence.familiar.own)
    states, phi, right, _ = mix((500,) * 4, seed=9)
    ends = np.repeat(ENDS, 500, axis=0) + np.random.default_rng(9).normal(size=(2000, 40))
    brier = [np.square(rate(fit, states, ends, phi) - right).mean() for fit in (shared, own)]
    assert brier[1] < brier[0] - 0.05
    right_N = mix((250,) * 4)[2]
    held_out = [np.square(c_N - right_N).mean() for c_N in (shared.held_out, own.held_out)]
    assert held_out == pytest.approx(brier, abs=0.02)
    same = [rate(fit, states, ends + 30, phi) for fit in (shared, own)]
    assert (same[0] == same[1]).all()  # strangers


def test_a_source_whose_answers_are_all_right_has_no_fit_to_it_alone():
    _, own = known_sources((60, 150, 150), right_too=[0])
    assert own.evidence.familiar.own[0] == Own(0.0, (0.0,) * 8, 0.0)
    assert not own.prompts[1].own[0][1].any()


def test_shares_have_the_names_of_the_sources_whose_prompts_are_described():
    """Not that of a source with fields only, of which no prompt is described."""
    states, phi, right, groups = mix((40, 120, 120))
    ends = np.repeat(ENDS[:3], (40, 120, 120), axis=0)
    ends += np.random.default_rng(0).normal(size=ends.shape)
    head, graded, whole_N = HeadShape(np.zeros(WIDTH)), (phi, right, groups), np.arange(280) >= 40
    right[160:] = True  # of the last source, so that it has no fit of its own
    made = fit_readout(lambda _: states, *graded, head)
    made = knowing_prompts(made, 1, ends, *graded, whole_N)
    own, shares = knowing_sources(made, lambda _: states, [1], ends, *graded, head, whole_N)
    assert [*shares] == ["1", "2"] and shares["1"] > 0 == shares["2"]
    assert [*shares.values()] == [one.share for one in own.evidence.familiar.own]
    assert len(own.prompts[1].own) == len(own.prompts[1].mean_SH) == 2
    right[40:] = np.arange(240) < 120
    none, shares = knowing_sources(made, lambda _: states, [1], ends, *graded, head, whole_N)
    assert none is made and shares == {}


def test_where_prompts_do_not_tell_sources_apart_fits_to_them_count_less():
    """The nearest source of a prompt is then often another than its own."""
    shared, own = known_sources((200, 200), apart=0.0)
    _, apart = known_sources((200, 200))
    pairs = zip(own.evidence.familiar.own, apart.evidence.familiar.own, strict=True)
    assert all(0.1 < one.share < other.share - 0.3 for one, other in pairs)
    states, phi, right, _ = mix((500, 500), seed=9)
    ends = np.random.default_rng(3).normal(size=(1000, 40))
    brier = [np.square(rate(fit, states, ends, phi) - right).mean() for fit in (shared, own)]
    assert brier[1] < brier[0]
