"""A report of how good confidences are: report.json, report.md, report.html and figures.

    inputs.py   plain values of one run; `merge` joins several
    summary/    inputs -> rows: metrics, paired differences, marks, replayed votes
    rows/       `Report`, the frozen rows that report.json holds
    groups.py   rows by task and estimator, all seeds together
    tables/     groups -> tables of cells; sentences.py: what is said beside them
    console.py, markdown.py, page/, figures/    show them

Whatever is shown is made from the rows alone, so a report can be shown again from report.json. The
same input gives the same bytes.
"""

from __future__ import annotations

from pathlib import Path

from grace.report.console import render_table
from grace.report.inputs import EstimatorResult, RatedAnswer, Replay, ReportInput, Traced, merge
from grace.report.rows import Report, from_json, to_json
from grace.report.rows.answers import TargetRow, Validation
from grace.report.stored import checked_report
from grace.report.summary import summarize
from grace.store import write_bytes, write_json

__all__ = [
    "EstimatorResult",
    "RatedAnswer",
    "Replay",
    "Report",
    "ReportInput",
    "TargetRow",
    "Traced",
    "Validation",
    "checked_report",
    "from_json",
    "merge",
    "render_table",
    "summarize",
    "to_json",
    "write_report",
]


def write_report(report: Report, directory: Path) -> list[Path]:
    """Write figures, report.md, report.html and, last, report.json; return the paths."""
    from grace.report.figures import draw
    from grace.report.markdown import markdown
    from grace.report.page import render_page

    figures = draw(report)
    files = {
        f"figures/{figure.name}.{ending}": data
        for figure in figures
        for ending, data in figure.files.items()
    }
    files["report.md"] = markdown(report).encode()
    files["report.html"] = render_page(report, figures).encode()
    for name, data in files.items():
        write_bytes(directory / name, data)
    write_json(directory / "report.json", to_json(report))
    return [directory / name for name in [*files, "report.json"]]
