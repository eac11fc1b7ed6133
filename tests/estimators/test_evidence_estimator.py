"""Evidence alone against scikit-learn's logistic regression."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from made_up_samples import ScriptedEngine, Splits, response, samples
from sklearn.linear_model import LogisticRegression

from grace.estimators.recalibrated import load_estimator
from grace.evidence import features
from grace.methods.grace.fit import fit_evidence


def test_it_is_the_logistic_regression_of_correctness_on_the_evidence() -> None:
    generator = random.Random(0)
    responses, correct = [], []
    for number in range(400):
        sureness = generator.random()
        count = generator.randint(1, 6)
        logprobs = [math.log(0.05 + 0.9 * sureness * generator.random()) for _ in range(count)]
        responses.append(response(number, logprobs=logprobs))
        correct.append(generator.random() < sureness)
    train = samples(responses, correct=correct)
    fitted = load_estimator("evidence").fit(Splits(train, samples([])), ScriptedEngine(), 0)
    phi_NF = np.array([features(one.logprobs, one.end_logprob) for one in responses])
    x_NF = (phi_NF - phi_NF.mean(0)) / phi_NF.std(0)
    reference = LogisticRegression(C=np.inf, tol=1e-8, max_iter=5000)
    wanted = reference.fit(x_NF, correct).decision_function(x_NF)
    found = np.array(fitted.rate(train))
    assert np.corrcoef(np.log(found / (1 - found)), wanted)[0, 1] > 0.98
    assert found.mean() == pytest.approx(np.mean(correct), abs=0.01)
    evidence = fit_evidence(phi_NF, np.array(correct), [q.id for q in train.questions])
    shifts = [evidence.shift_of(row) for row in phi_NF]
    assert np.log(found / (1 - found)) == pytest.approx(shifts, abs=1e-9)
    assert fitted.trained_parameters == 9
    assert fitted.rate(samples([response(cut=True)])) == [None]
