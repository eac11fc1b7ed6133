"""Style, panels, ticks and saving of every figure; the same figure gives the same bytes.

`INK` marks everything that the page recolours for dark mode.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

INK = "#1f2328"
BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "#9aa4b0"
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Okabe and Ito's colours, which colour-blind readers can tell apart."""

STYLE = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.labelsize": 9,
    "axes.linewidth": 0.7,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "axes.titlecolor": INK,
    "figure.dpi": 100,
    "font.family": ["DejaVu Sans"],
    "font.size": 8.5,
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    "savefig.dpi": 200,
    "savefig.facecolor": "white",
    "svg.fonttype": "none",
    "svg.hashsalt": "grace",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
}


THEMED = {
    "#0072b2": "blue",
    "#d55e00": "orange",
    "#009e73": "green",
    "#cc79a7": "pink",
    "#e69f00": "yellow",
    "#56b4e9": "sky",
    "#9aa4b0": "grey",
    "#59636e": "soft",
    "#8a6d3b": "yellow",
    "#5b7f95": "sky",
    "#7a5c86": "pink",
}
"""What the page calls each colour of the figures: it has one for a light and a dark theme."""


class Figure(NamedTuple):
    """A drawn figure: file name without ending, what it shows, and its files by their endings.

    Without `inline` the page shows the same otherwise.
    """

    name: str
    title: str
    caption: str
    group: str
    files: dict[str, bytes]
    inline: bool = True

    @property
    def svg(self) -> str:
        """The figure as SVG."""
        return self.files["svg"].decode()


def panels(
    count: int, *, width: float, height: float, columns: int = 4, share_y: bool = False
) -> tuple[Any, list[Any]]:
    """Return a figure and its panels: at most `columns` in a row, rows as even as can be."""
    from matplotlib.figure import Figure as Canvas
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    rows = math.ceil(count / columns)
    columns = math.ceil(count / rows)
    spaced = ConstrainedLayoutEngine(h_pad=0.08, w_pad=0.05)
    figure = Canvas(figsize=(columns * width + 0.6, rows * height), layout=spaced)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=share_y)
    axes = list(grid.ravel())
    for spare in axes[count:]:
        spare.set_axis_off()
    return figure, axes


def outer_labels(axes: Sequence[Any], count: int, x: str, y: str) -> None:
    """Label the axes at the left and those with nothing below."""
    columns = math.ceil(count / math.ceil(count / 4))
    for at, axis in enumerate(axes[:count]):
        if at + columns >= count:
            axis.set_xlabel(x)
        if at % columns == 0:
            axis.set_ylabel(y)


def unit_ticks(axis: Any, *, y: bool = True) -> None:
    """Put the same five ticks on axes from 0 to 1."""
    ticks = [0, 0.25, 0.5, 0.75, 1]
    names = ["0", ".25", ".5", ".75", "1"]
    axis.set_xticks(ticks, names)
    if y:
        axis.set_yticks(ticks, names)


FORMATS: dict[str, dict[str, Any]] = {
    "svg": {"transparent": True, "metadata": {"Date": None, "Creator": None}},
    "pdf": {"metadata": {"CreationDate": None, "Creator": None, "Producer": None}},
    "png": {"metadata": {"Software": None}},
}
"""Endings of a figure's files, and what keeps dates and program names out of each."""


def saved(
    figure: Any, name: str, title: str, caption: str, group: str, *, inline: bool = True
) -> Figure:
    """Save a drawn figure as vectors, for a paper, and as an image."""
    files = {}
    for ending, options in FORMATS.items():
        file = io.BytesIO()
        figure.savefig(file, format=ending, **options)
        figure.set_layout_engine(None)  # the layout stays; "none" would draw everything twice
        files[ending] = file.getvalue()
    return Figure(name, title, caption, group, files, inline)
