"""Weights of token-probability features, for the end of an answer and for every token of it."""

from grace.evidence import Evidence
from grace.evidence.trace import Trace

EVIDENCE = Evidence(
    (0.3, -0.2, 0.1, 0.2, 1.5, -0.7, 0.6, 1.2),
    (-0.5, -1.0, -2.0, 0.7, 0.4, 0.5, 0.6, 0.5),
    0.4,
    0.8,
)
TRACE = Trace(
    weights=(0.4, -0.3, 0.1, 0.2, 1.1, -0.6, 0.02, 0.3, 0.5, -0.2, 0.04),
    center=(-0.5, -1.0, -2.0, 0.7, 0.4, 0.5, 3.0, 0.1, 0.2, 0.1, 0.3),
    bias=-0.3,
    low=(-9.0,) * 11,
    high=(9.0,) * 11,
    limit=5.0,
)
