"""How estimators are called and ordered in tables and figures."""

from __future__ import annotations

LABELS = {
    "grace": "GrACE",
    "grace-paper": "GrACE (paper)",
    "grace-disc": "GrACE-Disc",
    "grace-pre": "GrACE-Pre",
    "grace-sft": "GrACE-SFT",
    "grace-feed": "GrACE-Feed",
    "likelihood": "Likelihood",
    "platt": "Platt scaling",
    "evidence": "Evidence alone",
    "p_true": "P(True)",
    "verbal": "Verbal",
    "apricot": "Apricot",
    "actcab": "ActCab",
    "probe": "Probe",
    "deepconf": "DeepConf",
    "semantic_entropy": "Semantic entropy",
    "consistency": "Consistency",
}
"""How estimators are shown, in this order; others follow by name."""


def label(estimator: str) -> str:
    """Return how an estimator is shown, "name+recalibration" included.

    An unknown name keeps its letters; only underscores become spaces.
    """
    name, plus, recalibration = estimator.partition("+")
    shown = LABELS.get(name, name.replace("_", " "))
    return f"{shown} + {recalibration.replace('_', ' ')}" if plus else shown


def estimator_order(estimator: str) -> tuple[int, str]:
    """Sort key: known estimators in the order of `LABELS`, each before its recalibrations."""
    name = estimator.partition("+")[0]
    known = list(LABELS)
    return (known.index(name) if name in LABELS else len(known), estimator)
