"""`grace cascade`: what it gives to ask a large model where a small one is not sure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grace.cli.options import Json, examples
from grace.errors import ConfigError, packages_for
from grace.store import write_bytes

if TYPE_CHECKING:
    from grace.measuring import Both
    from grace.thresholds.cascade import Forwarded

PLOTS = (".svg", ".png", ".pdf")
ROUTES = {
    "grace": "by confidence",
    "likelihood": "by likelihood",
    "chance": "by chance",
    "oracle": "oracle",
}
EXAMPLES = (
    examples(
        "grace cascade runs/small runs/large",
        "grace cascade small.jsonl large.jsonl",
        "grace cascade small.jsonl large.jsonl --target-accuracy 0.8 --plot cascade.svg",
    )
    + "\n\nIn a run, the test answers count. A line of a file is"
    ' {"question": "...", "confidence": 0.8, "correct": true}; those of the large model need no'
    " confidence. `grace label` writes such lines, and `grace score` adds the confidence. The"
    " threshold is what --below of `grace proxy` and `grace serve` takes."
)


def cascade(
    small: Annotated[
        Path,
        typer.Argument(
            metavar="SMALL", help="Run of the small model, or its graded answers with confidence."
        ),
    ],
    large: Annotated[
        Path,
        typer.Argument(
            metavar="LARGE",
            help="Run of the large model, or its graded answers, for the same questions.",
        ),
    ],
    target_accuracy: Annotated[
        float | None, typer.Option(help="Share of all answers that must be right, such as 0.8.")
    ] = None,
    delta: Annotated[
        float, typer.Option(help="Accepted probability that the guarantee does not hold.")
    ] = 0.05,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the curve: .svg, .png or .pdf.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure the gain from sending unsure questions to a larger model.

    The exit code is 1 if no threshold can guarantee the target accuracy.
    """
    from grace.measuring import read_both
    from grace.thresholds import cascade as rules

    if plot is not None and plot.suffix not in PLOTS:
        raise ConfigError(f"--plot is {plot}; name a file that ends in {', '.join(PLOTS)}")
    both = read_both(small, large)
    confidence = [float("nan") if c is None else c for c in both.confidence]
    others = {} if both.likelihood is None else {"likelihood": both.likelihood}
    curve = rules.curve(confidence, both.small, both.large, others)
    chosen = None
    if target_accuracy is not None:
        chosen = rules.cascade(
            confidence, both.small, both.large, target=target_accuracy, delta=delta
        )
    if plot is not None:
        fine = rules.curve(confidence, both.small, both.large, others, shares=FINE)
        with packages_for("grace cascade --plot"):
            from grace.report.figures import draw_cascade

            write_bytes(plot, draw_cascade(fine, ROUTES, plot.suffix[1:]))
        print(f"plot:   {plot}")
    if as_json:
        told: dict[str, Any] = {
            "n": len(both.small),
            "curve": [dataclasses.asdict(p) for p in curve],
        }
        told |= {"guarantee": dataclasses.asdict(chosen)} if chosen else {}
        print(json.dumps(told, indent=2))
    else:
        _show(both, curve)
        print(chosen or "a threshold with a guarantee: --target-accuracy")
    if chosen is not None and chosen.tau is None:
        raise typer.Exit(1)


FINE = tuple(number / 50 for number in range(51))


def _show(both: Both, curve: Sequence[Forwarded]) -> None:
    """Print the curve as a table, and where it reaches the large model."""
    from rich.console import Console
    from rich.table import Table

    n = len(both.small)
    print(f"{n} questions: small {sum(both.small) / n:.1%} right, large {sum(both.large) / n:.1%}")
    if both.alone:
        print(f"note: {both.alone} questions that only one of the files has are left out")
    shown = [name for name in ROUTES if name in curve[0].accuracy]
    table = Table(box=None)
    for name in ("forwarded", "--below", *(ROUTES[name] for name in shown)):
        table.add_column(name, justify="right", no_wrap=True)
    for point in curve:
        cells = [f"{point.share:.0%}", "-" if point.below is None else f"{point.below:.3f}"]
        for name in shown:
            text = f"{100 * point.accuracy[name]:.1f}"
            if name == "grace":
                low, high = point.interval
                text += f" ({100 * low:.1f} to {100 * high:.1f})"
            cells.append(text)
        table.add_row(*cells)
    Console(width=100, highlight=False).print(table)
    enough = [one for one in curve if one.accuracy["grace"] >= curve[-1].accuracy["grace"]]
    print(f"as often right as the large model from {enough[0].share:.0%} of its calls on")
