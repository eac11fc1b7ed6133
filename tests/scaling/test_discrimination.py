"""Within-question discrimination, question by question, is that of `grace.metrics`."""

from __future__ import annotations

import numpy as np
import pytest

from grace.metrics import wqd
from grace.scaling import PairWins, Pool, discrimination, pair_wins


def pool_of(questions: int, seed: int = 0) -> Pool:
    """Made-up samples with ties, missing answers and missing confidences."""
    rng = np.random.default_rng(seed)
    correct = rng.random((questions, 6)) < rng.random((questions, 1))
    confidence = np.round(np.clip(0.3 * correct + rng.random(correct.shape) * 0.7, 0, 1), 1)
    confidence[rng.random(correct.shape) < 0.1] = np.nan
    return Pool(np.where(correct, 0, 1), correct, None, {"grace": confidence})


def test_the_wins_of_all_questions_make_wqd():
    pool = pool_of(50)
    wins = pair_wins(pool, "grace")
    known = ~np.isnan(pool.confidence("grace"))
    ids = np.broadcast_to(np.arange(50)[:, None], known.shape)[known].tolist()
    expected = wqd(pool.confidence("grace")[known], pool.correct_QS[known], ids)
    assert wins.wins_Q.sum() / wins.pairs_Q.sum() == pytest.approx(expected)
    found = discrimination([range(50)], [wins])
    assert found is not None and found.value == pytest.approx(expected)
    assert 0 <= found.low < expected < found.high <= 1


def test_by_hand():
    pool = Pool([[0, 1, 2]], [[1, 0, 0]], None, {"grace": [[0.5, 0.5, 0.4]]})
    wins = pair_wins(pool, "grace")
    assert (wins.wins_Q.tolist(), wins.pairs_Q.tolist()) == ([1.5], [2.0])


def test_without_a_right_and_a_wrong_sample_there_is_none():
    assert discrimination([["a"]], [PairWins(np.zeros(1), np.zeros(1))]) is None


def test_several_seeds_give_the_mean_of_their_values():
    parts = [pair_wins(pool_of(40, seed), "grace") for seed in range(3)]
    each = [part.wins_Q.sum() / part.pairs_Q.sum() for part in parts]
    found = discrimination([range(40)] * 3, parts)
    assert found is not None and found.value == pytest.approx(np.mean(each))
