"""Colours, style, panels, ticks and saving of figures; the same figure gives the same bytes.

Text and axes are drawn in `INK`, which the page replaces by the colour of its text.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

INK = "#1f2328"
BLUE, ORANGE, GREEN, PINK, YELLOW, SKY = PALETTE = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
)
"""Okabe and Ito's colours, which colour-blind readers can tell apart."""

GREY = "#9aa4b0"
SOFT = ("#59636e", "#8a6d3b", "#5b7f95", "#7a5c86")

THEMED = {
    BLUE: "blue",
    ORANGE: "orange",
    GREEN: "green",
    PINK: "pink",
    YELLOW: "yellow",
    SKY: "sky",
    GREY: "grey",
    **dict(zip(SOFT, ("soft", "yellow", "sky", "pink"), strict=True)),
}
"""The page's name for each colour, which it has for a light and for a dark theme."""

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
    "text.parse_math": False,  # a name may hold dollar signs
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
}

FORMATS: dict[str, dict[str, Any]] = {
    "svg": {"transparent": True, "metadata": {"Date": None, "Creator": None}},
    "pdf": {"metadata": {"CreationDate": None, "Creator": None, "Producer": None}},
    "png": {"metadata": {"Software": None}},
}
"""The file formats, each with the options that keep dates and program names out of it."""


class Figure(NamedTuple):
    """A drawn figure: its name without ending, and its files by their endings.

    The page shows it with the other figures of its `group`, but for `inline=False`.
    """

    name: str
    title: str
    caption: str
    group: str
    files: dict[str, bytes]
    inline: bool = True


def panels(
    count: int, *, width: float, height: float, columns: int = 4, share_y: bool = False
) -> tuple[Any, list[Any]]:
    """Return a figure and its panels: at most `columns` in a row, in rows of even length."""
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
    return figure, axes[:count]


def outer_labels(axes: Sequence[Any], x: str, y: str) -> None:
    """Label the panels at the left and at the bottom of a figure."""
    columns = axes[0].get_gridspec().ncols
    for at, axis in enumerate(axes):
        if at + columns >= len(axes):
            axis.set_xlabel(x)
        if at % columns == 0:
            axis.set_ylabel(y)


def unit_ticks(axis: Any, *, y: bool = True) -> None:
    """Put five ticks on the x axis, and on the y axis, from 0 to 1."""
    ticks = [0, 0.25, 0.5, 0.75, 1]
    names = ["0", ".25", ".5", ".75", "1"]
    axis.set_xticks(ticks, names)
    if y:
        axis.set_yticks(ticks, names)


def save(
    figure: Any, name: str, title: str, caption: str, group: str, *, inline: bool = True
) -> Figure:
    """Save a drawn figure in every format of `FORMATS`."""
    files = {}
    for ending, options in FORMATS.items():
        file = io.BytesIO()
        figure.savefig(file, format=ending, **options)
        figure.set_layout_engine(None)  # the layout stays; "none" would draw everything twice
        files[ending] = file.getvalue()
    return Figure(name, title, caption, group, files, inline)
