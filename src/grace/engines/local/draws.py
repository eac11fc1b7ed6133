"""The sampling settings and random numbers of each row of a batch.

Rows of several requests can be sampled side by side, each with its own temperature, top-p and
length. Shapes: R rows, T steps, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from grace.engines import Ids, Sampling, seed_from


class Part(NamedTuple):
    """Prompts with the same sampling settings; `keys` name them for the random numbers."""

    prompts: Sequence[Ids]
    sampling: Sampling
    keys: Sequence[str]

    @property
    def rows(self) -> int:
        """The number of samples; those of a prompt are side by side."""
        return len(self.prompts) * self.sampling.num_samples


@dataclass(frozen=True, slots=True)
class Draws:
    """The settings of R rows.

    `longest_R` is the most tokens of each row, `cuts` whether top-p cuts any row. `points_RT` holds
    the random numbers in [0, 1), None if every row is greedy.
    """

    temperature_R1: Tensor
    top_p_R1: Tensor
    cuts: bool
    longest_R: Tensor
    points_RT: Tensor | None

    @classmethod
    def of(cls, parts: Sequence[Part], device: torch.device) -> Draws:
        """Return the settings of the rows of some parts, one part after the other."""
        settings = [part.sampling for part in parts for _ in range(part.rows)]
        longest = [sampling.max_new_tokens for sampling in settings]
        points_RT = None
        if any(sampling.temperature > 0 for sampling in settings):
            points_RT = torch.from_numpy(_points(parts, max(longest))).to(device)
        temperature_R = torch.tensor([one.temperature for one in settings], device=device)
        top_p = [sampling.top_p for sampling in settings]
        return cls(
            temperature_R[:, None],
            torch.tensor(top_p, dtype=torch.float64, device=device)[:, None],
            min(top_p) < 1,
            torch.tensor(longest, device=device),
            points_RT,
        )

    def choose(self, logits_RV: Tensor, rows_R: Tensor, step: int) -> Tensor:
        """Return the next token of these rows, shape (R,)."""
        if self.points_RT is None:
            return logits_RV.argmax(-1)
        point_R = self.points_RT[rows_R, min(step, self.points_RT.shape[1] - 1)]
        top_p_R1 = self.top_p_R1[rows_R] if self.cuts else None
        temperature_R1 = self.temperature_R1[rows_R]
        greedy_R1 = temperature_R1 == 0
        drawn_R = _draw(logits_RV / temperature_R1.masked_fill(greedy_R1, 1), top_p_R1, point_R)
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


def _points(parts: Sequence[Part], num_steps: int) -> np.ndarray:
    """Return the random numbers of all rows, shape (R, T); those of greedy rows are 0."""
    points_RT = np.zeros((sum(part.rows for part in parts), num_steps))
    start = 0
    for part in parts:
        sampling = part.sampling
        samples = range(sampling.first_sample, sampling.first_sample + sampling.num_samples)
        if sampling.temperature > 0:
            points_RT[start : start + part.rows, : sampling.max_new_tokens] = uniforms(
                sampling.seed, part.keys, samples, sampling.max_new_tokens
            )
        start += part.rows
    return points_RT


def _draw(logits_RV: Tensor, top_p_R1: Tensor | None, point_R: Tensor) -> Tensor:
    """Return one token per row by inverting the cumulative distribution at a point in [0, 1).

    Top-p keeps the most probable tokens, up to the one with which their sum reaches it.
    """
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
