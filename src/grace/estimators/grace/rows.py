"""GrACE's rows without evidence: logistic regression on the hidden states that c reads, alone.

It is fitted anew, since rows that are fitted together with the evidence leave out what that already
explains. Beside `evidence` it shows which of the two c comes from. Cost: one more forward pass for
each response, for its hidden states; read while generating, they would cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from grace.config import setting
from grace.engines import LAST, Engine
from grace.estimators import Answers, Fitted, Rows, Samples, Splits
from grace.estimators.probes.states import fit_on_states
from grace.methods.grace.fit import placed
from grace.probe.rows import Array


@dataclass(frozen=True, slots=True)
class RowsAlone:
    """sigmoid(w . states + bias), with the states of `grace`: the last, the prompt's, the answer's.

    States and answers are the backbone's, also where LoRA is kept.
    """

    layer: int = setting(
        LAST,
        "0: the last hidden state; N: the MLP of block N; unless set, what `grace` reads",
        low=0,
    )
    answers: ClassVar[Answers] = "base"

    def fit(self, splits: Splits, engine: Engine, seed: int) -> Fitted:
        """Fit weights and bias on the training responses."""

        def read(samples: Samples, rows: Rows) -> list[Array]:
            return placed(engine.features(*samples.token_ids(rows), self.layer))

        return fit_on_states(read, splits, seed)


ESTIMATOR = RowsAlone
