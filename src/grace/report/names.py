"""Labels and order of estimators, strategies, metrics and costs in a report."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from grace.strategies import BUDGET

FAMILIES = {
    "GrACE": {
        "grace": "GrACE",
        "grace-paper": "GrACE (paper)",
        "grace-disc": "GrACE-Disc",
        "grace-pre": "GrACE-Pre",
        "grace-sft": "GrACE-SFT",
        "grace-feed": "GrACE-Feed",
        "rows": "<CNF> without evidence",  # in reports of earlier versions
    },
    "From the probabilities of the answer's tokens": {
        "evidence": "Evidence alone",
        "likelihood": "Likelihood",
        "platt": "Platt scaling",
        "loglik": "Log-likelihood, logistic",
        "deepconf": "Least sure window",
        "deepconf_logistic": "Least sure window, logistic",
    },
    "From hidden states, in a second pass": {
        "actcab": "ActCab",
        "probe": "Probe",
        "probe_tokens": "Probe with token features",
    },
    "By asking the model about its answer": {
        "p_true": "P(True)",
        "p_true_tuned": "P(True), tuned",
        "p_true_supervised": "P(True), supervised",
        "verbal": "Verbal",
        "verbal_tuned": "Verbal, tuned",
    },
    "By another model": {"apricot": "Apricot"},
    "By comparing several answers": {
        "semantic_entropy": "Semantic entropy",
        "consistency": "Consistency",
    },
}
"""Labels of estimators by the kind of signal that they use, in the order of the tables."""

LABELS = {name: shown for family in FAMILIES.values() for name, shown in family.items()}

OURS = "grace"
"""The estimator that every other is compared with."""

BASE = "base"
"""The name of the backbone as a source of samples, and in "grace@base" of answers."""

BASELINE = "sc"
"""The strategy that every other is compared with."""

RULES = {
    "sc": "SC",
    "asc": "ASC",
    "esc": "ESC",
    "es": "ES",
    "cisc": "CISC",
    "best": "best of n",
    "vote": "vote",
}


class Column(NamedTuple):
    """What a table shows of each estimator: a metric in percent, a fitted number, or a cost."""

    key: str
    title: str
    better: int  # -1: lower, 1: higher, 0: neither
    meaning: str
    short: str = ""  # title on the console

    @property
    def heading(self) -> str:
        """The title, with an arrow towards better."""
        return self.title + {-1: " ↓", 0: "", 1: " ↑"}[self.better]

    @property
    def axis(self) -> str:
        """The title of a metric for an axis of a figure."""
        return f"{self.title} (%, {'lower' if self.better < 0 else 'higher'} is better)"


TRUE_ECE = (
    "Chance alone raises the ECE of a finite number of answers; its interval is that of the true "
    "ECE, without what chance adds. So an ECE can be at the upper end of its interval or above it, "
    "and an interval from 0.0 means that the confidence may be perfectly calibrated."
)
"""Said wherever an ECE is shown with its interval."""

MAIN = (
    Column(
        "ece",
        "ECE",
        -1,
        "mean distance between confidence and accuracy over equal-width bins; chance alone raises "
        "it, and the interval is that of the true one",
    ),
    Column("brier", "Brier", -1, "mean squared error of the confidence as a probability"),
    Column(
        "auroc",
        "AUROC",
        1,
        "probability that a right answer has a higher confidence than a wrong one; 50 is chance",
    ),
    Column("accuracy", "Accuracy", 1, "share of right answers among those with a confidence"),
)
DETAIL = (
    Column("adaptive_ece", "Adaptive ECE", -1, "ECE over bins with equal numbers of answers"),
    Column("smooth_ece", "Smooth ECE", -1, "ECE without bins, with a kernel of fitted width"),
    Column(
        "brier_calibration",
        "Brier: calibration",
        -1,
        "what calibration could take off the Brier score: the squared gaps in the bins of ECE, "
        "less what chance adds",
    ),
    Column("brier_refinement", "Brier: refinement", -1, "the rest of the Brier score"),
    Column("aurc", "AURC", -1, "error rate of the k most confident answers, averaged over k"),
    Column("wqd", "WQD", 1, "AUROC among several answers to the same question"),
)
FITTED = (
    Column(
        "p_calibrated",
        "p",
        0,
        "how often a perfectly calibrated confidence would show an ECE this large; below .05 it is "
        "not calibrated",
    ),
    Column(
        "slope",
        "slope",
        0,
        "the log-odds of being right are the slope times those of the confidence, plus the offset; "
        "1 when calibrated, less when too sure on both sides",
    ),
    Column("offset", "offset", 0, "0 when calibrated, less when too sure of everything"),
)
"""What says whether, and how, a confidence is off."""

COMPARED = {column.key: column.better for column in MAIN}
"""The metrics in which estimators are compared, each with its `Column.better`."""

COSTS = (
    Column(
        "seconds_per_answer",
        "s/answer",
        0,
        "seconds to get one answer and its confidence, on the hardware that the report names",
        "s/ans",
    ),
    Column(
        "extra_forward_tokens_per_answer",
        "extra tokens",
        0,
        "tokens fed to the model per answer, beyond the answer itself, to get the confidence",
        "+tok",
    ),
    Column(
        "extra_requests_per_answer",
        "extra requests",
        0,
        "calls of the model per answer, beyond the one that answers",
        "+req",
    ),
    Column(
        "trained_parameters",
        "trained parameters",
        0,
        "numbers that were fitted or trained",
        "params",
    ),
    Column(
        "fit_seconds",
        "s to fit",
        0,
        "seconds of training or fitting on the training answers, once",
        "s to fit",
    ),
    Column(
        "access",
        "needs",
        0,
        "access to the model: its text, log-probabilities, hidden states, or weights to train",
        "needs",
    ),
)
ACCESS = ("text", "logprobs", "hidden states", "weights")
"""The access to the model that an estimator needs, from least to most."""


def label(estimator: str) -> str:
    """Return the label of an estimator, also with +recalibration, @base and @run."""
    full, plus, recalibration = estimator.partition("+")
    name, _, at = full.partition("@")
    shown = LABELS.get(name, name.replace("_", " "))
    if at == BASE:
        shown += " on the backbone's answers"
    shown += f" + {recalibration.replace('_', ' ')}" if plus else ""
    return f"{shown} ({label(at)})" if at not in ("", BASE) else shown


def of_run(estimator: str, run: str) -> str:
    """Name an estimator after a run, where another run has other results for it."""
    full, plus, recalibration = estimator.partition("+")
    return f"{full}@{run}{plus}{recalibration}"


def family(estimator: str) -> str:
    """Return the title of the family that an estimator belongs to, "Others" if to none."""
    name = _plain(estimator)
    return next((title for title, labels in FAMILIES.items() if name in labels), "Others")


def estimator_order(estimator: str) -> tuple[int, str]:
    """Sort key: the order of `LABELS`, each estimator before its recalibrations, then by name."""
    name = _plain(estimator)
    order = list(LABELS)
    return (order.index(name) if name in LABELS else len(order), estimator)


def _plain(estimator: str) -> str:
    return estimator.partition("+")[0].partition("@")[0]


def as_code(text: str) -> str:
    """Set `<CNF>` as code in Markdown, where it would otherwise be read as a tag."""
    return text.replace("<CNF>", "`<CNF>`")


def samples_of(answers: str) -> str:
    """Name the model whose samples a vote is over."""
    return "the backbone's samples" if answers == BASE else f"{label(answers)}'s samples"


def shown_budget(budgets: Iterable[int]) -> int:
    """Return the budget that tables show: the paper's `BUDGET`, or else the largest."""
    replayed = set(budgets)
    return BUDGET if BUDGET in replayed else max(replayed)


def strategy_name(
    strategy: str, estimator: str | None, threshold: float | None, *, whose: bool = True
) -> str:
    """Return the label of `[ESTIMATOR-]RULE[,OPTIONS][@SAMPLES]`: "GrACE-ES (stop at 0.8)"."""
    name, _, samples = strategy.partition("@")
    rule, _, options = name.partition(",")
    source, dash, rule = rule.rpartition("-")
    shown = RULES.get(rule, rule)
    shown = f"{label(source)}-{shown}" if dash else shown
    about = [label(estimator)] if estimator not in (None, source) else []
    about += [f"{label(samples)}'s samples"] if samples and whose else []
    about += [one.replace("=", " ") for one in options.split(",") if one]
    if threshold is not None:
        about = [one for one in about if not one.startswith("threshold ")]
        about.append(f"stop at {threshold:g}")
    return f"{shown} ({', '.join(about)})" if about else shown


def slug(text: str) -> str:
    """Turn a text into a part of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "task"
