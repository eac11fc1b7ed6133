"""The cache with room gives what the usual one gives, without copying itself at every step."""

from __future__ import annotations

import torch
from transformers.cache_utils import DynamicLayer

from grace.engines.local.cache import RoomyLayer


def columns(rows: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 2, count, 4), torch.randn(rows, 2, count, 4)


def test_it_holds_what_the_usual_cache_holds() -> None:
    roomy, usual = RoomyLayer(), DynamicLayer()
    rows = 3
    with torch.inference_mode():
        for step in range(40):
            given = columns(rows, 1 + 4 * (step % 7 == 0))
            for ours, theirs in zip(roomy.update(*given), usual.update(*given), strict=True):
                assert torch.equal(ours, theirs)
            if step % 9 == 5:
                for layer in (roomy, usual):
                    layer.crop(-2)
            if step % 11 == 3:  # rows end, others are repeated
                kept = torch.tensor([0, *range(rows)][: 2 + step % 3])
                rows = len(kept)
                for layer in (roomy, usual):
                    layer.batch_select_indices(kept)
            assert roomy.get_seq_length() == usual.get_seq_length()


def test_a_gradient_goes_through_it() -> None:
    layer = RoomyLayer()
    first, second = columns(2, 3), columns(2, 2)
    for part in (*first, *second):
        part.requires_grad_()
    layer.update(*first)
    keys, values = layer.update(*second)
    (keys.sum() + 2 * values.sum()).backward()
    assert torch.equal(first[0].grad, torch.ones_like(first[0]))
    assert torch.equal(second[1].grad, 2 * torch.ones_like(second[1]))
