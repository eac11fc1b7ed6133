from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import pytest

from grace.cnf import Readout
from grace.config import PaperSettings
from grace.methods.paper.examples import IGNORED, Example, collate, make_plan

PAD, CNF = 0, 99
LONG = Example("a", (5, 6, 7), (8, 9), 0.3)
SHORT = Example("b", (5,), (), 0.8, weight=2.0)


def test_cnf_is_the_last_position_of_every_row() -> None:
    batch = collate([LONG, SHORT], Readout((CNF,)), PAD)
    assert batch["input_ids"].tolist() == [[5, 6, 7, 8, 9, CNF], [0, 0, 0, 0, 5, CNF]]
    assert batch["attention_mask"].tolist() == [[1] * 6, [0, 0, 0, 0, 1, 1]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 4, 5], [0, 0, 0, 0, 0, 1]]


def test_labels_are_the_response_tokens_and_nothing_else() -> None:
    batch = collate([LONG, SHORT], Readout((CNF,)), PAD)
    assert batch["labels"].tolist() == [[IGNORED] * 3 + [8, 9, IGNORED], [IGNORED] * 6]


def test_with_bins_the_last_position_holds_the_token_of_the_targets_interval() -> None:
    bins = Readout(tuple(range(50, 60)))
    targets = [0.0, 0.0999, 0.1, 0.3, 0.7, 0.95, 1.0]  # in float32, 0.7 would fall below its edge
    rows = [dataclasses.replace(LONG, target=target) for target in targets]
    batch = collate(rows, bins, PAD)
    assert batch["input_ids"][:, -1].tolist() == [50, 50, 51, 53, 57, 59, 59]
    assert (batch["labels"][:, -1] == IGNORED).all()


def many(count: int) -> list[Example]:
    return [Example(str(i), (1,) * (1 + i % 7), (2,), (i % 10) / 10) for i in range(count)]


def settings(**options: Any) -> PaperSettings:
    return PaperSettings(**{"epochs": 2, "batch_size": 8, "balance": "none", **options})


def test_every_epoch_shows_every_example_once() -> None:
    plan = make_plan(many(30), settings(), seed=0)
    assert plan.epoch_ends == (4, 8)
    for start in (0, 4):
        rows = [row for step in plan.steps[start : start + 4] for row in step]
        assert sorted(rows) == list(range(30))
    assert plan.steps[:4] != plan.steps[4:]


def test_the_order_depends_on_the_seed_alone() -> None:
    assert (
        make_plan(many(30), settings(), seed=3).steps
        == make_plan(many(30), settings(), seed=3).steps
    )
    assert (
        make_plan(many(30), settings(), seed=3).steps
        != make_plan(many(30), settings(), seed=4).steps
    )


def test_batches_hold_examples_of_similar_length() -> None:
    items = many(64)
    plan = make_plan(items, settings(), seed=0)
    spread = [max(len(items[r]) for r in s) - min(len(items[r]) for r in s) for s in plan.steps]
    assert sum(spread) / len(spread) < 3


@pytest.mark.parametrize(("micro", "processes"), [(0, 1), (3, 1), (8, 1), (2, 2), (100, 1), (1, 3)])
def test_the_weights_of_the_micro_batches_of_a_step_add_up_to_a_mean(
    micro: int, processes: int
) -> None:
    plan = make_plan(many(30), settings(micro_batch_size=micro), seed=0, processes=processes)
    parts = plan.accumulation * processes
    for number, step in enumerate(plan.steps):
        batches = [plan[number * parts + part] for part in range(parts)]
        weighed = [item for batch in batches for item in batch if item.weight]
        assert Counter(item.id for item in weighed) == Counter(str(row) for row in step)
        assert sum(item.weight for item in weighed) / parts == pytest.approx(1)
        assert max(len(batch) for batch in batches) <= (micro or 8)
