from __future__ import annotations

import numpy as np
import pytest

from grace.methods.paper.targets import balance, make_targets
from grace.metrics.kernels import bin_index


def test_a_target_is_the_accuracy_of_the_bin() -> None:
    made = make_targets(np.array([0.11, 0.15, 0.19, 0.9]), np.array([1, 0, 0, 1]))
    np.testing.assert_array_equal(made.bins, [1, 1, 1, 9])
    np.testing.assert_allclose(made.targets, [1 / 3, 1 / 3, 1 / 3, 1])
    assert made.table[1] == (1, 0.1, 0.2, 3, pytest.approx(1 / 3))
    assert made.table[5].n == 0
    assert made.table[5].accuracy is None


def test_scores_outside_the_unit_interval_fall_into_the_outer_bins() -> None:
    made = make_targets(np.array([-3.0, 0.0, 1.0, 7.0]), np.array([0, 1, 1, 0]), bins=4)
    np.testing.assert_array_equal(made.bins, [0, 0, 3, 3])


@pytest.mark.parametrize("bins", [1, 3, 7, 10, 49])
def test_every_edge_opens_its_own_bin_and_the_last_bin_is_closed(bins: int) -> None:
    edges = np.array([m / bins for m in range(bins)] + [1.0])
    np.testing.assert_array_equal(bin_index(edges, bins), [*range(bins), bins - 1])


def test_targets_and_scores_share_the_bins_of_the_paper() -> None:
    scores, labels = np.array([0.2, 0.5, 1.4]), np.array([False, True, True])
    np.testing.assert_allclose(make_targets(scores, labels, kind="scores").targets, [0.2, 0.5, 1.0])
    assert make_targets(scores, labels, kind="scores").table == make_targets(scores, labels).table


def test_thin_bins_are_warned_about_and_empty_bins_are_not() -> None:
    scores = np.concatenate([np.full(30, 0.25), np.full(3, 0.85), np.full(2, 0.95)])
    made = make_targets(scores, np.array([1.0] * 33 + [0.0, 1.0]))
    (warning,) = made.warnings
    assert "2 of 10 target bins hold fewer than 20 responses" in warning
    assert "(0.80-0.90: 1.00 of 3, 0.90-1.00: 0.50 of 2)" in warning


SKEWED = np.concatenate([np.full(90, 0.05), np.full(30, 0.55), np.full(6, 0.95)])


def test_a_cap_cuts_large_intervals_to_the_mean_size_and_keeps_small_ones() -> None:
    kept = SKEWED[balance(SKEWED, "cap", seed=1)]
    assert [int((kept == value).sum()) for value in (0.05, 0.55, 0.95)] == [42, 30, 6]
    assert len(set(balance(SKEWED, "cap"))) == 78
