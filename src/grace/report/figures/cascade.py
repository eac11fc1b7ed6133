"""The figure of a cascade: accuracy over the share of questions that a large model answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from grace.report.figures.canvas import BLUE, GREEN, GREY, ORANGE, STYLE, panels, save
from grace.thresholds.cascade import Forwarded

LOOKS = {
    "grace": {"color": BLUE},
    "likelihood": {"color": ORANGE, "linestyle": "--"},
    "chance": {"color": GREY, "linestyle": ":"},
    "oracle": {"color": GREEN, "linestyle": "-."},
}


def draw_cascade(curve: Sequence[Forwarded], names: Mapping[str, str], ending: str) -> bytes:
    """Draw the accuracy of each route, that of the confidence with its interval; one file."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        figure, (axis,) = panels(1, width=4.6, height=3.4)
        share = [100 * point.share for point in curve]
        for name in curve[0].accuracy:
            right = [100 * point.accuracy[name] for point in curve]
            axis.plot(share, right, label=names[name], linewidth=1.3, **LOOKS[name])
        low, high = zip(*(point.interval for point in curve), strict=True)
        scaled = ([100 * one for one in ends] for ends in (low, high))
        axis.fill_between(share, *scaled, color=BLUE, alpha=0.15, linewidth=0)
        axis.set(xlabel="Questions that the large model answers (%)", ylabel="Accuracy (%)")
        axis.legend(fontsize=7)
        return save(figure, "cascade", "", "", "").files[ending]
