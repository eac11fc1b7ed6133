"""The figures of a report, drawn from its rows alone: same numbers in, same bytes out.

Colours are safe for colour-blind readers (Okabe and Ito), and none carries meaning alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from grace.report.figures.answers import (
    estimator_figures,
    target_figures,
    trace_figures,
    transfer_figures,
)
from grace.report.figures.canvas import STYLE, Figure
from grace.report.figures.votes import vote_figures
from grace.report.rows import Report


def draw(report: Report) -> list[Figure]:
    """Draw every figure that the report has numbers for; matplotlib is imported here."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        return _unique_names(_figures(report))


def _figures(report: Report) -> Iterator[Figure]:
    yield from estimator_figures(report)
    yield from transfer_figures(report)
    yield from target_figures(report)
    yield from trace_figures(report)
    yield from vote_figures(report)


def _unique_names(figures: Iterator[Figure]) -> list[Figure]:
    """Number later figures of the same name, as tasks "a b" and "a/b" would share a file name."""
    seen: dict[str, int] = {}
    named = []
    for figure in figures:
        count = seen[figure.name] = seen.get(figure.name, 0) + 1
        named.append(figure if count == 1 else figure._replace(name=f"{figure.name}-{count}"))
    return named
