"""How estimators are called and ordered in tables and figures."""

from __future__ import annotations

LABELS = {
    "grace": "GrACE",
    "grace-paper": "GrACE (paper)",
    "grace-disc": "GrACE-Disc",
    "grace-pre": "GrACE-Pre",
    "grace-sft": "GrACE-SFT",
    "grace-feed": "GrACE-Feed",
    "rows": "<CNF> without evidence",
    "evidence": "Evidence alone",
    "likelihood": "Likelihood",
    "platt": "Platt scaling",
    "loglik": "Log-likelihood, logistic",
    "p_true": "P(True)",
    "p_true_tuned": "P(True), tuned",
    "p_true_supervised": "P(True), supervised",
    "verbal": "Verbal",
    "verbal_tuned": "Verbal, tuned",
    "apricot": "Apricot",
    "actcab": "ActCab",
    "probe": "Probe",
    "deepconf": "DeepConf",
    "deepconf_logistic": "DeepConf, logistic",
    "semantic_entropy": "Semantic entropy",
    "consistency": "Consistency",
}
"""How estimators are shown, in this order; others follow by name."""


BASE = "@base"  # after the name of what was trained: it rates its backbone's answers


def label(estimator: str) -> str:
    """Return how an estimator is shown, "name+recalibration" and "name@base" included.

    An unknown name keeps its letters; only underscores become spaces.
    """
    full, plus, recalibration = estimator.partition("+")
    name = full.removesuffix(BASE)
    shown = LABELS.get(name, name.replace("_", " "))
    shown += "" if name == full else " on the backbone's answers"
    return f"{shown} + {recalibration.replace('_', ' ')}" if plus else shown


def as_code(text: str) -> str:
    """Return Markdown in which the token's name is set as code: it would be read as a tag."""
    return text.replace("<CNF>", "`<CNF>`")


def estimator_order(estimator: str) -> tuple[int, str]:
    """Sort key: known estimators in the order of `LABELS`, each before its recalibrations."""
    name = estimator.partition("+")[0].removesuffix(BASE)
    known = list(LABELS)
    return (known.index(name) if name in LABELS else len(known), estimator)
