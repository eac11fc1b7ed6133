"""The figures of a report, drawn from report.json alone: same numbers in, same bytes out.

Colours are safe for colour-blind readers (Okabe and Ito), and nothing is told by colour alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from grace.report.canvas import STYLE, Figure, saved
from grace.report.diagrams import (
    draw_confidence,
    draw_metrics,
    draw_reliability,
    draw_time,
    draw_transfer,
    timed,
)
from grace.report.groups import Group, at_budget, curves, groups, transfers
from grace.report.plots import draw_scaling, draw_targets, draw_used
from grace.report.rows import Report, Transfer

GENERALIZATION = "generalization"
TARGETS = "targets"
"""What the figures that belong to no group of estimators are about."""


def draw(report: Report) -> list[Figure]:
    """Draw every figure that the report has numbers for; matplotlib is imported here."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        return _unique_names(_figures(report))


def _figures(report: Report) -> Iterator[Figure]:
    for group in groups(report):
        yield from _group_figures(group)
    yield from _generalization(report)
    yield from _targets(report)
    yield from _scaling(report)


def scaling_group(task: str, backbone: str) -> str:
    """Return the group of the figures on test-time scaling of one task and backbone."""
    return f"scaling {task} {backbone}"


def _group_figures(group: Group) -> Iterator[Figure]:
    name, title = slug(group.title), group.title
    shown = [rated for rated in group.rated if rated.num_answers]
    if not shown:
        return
    yield saved(
        draw_metrics(shown),
        f"metrics-{name}",
        f"Calibration and discrimination on {title}",
        "ECE and Brier score are better to the left, AUROC to the right; whiskers are bootstrap "
        "intervals.",
        title,
    )
    yield saved(
        draw_reliability(shown),
        f"reliability-{name}",
        f"Reliability diagrams on {title}",
        "A bar is the accuracy of the answers in one bin of confidence, its colour their "
        "share of all answers (darker is more); hatched is the gap to their mean confidence, "
        "orange where the model is too sure and blue where it is not sure enough.",
        title,
    )
    yield saved(
        draw_confidence(shown),
        f"confidence-{name}",
        f"Confidence of right and wrong answers on {title}",
        "Right answers up, wrong answers down: the further apart the two, the better "
        "confidence tells them apart.",
        title,
    )
    if len(timed(shown)) > 1:
        yield saved(
            draw_time(shown),
            f"time-{name}",
            f"Time and ECE on {title}",
            "Seconds to get one answer and its confidence, against ECE with its interval: "
            "the best place is the lower left.",
            title,
        )


def _generalization(report: Report) -> Iterator[Figure]:
    by_place: dict[tuple[str, str, str], list[dict[str, Transfer]]] = {}
    for by_metric in transfers(report):
        by_place.setdefault(next(iter(by_metric.values())).place, []).append(by_metric)
    for (task, train_task, backbone), pairs in by_place.items():
        yield saved(
            draw_transfer(pairs),
            f"generalization-{slug(task)}-from-{slug(train_task)}-{slug(backbone)}",
            f"{task}: trained on it, and trained on {train_task} ({backbone})",
            "An arrow leads from the value after training on the tested task to the value after "
            "training on the other; in brackets the change, orange where clearly worse, blue "
            "where clearly better, grey where the interval of the change holds 0.",
            GENERALIZATION,
        )


def _targets(report: Report) -> Iterator[Figure]:
    values = {entry.task: entry for entry in report.target_values}
    for task in dict.fromkeys(row.task for row in report.targets):
        rows = [row for row in report.targets if row.task == task and row.n]
        if rows:
            yield saved(
                draw_targets(rows, values.get(task)),
                f"targets-{slug(task)}",
                f"Calibration targets of {task}",
                "Left: a target is the accuracy of the training answers whose probe score falls "
                "in the same bin; above it their number. Right: the density of those targets; "
                "mass at both ends means that right and wrong answers were told apart.",
                TARGETS,
            )


def _scaling(report: Report) -> Iterator[Figure]:
    for (task, backbone), found in curves(report).items():
        name, title = f"{slug(task)}-{slug(backbone)}", f"on {task}, {backbone}"
        yield saved(
            draw_scaling(found),
            f"scaling-{name}",
            f"Accuracy over samples {title}",
            "Each point is one budget (1, 2, 4, ...), at the number of samples that it really "
            "used; further left is cheaper, higher is better. Whiskers are 95 % intervals over "
            "questions, and over seeds where there are three or more.",
            scaling_group(task, backbone),
        )
        stopping = [row for row in at_budget(found) if row.mean_samples < row.budget]
        if stopping:
            yield saved(
                draw_used(stopping),
                f"samples-{name}",
                f"Samples that were used {title}",
                f"Of up to {stopping[0].budget} samples, how many a strategy took before it "
                "stopped (T-hat); the dashed line is the mean.",
                scaling_group(task, backbone),
            )


def _unique_names(figures: Iterator[Figure]) -> list[Figure]:
    seen: dict[str, int] = {}
    named = []
    for figure in figures:
        count = seen[figure.name] = seen.get(figure.name, 0) + 1
        named.append(figure if count == 1 else figure._replace(name=f"{figure.name}-{count}"))
    return named


def slug(text: str) -> str:
    """Return a text as a part of a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "task"
