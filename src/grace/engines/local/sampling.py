"""Which token is next: the settings of rows, their random numbers, and the draw.

Shapes: R rows, T most steps of a row, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from grace.engines import Ids, Sampling, seed_from
from grace.engines.structured import Allowed


class SampleRequest(NamedTuple):
    """Prompts with the same sampling settings."""

    prompts: Sequence[Ids]
    sampling: Sampling
    keys: Sequence[str]  # name the prompts for the random numbers
    allowed: Sequence[Allowed] = ()  # by the form of each row; empty: any token

    @property
    def rows(self) -> int:
        """The number of samples; those of a prompt are side by side."""
        return len(self.prompts) * self.sampling.num_samples

    def split(self, count: int) -> tuple[SampleRequest, SampleRequest]:
        """Return the first samples of each prompt, `count` at most, and the others."""
        sampling = self.sampling
        count = min(count, sampling.num_samples)
        left, first = sampling.num_samples - count, sampling.first_sample + count
        return (
            self._replace(sampling=replace(sampling, num_samples=count)),
            self._replace(sampling=replace(sampling, num_samples=left, first_sample=first)),
        )


Bound = Sequence[tuple[int, Allowed]]
"""Places of rows that must take a form, and what it allows next."""


def keep_to(bound: Bound, logits_RV: Tensor) -> Tensor:
    """Return the logits without what a form forbids; without such rows, the same ones."""
    if not bound:
        return logits_RV
    masked_RV = logits_RV.clone()
    for at, allowed in bound:
        mask_V = torch.from_numpy(allowed.next(logits_RV.shape[1])).to(logits_RV.device)
        masked_RV[at, ~mask_V] = -torch.inf
    return masked_RV


class SamplerState(NamedTuple):
    """The settings of R rows; `points_RT` are random numbers in [0, 1)."""

    temperature_R1: Tensor
    top_p_R1: Tensor
    longest_R: Tensor  # the most tokens of each row
    points_RT: Tensor

    @classmethod
    def of(
        cls, requests: Sequence[SampleRequest], steps: int, device: torch.device
    ) -> SamplerState:
        """Return the settings of the rows of some requests, in their order."""
        settings = [request.sampling for request in requests for _ in range(request.rows)]
        temperature_R = torch.tensor([one.temperature for one in settings], device=device)
        top_p = [one.top_p for one in settings]
        longest = [one.max_new_tokens for one in settings]
        points = [
            uniforms(one.sampling.seed, one.keys, one.sampling.numbers, steps) for one in requests
        ]
        return cls(
            temperature_R[:, None],
            torch.tensor(top_p, dtype=torch.float64, device=device)[:, None],
            torch.tensor(longest, device=device),
            torch.from_numpy(np.concatenate(points)).to(device),
        )

    def choose(self, logits_RV: Tensor, step_R: Tensor, settings: Collection[Sampling]) -> Tensor:
        """Return the next token of each row, (R,); `settings` are all that the rows may have."""
        greedy = [sampling.temperature == 0 for sampling in settings]
        if all(greedy):
            return logits_RV.argmax(-1)
        point_R = self.points_RT.gather(1, step_R.clamp(max=self.points_RT.shape[1] - 1)[:, None])
        top_p_R1 = self.top_p_R1 if any(sampling.top_p < 1 for sampling in settings) else None
        greedy_R1 = self.temperature_R1 == 0
        scaled_RV = logits_RV / self.temperature_R1.masked_fill(greedy_R1, 1)
        drawn_R = _draw(scaled_RV, top_p_R1, point_R[:, 0])
        if not any(greedy):
            return drawn_R
        return torch.where(greedy_R1[:, 0], logits_RV.argmax(-1), drawn_R)


def uniforms(seed: int, keys: Sequence[str], samples: range, num_steps: int) -> np.ndarray:
    """Return float64 draws of shape (R, T); each row depends on (seed, key, sample) alone."""
    return np.stack(
        [
            np.random.Generator(np.random.Philox(key=seed_from(seed, sample, key, size=16))).random(
                num_steps
            )
            for key in keys
            for sample in samples
        ]
    )


def _draw(logits_RV: Tensor, top_p_R1: Tensor | None, point_R: Tensor) -> Tensor:
    """Return one token per row by inverting the cumulative distribution at a point in [0, 1)."""
    probs_RV = logits_RV.softmax(-1)
    if top_p_R1 is not None:
        sorted_RV, order_RV = probs_RV.sort(dim=-1, descending=True, stable=True)
        above_RV = sorted_RV.double().cumsum(-1) - sorted_RV
        cut_RV = (above_RV >= top_p_R1) & (top_p_R1 < 1)
        probs_RV = probs_RV.scatter(1, order_RV, sorted_RV.masked_fill(cut_RV, 0))
    cumulative_RV = probs_RV.cumsum(-1, dtype=torch.float64)
    total_R = cumulative_RV[:, -1]
    point_R = torch.minimum(point_R * total_R, total_R.nextafter(torch.zeros_like(total_R)))
    return torch.searchsorted(cumulative_RV, point_R[:, None], right=True)[:, 0]
