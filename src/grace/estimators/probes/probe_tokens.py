"""The probe, with features of the log-probabilities of the tokens beside the hidden states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from grace.estimators.probes.probe import StateProbe


@dataclass(frozen=True, slots=True)
class TokenProbe(StateProbe):
    """What GrACE reads, read in a second pass: log-odds of states and log-probabilities."""

    with_tokens: ClassVar[bool] = True


ESTIMATOR = TokenProbe
