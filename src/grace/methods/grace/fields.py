"""One fit for whole answers and for the fields of structured ones.

A field is a row of the fit like a whole answer (`grace.engines.reading` says what is read of it),
so both share the rows of the tokens that are read. The log-probabilities have weights of their own
for whole answers and for fields, and a field has an offset: the log-odds of its share of right
values, drawn towards that of all fields where it has few.

Shapes: N rows, F features of a row, X columns of the fit.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from grace.evidence import FEATURES, Evidence
from grace.evidence.familiar import Familiar, Own
from grace.methods.grace.fit import evidence_of
from grace.probe.rows import Array

DRAWN = 10.0  # values of a field at which its own share of right ones counts half
Name = str | None
"""The field of a row; None for a whole answer."""


class FieldColumns:
    """The columns of a fit to rows of whole answers and of fields, and what it says of each.

    A column of the offset is that of the other folds, so that no row has seen its own grade.
    """

    def __init__(
        self, features_NF: Array, names_N: Sequence[Name], labels_N: Array, fold_N: Array
    ) -> None:
        self._features_NF = features_NF
        self._names_N = np.array([name or "" for name in names_N])
        self._whole_N = np.array([name is None for name in names_N])
        self._offsets = _offsets(self._names_N, self._whole_N, labels_N)
        self._labels_N, self._fold_N = labels_N, fold_N

    @property
    def matrix_NX(self) -> Array:
        """The columns: of whole answers, of fields, and the likelihood, which is free."""
        offset_N = np.zeros(len(self._names_N))
        for fold in range(int(self._fold_N.max()) + 1):
            out_N = self._fold_N == fold
            rest = (each_N[~out_N] for each_N in (self._names_N, self._whole_N, self._labels_N))
            offsets = _offsets(*rest)
            offset_N[out_N] = [offsets.get(name, offsets[""]) for name in self._names_N[out_N]]
        whole_N1, field_N1 = self._whole_N[:, None], ~self._whole_N[:, None]
        shared_NF = self._features_NF
        columns = [
            *(shared_NF * whole_N1, whole_N1 * 1.0),
            *(shared_NF[:, :-1] * field_N1, offset_N[:, None] * field_N1),
            shared_NF[:, -1:],
        ]
        return np.concatenate(columns, axis=1)

    def offset(self, name: Name) -> float:
        """Return the offset of a field, that of all fields for one that is not known."""
        return self._offsets.get(name or "", self._offsets[""])

    def split(self, fitted: Evidence) -> Evidence:
        """Return the evidence of whole answers, with that of each field, of one fit to all."""
        made = self._evidence(fitted, None)
        names = ["", *sorted({*self._names_N[~self._whole_N].tolist()} - {""})]
        return replace(made, fields={name: self._evidence(fitted, name) for name in names})

    def _evidence(self, fitted: Evidence, name: Name) -> Evidence:
        rows_N = self._whole_N if name is None else ~self._whole_N
        seen_NF = self._features_NF[rows_N] if rows_N.any() else self._features_NF
        own = (self._names_N == name).sum() if name else rows_N.sum()
        weights_F, bias = self._weights(np.array(fitted.weights), name)
        center_F = seen_NF.mean(0)
        bias += fitted.bias - float(np.dot(fitted.weights, fitted.center))
        familiar = fitted.familiar

        def moved(part: Familiar | Own) -> dict[str, Any]:  # its weights are of columns less means
            other_F, more = self._weights(np.array(part.weights), name)
            more += part.bias - float(np.dot(part.weights, fitted.center))
            return {"weights": tuple(other_F.tolist()), "bias": more + float(other_F @ center_F)}

        if familiar is not None:
            alone = tuple(replace(one, **moved(one)) for one in familiar.own)
            familiar = replace(familiar, **moved(familiar), own=alone)
        made = evidence_of(seen_NF, weights_F, bias)
        return replace(made, limit=math.log(max(int(own), 1) + 1), familiar=familiar)

    def _weights(self, weights_X: Array, name: Name) -> tuple[Array, float]:
        """Return the weights of the features for a field, and what its own column adds."""
        count, likelihood = len(FEATURES), weights_X[-1]
        if name is None:
            weights_F, offset = weights_X[:count].copy(), float(weights_X[count])
        else:
            weights_F = np.append(weights_X[count + 1 : 2 * count], 0.0)
            offset = float(weights_X[2 * count]) * self.offset(name)
        weights_F[-1] += likelihood
        return weights_F, offset


def _offsets(names_N: Array, whole_N: Array, labels_N: Array) -> dict[str, float]:
    """Return the offset of each field, and that of all others under ""."""
    field_N = ~whole_N
    base = (labels_N[field_N].sum() + 1) / (field_N.sum() + 2)
    count = collections.Counter(names_N[field_N].tolist())
    right = collections.Counter(names_N[field_N & (labels_N > 0)].tolist())
    shares = {name: (right[name] + DRAWN * base) / (count[name] + DRAWN) for name in count}
    return {name: math.log(p / (1 - p)) for name, p in {**shares, "": base}.items()}
