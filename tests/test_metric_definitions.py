"""The same answers under other code bases' definitions of ECE: a threefold spread.

1,000 answers: 300 at a confidence of exactly 1 of which 240 are right, the others on a grid. The
grid was searched for so that the definitions give the values of a published comparison on such
a set (whose own points were not published): 9.09, 10.16, 10.68, 3.09, 7.53, 5.07%.
"""

import numpy as np
import pytest

from grace.metrics import adaptive_ece, ece, reliability, smooth_ece

NUM_CERTAIN, RIGHT_CERTAIN = 300, 240
# Number of answers at confidence (k + 1/2) / 60, and how many of them are right.
NUM = [
    *(3, 3, 6, 3, 3, 5, 6, 13, 3, 4, 3, 5, 4, 5, 3, 7, 3, 9, 9, 4),
    *(10, 5, 7, 5, 8, 4, 3, 3, 10, 9, 8, 8, 13, 10, 16, 21, 15, 20, 19, 19),
    *(19, 22, 23, 23, 23, 23, 23, 23, 22, 23, 11, 23, 14, 22, 7, 19, 17, 23, 23, 3),
]
RIGHT = [
    *(0, 0, 1, 0, 0, 0, 0, 2, 0, 2, 1, 0, 0, 0, 1, 0, 3, 4, 0, 2),
    *(6, 2, 4, 3, 0, 3, 3, 1, 7, 8, 1, 8, 5, 7, 7, 14, 2, 16, 18, 17),
    *(5, 16, 19, 21, 20, 21, 21, 19, 20, 22, 9, 18, 13, 19, 5, 19, 16, 22, 22, 3),
]


def answers():
    confidence = np.repeat([*((np.arange(60) + 0.5) / 60), 1.0], [*NUM, NUM_CERTAIN])
    pairs = zip([*NUM, NUM_CERTAIN], [*RIGHT, RIGHT_CERTAIN], strict=True)
    return confidence, np.concatenate([np.arange(n) < right for n, right in pairs])


def in_bins(confidence, bins=10):
    return np.minimum((confidence * bins).astype(int), bins - 1)


def gaps(at, truth, confidence):
    return np.abs(np.bincount(at, weights=truth - confidence)).sum() / len(confidence)


def dropping_the_edge(confidence, correct):
    """`digitize - 1` sends a confidence of 1 to an eleventh bin that is never read."""
    at = np.digitize(confidence, np.linspace(0, 1, 11)) - 1
    return sum(
        abs((correct[at == k] - confidence[at == k]).sum()) / len(confidence) for k in range(10)
    )


def of_midpoints(confidence, correct):
    """The middle of a bin stands for the confidences in it."""
    at = in_bins(confidence)
    return gaps(at, correct, (at + 0.5) / 10)


def against_targets(confidence, correct):
    """The truth is a calibration target, the nearest accuracy of any bin, not correctness."""
    at = in_bins(confidence)
    accuracy = np.array([correct[at == k].mean() for k in np.unique(at)])
    nearest = np.abs(accuracy[None] - confidence[:, None]).argmin(axis=1)
    return gaps(at, accuracy[nearest], confidence)


@pytest.mark.parametrize(
    ("definition", "percent"),
    [
        (ece, 9.09),
        (lambda c, y: ece(c, y, 15), 10.16),
        (lambda c, y: ece(c, y, 20), 10.68),
        (dropping_the_edge, 3.09),
        (of_midpoints, 7.53),
        (against_targets, 5.07),
    ],
    ids=["10 bins", "15 bins", "20 bins", "edge dropped", "midpoints", "against targets"],
)
def test_the_definition_alone_decides_between_three_and_eleven_percent(definition, percent):
    confidence, correct = answers()
    assert len(confidence) == 1000 and correct[confidence == 1].mean() == 0.8
    assert round(100 * float(definition(confidence, correct)), 2) == percent


def test_dropping_the_edge_hides_what_the_surest_answers_get_wrong():
    confidence, correct = answers()
    hidden = ece(confidence, correct) - dropping_the_edge(confidence, correct)
    assert hidden == pytest.approx(0.3 * (1.0 - 0.8))
    assert reliability(confidence, correct)[-1].n == sum(NUM[54:]) + 300


def test_dropping_the_edge_calls_a_model_that_is_always_certain_perfect():
    confidence, correct = np.ones(10), np.arange(10) < 5
    assert dropping_the_edge(confidence, correct) == 0
    assert ece(confidence, correct) == adaptive_ece(confidence, correct) == 0.5
    assert smooth_ece(confidence, correct) > 0.3


def test_torchmetrics_bins_away_from_one_are_ours():
    torch = pytest.importorskip("torch")
    functional = pytest.importorskip("torchmetrics.functional.classification")
    confidence, correct = answers()
    below = confidence < 1
    theirs = functional.binary_calibration_error(
        torch.tensor(confidence[below]), torch.tensor(correct[below]), n_bins=10
    )
    assert ece(confidence[below], correct[below]) == pytest.approx(float(theirs), abs=1e-6)
