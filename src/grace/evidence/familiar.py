"""How familiar a prompt is, and what the log-odds of c are made of where it is not.

What a fit has learnt of hidden states holds for the kinds of questions that it has seen. A kind
that it has not seen shows at the end of the prompt, before a token of the answer is drawn: inside a
block in the middle the activations there are unlike those of all sources of training. The
*distance* of a prompt is the mean squared deviation of these activations from those of the nearest
source, in units of that source's own variance (`grace.methods.grace.prompts`).

Up to the distance `near`, which prompts of the fit keep from their own source, the rows count
whole; at twice that a half, at ten times that a tenth. The rest is what the log-probabilities say.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from grace.errors import ModelError

HALF = 0.5  # at twice the usual distance the evidence alone counts as much as the rows


@dataclass(frozen=True, slots=True)
class Familiar:
    """When a prompt is familiar, and what takes the place of the rows where it is not."""

    near: float  # distance up to which a prompt is familiar
    weights: tuple[float, ...]  # of the evidence's features, less their mean in training
    bias: float  # log-odds where every feature is at its mean

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of grace.json."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Any, count: int) -> Familiar:
        """Read what `to_dict` wrote, of an evidence with so many features."""
        try:
            weights = tuple(map(float, data["weights"]))
            found = cls(float(data["near"]), weights, float(data["bias"]))
            finite = all(map(math.isfinite, (found.near, found.bias, *weights)))
            if len(weights) != count or not finite or found.near <= 0:
                raise ValueError(f"{data!r}"[:60])
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(
                "grace.json has an entry on familiar prompts that this version cannot use "
                f"({error}); install the version that fitted the model, or fit it again"
            ) from None
        return found

    def of(self, distance: float) -> float:
        """Return how familiar a prompt at a distance is, from 0 to 1."""
        return self.near / max(distance, self.near) if distance == distance else 0.0

    def state(self, distance: float, state: float, away: Sequence[float]) -> float:
        """Return what counts for `state` at a distance; `away`: features less their mean."""
        share = self.of(distance)
        alone = self.bias + sum(a * b for a, b in zip(self.weights, away, strict=True))
        return share * state + (1 - share) * alone
