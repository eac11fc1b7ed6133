"""`grace scale` and `grace threshold`: what more samples buy, and how sure is sure enough."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grace.cli.options import Json, RunPath, examples

if TYPE_CHECKING:
    from grace.records import Threshold
    from grace.report.budgets import Kept

SCALE = examples("grace scale runs/qwen", "grace scale runs/qwen --samples 16 --estimators p_true")
THRESHOLD = examples(
    "grace threshold runs/qwen --target-accuracy 0.9",
    "grace threshold runs/qwen --target-accuracy 0.9 --mode early-stop --budget 8",
    "grace threshold runs/qwen --mode early-stop --margin 0.01",
)


def scale(
    path: RunPath,
    samples: Annotated[int, typer.Option(min=1, help="samples of every test question")] = 32,
    estimators: Annotated[
        str,
        typer.Option(
            metavar="NAMES", help="whose confidences vote too, by commas: p_true, verbal, ..."
        ),
    ] = "",
    strategy: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="a further strategy: grace-es,threshold=0.9; repeat"),
    ] = None,
    orders: Annotated[
        int, typer.Option(min=1, help="random orders of the samples to average over")
    ] = 50,
    as_json: Json = False,
) -> None:
    """Show what strategies make of more samples: accuracy, samples, tokens. Resumes.

    RUN is a finished run or study. Its report is made again, with the result in it.
    """
    from grace.pipeline.scaling import ScaleSettings, scale_runs

    names = tuple(name.strip() for name in estimators.split(",") if name.strip())
    settings = ScaleSettings(samples, names, tuple(strategy or ()), orders)
    result = scale_runs(path, settings)
    if as_json:
        print(json.dumps(result, indent=2, ensure_ascii=False))
        return
    rows = result["joint"] if "joint" in result else result["rows"]
    for about in dict.fromkeys((row["task"], row["backbone"]) for row in rows):
        for show, part in (
            (_show_table, rows),
            (_show_equal, result["equal_accuracy"]),
            (_show_promises, result["promises"]),
        ):
            show(about, [row for row in part if (row["task"], row["backbone"]) == about])
    print("grace-... and ...@grace vote over the tuned model's samples, the others over the")
    print(f"backbone's. Every budget, paired differences, promises, cases: {path}/scaling.json")
    print(f"report: {path}/report.html")


def threshold(
    path: RunPath,
    target_accuracy: Annotated[
        float | None, typer.Option(help="wanted share of right ones among the answers given")
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option(help="instead: most accuracy that early stopping may lose against SC"),
    ] = None,
    delta: Annotated[float, typer.Option(help="accepted risk that the promise is broken")] = 0.05,
    mode: Annotated[
        str, typer.Option(help="answer: one answer or none; early-stop: up to --budget samples")
    ] = "answer",
    budget: Annotated[
        int | None, typer.Option(help="most samples with early-stop; default: 8")
    ] = None,
    as_json: Json = False,
) -> None:
    """Choose a threshold that keeps a promise, on validation questions; `ask` then uses it.

    Exit code 1 when no threshold can promise it.
    """
    from grace.pipeline.guarantees import choose_threshold

    chosen = choose_threshold(
        path, mode=mode, target=target_accuracy, margin=margin, delta=delta, budget=budget
    )
    _show_threshold(chosen, path, as_json=as_json)
    if chosen.tau is None:
        raise typer.Exit(1)


def _show_table(about: tuple[str, str], rows: Sequence[dict[str, Any]]) -> None:
    """Print the strategies of one task at the budget of the paper's tables."""
    from grace.report.replays import shown_budget

    budget = shown_budget(row["budget"] for row in rows)
    _print(
        f"{about[0]}, {about[1]}: up to {budget} samples for each of {rows[0]['n']} questions",
        ("strategy", "accuracy [95 %]", "less sc [95 %]", "samples"),
        [
            (
                row["strategy"],
                _points(row["accuracy"], row["interval"]),
                "" if row["gain"] is None else _points(row["gain"], row["gain_interval"], "+"),
                f"{row['mean_samples']:.2f}",
            )
            for row in rows
            if row["budget"] == budget
        ],
    )


def _show_equal(about: tuple[str, str], rows: Sequence[dict[str, Any]]) -> None:
    """Print how many samples the accuracy of others takes."""
    if not rows:
        return
    _print(
        f"samples for the accuracy that others have with up to {rows[0]['budget']}",
        ("strategy", "as accurate as", "uses", "needs [95 %]", "saves [95 %]"),
        [
            (
                row["strategy"],
                row["reference"],
                f"{row['reference_samples']:.2f}",
                _number(row["samples"], row["samples_interval"]),
                _number(row["saved"], row["saved_interval"], "+"),
            )
            for row in rows
        ],
    )


def _show_promises(about: tuple[str, str], rows: Sequence[dict[str, Any]]) -> None:
    """Print how often promises made on random halves of the samples are broken."""
    from grace.report.budgets import promise_rows

    if not rows:
        return
    deltas = sorted({row["delta"] for row in rows})
    _print(
        f"promises broken (on the rest) / made, % of {rows[0]['splits']:,} random halves",
        ("promise, and risk delta", *(f"{delta:g}" for delta in deltas)),
        [
            (
                text,
                *map(_kept, by_delta),
            )
            for text, _, by_delta in promise_rows(rows, deltas)
        ],
    )


def _kept(kept: Kept) -> str:
    if not kept.made:
        return "never made"
    return f"{100 * kept.broken:.1f} ({100 * kept.on_rest:.1f}) / {100 * kept.made:.1f}"


def _print(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table whose first column folds where the console is narrow."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column(heads[0], overflow="fold")
    for heading in heads[1:]:
        table.add_column(heading, justify="right", no_wrap=True)
    for cells in rows:
        table.add_row(*map(Text, cells))
    Console().print(table)


def _number(value: float | None, ends: Sequence[float | None], sign: str = "") -> str:
    """Return a number of samples with its interval; None is a curve that does not get there."""
    if value is None:
        return "never"
    low, high = ("never" if end is None else f"{end:{sign}.1f}" for end in ends)
    return f"{value:{sign}.2f} [{low}, {high}]"


def _points(value: float, interval: Sequence[float], sign: str = "") -> str:
    """Return a share in percentage points with its interval."""
    low, high = interval
    return f"{100 * value:{sign}.1f} [{100 * low:{sign}.1f}, {100 * high:{sign}.1f}]"


def _show_threshold(chosen: Threshold, path: Path, *, as_json: bool) -> None:
    from grace.records import to_json

    if as_json:
        print(json.dumps(to_json(chosen), indent=2, ensure_ascii=False))
        return
    print(chosen.promise)
    if chosen.tries > 1:
        print(
            f"this is promise {chosen.tries} asked of the same validation questions; delta is "
            "spent once, so decide what to ask for before looking"
        )
    if chosen.tau is None:
        print("nothing was chosen; `grace ask` goes on without a promise")
        return
    if chosen.test:
        print(f"check on test questions, which took no part: {chosen.test['shows']}")
    options = "" if chosen.mode == "answer" else f" --budget {chosen.budget}"
    print(f'next:   grace ask {path} "your question"{options}')
