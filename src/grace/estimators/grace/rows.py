"""GrACE's read-out without evidence: logistic regression on the hidden states alone.

A fit of its own, since rows that were fitted together with the evidence leave to it what it says
already. Beside `evidence` it tells which of the two c comes from. Here it costs one more forward
per response, for the states; read while generating, it would cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from grace.engines import Engine
from grace.estimators import Answers, Fitted, Known, Samples
from grace.estimators.probes.states import fit_on_states
from grace.probe.readout import SHARES, blend, step_states
from grace.probe.rows import Array


@dataclass(frozen=True, slots=True)
class RowsAlone:
    """sigmoid(w . state + bias); the state as for `grace`: a blend of all steps and the last one.

    The backbone's states and answers, also where LoRA is kept.
    """

    answers: ClassVar[Answers] = "base"

    def fit(self, known: Known, engine: Engine, seed: int) -> Fitted:
        """Fit weights and bias on the training responses, and choose the blend.

        Raises:
            DataError: all of them are right, or all are wrong.
        """

        def read(samples: Samples, rows: Sequence[int]) -> list[Array]:
            tokens = [samples.responses[row].token_ids for row in rows]
            made = engine.features([samples.prompts[row] for row in rows], tokens)
            states = step_states(*made, [len(ids) for ids in tokens])
            return [blend(states, share) for share in SHARES]

        return fit_on_states(read, known, seed)


ESTIMATOR = RowsAlone
