"""CISC: a vote weighted by the softmax of the confidences."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grace.config import setting
from grace.strategies.tally import FixedBudget, Indices, VoteTable, heaviest_rows


@dataclass(frozen=True, slots=True)
class SoftmaxWeighted(FixedBudget):
    """Confidence-informed self-consistency (CISC): votes weigh softmax(confidence / temperature).

    The softmax is over the votes of the question that have an answer and a confidence; the
    others weigh nothing. A high temperature makes this SC, a low one best-of-n. The paper tunes it
    per model and method on held-out questions; the default here is only a start.

    Source: Taubenfeld et al. 2025 (arXiv 2502.06233).
    """

    temperature: float = setting(0.3, "temperature of the softmax", low=1e-3)

    def chooses(self, table: VoteTable) -> Indices:
        """Choose the answer with the largest sum of weights."""
        rated_RT = (table.answer_RT >= 0) & ~np.isnan(table.confidence_RT)
        value_RT = np.where(rated_RT, table.confidence_RT, -np.inf)
        top_R1 = value_RT.max(axis=1, keepdims=True, initial=-1.0)
        # In units of the largest weight, which leaves the order of the sums as it is.
        weight_RT = np.exp((value_RT - top_R1) / self.temperature)
        return heaviest_rows(table.answer_RT, weight_RT)


STRATEGY = SoftmaxWeighted
