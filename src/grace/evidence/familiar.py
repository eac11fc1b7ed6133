"""How familiar a prompt is, and what the log-odds of c are made of where it is not.

What a fit has learnt of hidden states holds for the kinds of questions that it has seen. A kind
that it has not seen shows at the end of the prompt, before a token of the answer is drawn: inside a
block in the middle the activations there are unlike those of all sources of training. The
*distance* of a prompt is the mean squared deviation of these activations from those of the nearest
source, in units of that source's own variance (`grace.methods.grace.prompts`).

Up to the distance `near`, which prompts of the fit keep from their own source, the rows count
whole; at twice that a half, at ten times that a tenth. The rest is what the log-probabilities say.

What holds for all sources is less than what is known of each. Within `near` the log-odds therefore
are a mean of those of the fit to all and of the fit to the nearest source alone, with the `share`
that held-out answers support. The latter falls to nothing at a quarter more than `near`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from grace.errors import ModelError

HALF = 0.5  # at twice the usual distance the evidence alone counts as much as the rows
STRANGE = 0.8  # how familiar a prompt is where the fit to the nearest source no longer counts


class Near(NamedTuple):
    """Where a prompt is, as an engine reads it."""

    distance: float  # from the nearest source
    source: int = 0  # its place
    own: float | None = None  # what the rows of this source's own read; None: there are none


@dataclass(frozen=True, slots=True)
class Own:
    """What the fit to one source alone adds to the joint one's evidence, and how much it counts."""

    share: float  # of the log-odds where a prompt is familiar
    weights: tuple[float, ...]  # of the evidence's features, less their mean in training
    bias: float


@dataclass(frozen=True, slots=True)
class Familiar:
    """When a prompt is familiar, and what takes the place of the rows where it is not."""

    near: float  # distance up to which a prompt is familiar
    weights: tuple[float, ...]  # of the evidence's features, less their mean in training
    bias: float  # log-odds where every feature is at its mean
    own: tuple[Own, ...] = ()  # of each source

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of grace.json."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Any, count: int) -> Familiar:
        """Read what `to_dict` wrote, of an evidence with so many features."""
        try:
            weights = tuple(map(float, data["weights"]))
            own = tuple(
                Own(float(one["share"]), tuple(map(float, one["weights"])), float(one["bias"]))
                for one in data.get("own", ())
            )
            found = cls(float(data["near"]), weights, float(data["bias"]), own)
            numbers = [found.near, found.bias, *weights]
            numbers += [value for one in own for value in (one.share, one.bias, *one.weights)]
            counts = {len(weights), *(len(one.weights) for one in own)}
            if counts != {count} or not all(map(math.isfinite, numbers)) or found.near <= 0:
                raise ValueError(f"{data!r}"[:60])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ModelError(
                "grace.json has an entry on familiar prompts that this version cannot use "
                f"({error}); install the version that fitted the model, or fit it again"
            ) from None
        return found

    def of(self, distance: float) -> float:
        """Return how familiar a prompt at a distance is, from 0 to 1."""
        return self.near / max(distance, self.near) if distance == distance else 0.0

    def state(self, near: Near, state: float, away: Sequence[float]) -> float:
        """Return what counts for `state` where a prompt is; `away`: features less their mean."""
        share = self.of(near.distance)
        if self.own and near.own is not None:
            own = self.own[near.source]
            counts = own.share * max(0.0, (share - STRANGE) / (1 - STRANGE))
            state += counts * (near.own + _sum(own, away) - state)
        return share * state + (1 - share) * _sum(self, away)


def _sum(part: Familiar | Own, away: Sequence[float]) -> float:
    return part.bias + sum(a * b for a, b in zip(part.weights, away, strict=True))
