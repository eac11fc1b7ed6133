"""Which split an estimator fits on, and what it holds apart there.

The labels of the validation responses are those of the training responses turned round, so that a
map fitted on the wrong split falls where it should rise.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np
import pytest
from made_up_samples import ScriptedEngine, Splits, response, samples

from grace.calibration import Isotonic, Platt, Temperature
from grace.estimators import Fitted
from grace.estimators.actcab import ActCab
from grace.estimators.recalibrated import load_estimator
from grace.pipeline.stages.score import FOLDS, cross_fitted

RNG = np.random.default_rng(0)
COUNT = 60
LOGPROBS = -RNG.exponential(0.5, (COUNT, 3))
ENDS = -RNG.exponential(2.0, COUNT)  # the end says more than the tokens before it
VALUES = np.exp((LOGPROBS.sum(1) + ENDS) / 4)
RIGHT = VALUES + RNG.normal(0, 0.1, COUNT) > np.median(VALUES)
ROWS = [response(n, logprobs=tuple(LOGPROBS[n].tolist()), end=float(ENDS[n])) for n in range(COUNT)]
KNOWN = Splits(samples(ROWS, correct=(~RIGHT).tolist()), samples(ROWS, correct=RIGHT.tolist()))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("platt", Platt),
        ("likelihood+platt", Platt),
        ("likelihood+isotonic", Isotonic),
        ("likelihood+temperature", Temperature),
    ],
)
def test_a_recalibration_is_fitted_on_validation_answers(name: str, kind: Any) -> None:
    rated = load_estimator(name).fit(KNOWN, ScriptedEngine(), 0).rate(KNOWN.validation)
    assert rated == pytest.approx(kind.fit(VALUES, RIGHT).transform(VALUES).tolist(), abs=1e-6)
    wrong = kind.fit(VALUES, ~RIGHT).transform(VALUES)
    assert np.abs(np.array(rated) - wrong).max() > 0.1


def test_no_validation_answer_is_rated_by_a_fit_that_has_seen_it() -> None:
    platt = load_estimator("platt")

    def fit(known: Any) -> Fitted:
        seen.append({row.id for row in known.validation.responses})
        rate = platt.fit(known, ScriptedEngine(), 0).rate
        rated.append([])

        def remembered(some: Any) -> Any:
            rated[-1] = [row.id for row in some.responses]
            return rate(some)

        return Fitted(remembered)

    seen: list[set[str]] = []
    rated: list[list[str]] = []
    values = cross_fitted(fit, KNOWN).rate(KNOWN.validation)
    assert all(not ids & set(held) for ids, held in zip(seen, rated, strict=True))
    assert all(len(ids) == COUNT - COUNT // FOLDS for ids in seen)
    together = platt.fit(KNOWN, ScriptedEngine(), 0).rate(KNOWN.validation)
    assert 1e-4 < np.abs(np.array(values) - np.array(together)).max() < 0.3


def test_where_no_other_fold_has_a_value_there_is_no_confidence() -> None:
    some = samples([ROWS[0], *(response(n, cut=True) for n in range(1, 8))])
    platt = functools.partial(load_estimator("platt").fit, engine=ScriptedEngine(), seed=0)
    splits = Splits(some, some)
    assert platt(splits).rate(some)[0] is not None
    assert cross_fitted(platt, splits).rate(some) == [None] * 8


def test_platt_scales_the_likelihood_with_the_end_token() -> None:
    (row,) = samples([response(0, logprobs=(-1.0, -2.0), end=-3.0)]).responses
    fitted = load_estimator("platt").fit(KNOWN, ScriptedEngine(), 0)
    found = fitted.rate(samples([row]))
    scaler = Platt.fit(VALUES, RIGHT)
    assert found == pytest.approx(scaler.transform([math.exp(-6 / 3)]).tolist(), abs=1e-6)
    assert found != pytest.approx(scaler.transform([math.exp(-3 / 2)]).tolist(), abs=1e-3)


def test_evidence_alone_is_fitted_on_training_answers() -> None:
    fitted = load_estimator("evidence").fit(KNOWN, ScriptedEngine(), 0)
    sure, unsure = fitted.rate(samples([response(logprobs=(lp,) * 3) for lp in (-0.05, -1.5)]))
    assert sure is not None and unsure is not None
    assert sure < unsure  # as among the training answers here


QUESTIONS, EACH = 20, 4
NUMBERS = range(QUESTIONS * EACH)
STATES = np.repeat(RNG.normal(size=(QUESTIONS, 30)), EACH, axis=0)
STATES = STATES + 0.01 * RNG.normal(size=STATES.shape)
ASKED = [number // EACH for number in NUMBERS]
LABELS = (RNG.random(QUESTIONS) < 0.5)[ASKED]
STATED = ScriptedEngine(states=lambda numbers: STATES[list(numbers)])
ALONE = samples([response(number) for number in NUMBERS], correct=LABELS.tolist())
SEVERAL = dataclasses.replace(ALONE, questions=[ALONE.questions[question] for question in ASKED])


def test_the_probe_chooses_its_penalty_on_folds_of_questions() -> None:
    """Responses to one question have nearly equal states, which a fold of responses gives away."""
    spread = [
        np.ptp(load_estimator("probe").fit(Splits(given, samples([])), STATED, 0).rate(SEVERAL))  # type: ignore[arg-type]
        for given in (SEVERAL, ALONE)
    ]
    assert spread[0] < 0.5 * spread[1]


def test_actcabs_folds_are_of_questions() -> None:
    fold_N = ActCab(folds=5)._folds(SEVERAL, 0)
    assert len(set(fold_N)) == 5
    assert len(set(zip(ASKED, fold_N, strict=True))) == QUESTIONS


@pytest.mark.parametrize(
    ("name", "score_N"),
    [
        ("loglik", LOGPROBS.sum(1) + ENDS),
        (
            "deepconf_logistic",
            np.minimum.reduce([LOGPROBS[:, :2].mean(1), LOGPROBS[:, 1:].mean(1),
                               (LOGPROBS[:, 2] + ENDS) / 2]),
        ),
    ],
)  # fmt: skip
def test_raw_scores_go_through_a_logistic_regression_fitted_on_validation_answers(
    name: str, score_N: Any
) -> None:
    from sklearn.linear_model import LogisticRegression

    made = load_estimator(name).fit(KNOWN, ScriptedEngine(), 0)
    theirs = LogisticRegression(C=np.inf, tol=1e-10).fit(score_N[:, None], RIGHT)
    expected = theirs.predict_proba(score_N[:, None])[:, 1].tolist()
    assert made.rate(KNOWN.validation) == pytest.approx(expected, abs=1e-3)
    assert made.trained_parameters == 2
