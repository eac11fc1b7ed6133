"""CISC: a vote weighted by the softmax of the confidences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from grace.config import setting
from grace.strategies.tally import Floats, Indices, VoteTable, heaviest_rows, never


@dataclass(frozen=True, slots=True)
class SoftmaxWeighted:
    """Confidence-informed self-consistency (CISC): votes weigh softmax(confidence / temperature).

    The softmax is over the votes of the question that have an answer and a confidence; the
    others weigh nothing. A high temperature makes this SC, a low one best-of-n. The paper tunes it
    per model and method on held-out questions; the default here is only a start.

    Source: Taubenfeld et al. 2025 (arXiv 2502.06233).
    """

    reads_confidence: ClassVar[bool] = True

    temperature: float = setting(0.3, "temperature of the softmax", low=1e-3)

    def stops(self, table: VoteTable) -> Indices:
        """Never stop before the budget is spent."""
        return never(table)

    def chooses(self, table: VoteTable) -> Indices:
        """Choose the answer with the largest sum of weights."""
        rated_RT = np.where(table.answer_RT >= 0, table.confidence_RT, np.nan)
        return heaviest_rows(table.answer_RT, self._weights(rated_RT))

    def _weights(self, confidence_RT: Floats) -> Floats:
        """Return the softmax in units of its largest entry: the order of the sums is the same."""
        known_RT = np.nan_to_num(confidence_RT, nan=-np.inf)
        above_R = np.maximum(known_RT.max(axis=1, initial=-1.0), -1.0)
        weight_RT: Floats = np.exp((known_RT - above_R[:, None]) / self.temperature)
        return weight_RT


STRATEGY = SoftmaxWeighted
