"""`kill -9` at random moments of every stage; the resumed run has the bytes of an unbroken one.

Compared is every file of the run, with these exceptions (`trials.FREE`): the log of how long units
took, the lock file, and checkpoints of the finished training. The clock behind seconds per answer
and the time of the start stands still; nothing is masked.
"""

from __future__ import annotations

import collections
import json
import random
from pathlib import Path
from typing import Any

import pytest
import trials

CHAINS = 1
ALL_CHAINS = 11


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


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_run_killed_again_and_again_between_two_changes_of_files(
    seed: int, reference: Any, tmp_path: Path
) -> None:
    dice = random.Random(seed)
    run = tmp_path / reference.run.name
    kills = 0
    while (ended := _until(dice.randint(1, 60), run, reference.settings)).code == -9:
        kills += 1
        assert kills < 100
    assert ended.code == 0, ended.said
    assert reference.differences(run) == []
    assert kills >= 5


def _until(event: int, *arguments: Any) -> trials.Ended:
    return trials.finish(trials.run_until_event, event, *arguments)


@pytest.mark.parametrize(
    "event", [12, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 40, 2))]
)
def test_a_kill_in_the_middle_of_redo_leaves_a_run_that_fits_its_settings(
    event: int, reference: Any, tmp_path: Path
) -> None:
    run = reference.copy(tmp_path)
    changed = trials.settings(reference.inputs, "paper.gamma=0.5", "report.bins=5")
    ended = _until(event, run, changed, "fit")
    assert ended.code == -9
    config = json.loads((run / "config.json").read_text())
    if config["settings"]["report"]["bins"] == 5:  # nothing of the old settings is left
        assert trials.finish(trials.run, run, changed).code == 0
        assert trials.finish(trials.run, run, changed, "fit").code == 0
        assert json.loads((run / "adapter/grace.json").read_text())["paper"]["gamma"] == 0.5
        return
    ended = trials.finish(trials.run, run, reference.settings)
    assert ended.code == 0, ended.said
    assert reference.differences(run) == []
