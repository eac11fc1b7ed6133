"""A probe: logistic regression on hidden states of the layer that rates held-out answers best.

It has the states, the search for a layer, the penalties and the folds that the rows of GrACE have,
but no log-probabilities. Read while generating it would cost nothing, as rows of the vocabulary do;
here it takes one more forward pass over prompt and response.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from grace.config import setting
from grace.engines import LAST, Engine
from grace.estimators import Answers, Fitted, Rows, Samples, Splits, ended_rows
from grace.estimators.probes.states import fit_on_states, known
from grace.methods.grace.fit import choose_layer, placed
from grace.probe.features import feature_parts
from grace.probe.rows import Array


@dataclass(frozen=True, slots=True)
class StateProbe:
    """sigmoid(w . states + bias), with the states of the response's end, its prompt's and its mean.

    States and answers are the backbone's.
    """

    layers: tuple[int, ...] = setting(
        (LAST,),
        "0: the last hidden state; N: the MLP of block N; of several the best is taken; unless "
        "set, those among which grace chooses",
    )
    answers: ClassVar[Answers] = "base"
    with_tokens: ClassVar[bool] = False

    def fit(self, splits: Splits, engine: Engine, seed: int) -> Fitted:
        """Choose the layer, and fit weights and bias on the training responses."""
        train, rows = splits.train, ended_rows(splits.train)
        label_N, groups = known(train, rows)

        def read(samples: Samples, rows: Rows, layer: int) -> list[Array]:
            states = placed(engine.features(*samples.token_ids(rows), layer))
            if not self.with_tokens:
                return states
            responses = [samples.responses[row] for row in rows]
            return [*states, *feature_parts(("likelihood",), {}, responses)]

        chosen = choose_layer(
            lambda layer: read(train, rows, layer), self.layers, label_N, groups, seed=seed
        )
        return fit_on_states(
            lambda samples, rows: read(samples, rows, chosen.layer), splits, seed, chosen.first
        )


ESTIMATOR = StateProbe
