"""`kill -9` at random moments of every stage; the resumed run has the bytes of an unbroken one.

Compared is every file of the run, with these exceptions (`trials.FREE`): the log of how long units
took, the lock file, and checkpoints of the finished training. The clock behind seconds per answer
and the time of the start stands still; nothing is masked.
"""

from __future__ import annotations

import collections
import random
from pathlib import Path
from typing import Any

import pytest
import trials

CHAINS = 2
ALL_CHAINS = 10


def chain(seed: int, reference: Any, folder: Path) -> list[str]:
    """Kill a run once in each stage, in order, then finish it; return where the kills landed."""
    dice = random.Random(seed)
    run = folder / reference.run.name
    landed = []
    for stage in trials.STAGES:
        delay = dice.uniform(0, reference.seconds[stage])
        ended = trials.kill_in(stage, delay, trials.run, run, reference.settings)
        if ended.code == -9:
            landed.append(ended.stage)
    ended = trials.finish(trials.run, run, reference.settings)
    assert ended.code == 0, ended.said
    assert reference.differences(run) == [], f"seed {seed}, killed in {landed}"
    return landed


@pytest.mark.parametrize("seed", range(CHAINS))
def test_a_run_killed_in_every_stage_ends_with_the_same_bytes(
    seed: int, reference: Any, tmp_path: Path
) -> None:
    assert len(chain(seed, reference, tmp_path)) >= 5


@pytest.mark.slow
def test_at_least_56_kills_over_all_stages_leave_no_trace(reference: Any, tmp_path: Path) -> None:
    landed: collections.Counter[str] = collections.Counter()
    for seed in range(CHAINS, CHAINS + ALL_CHAINS):
        landed.update(chain(seed, reference, tmp_path / str(seed)))
    print(f"kills: {landed.total()} {dict(landed)}")
    assert landed.total() >= 56
    assert set(landed) >= set(trials.STAGES)
