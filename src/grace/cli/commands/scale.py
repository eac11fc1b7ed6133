"""`grace scale` and `grace threshold`: what more samples buy, and how sure is sure enough."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grace.cli.options import Json, RunDevice, RunPath, examples, listed

if TYPE_CHECKING:
    from grace.records import Threshold

SCALE = examples("grace scale runs/qwen", "grace scale runs/qwen --samples 16 --estimators p_true")
THRESHOLD = examples(
    "grace threshold runs/qwen --target-accuracy 0.9",
    "grace threshold runs/qwen --target-accuracy 0.9 --mode early-stop --budget 8",
    "grace threshold runs/qwen --target-accuracy 0.9 --mode early-stop --drop 0.05",
)


def scale(
    path: RunPath,
    samples: Annotated[int, typer.Option(min=1, help="samples of every test question")] = 32,
    estimators: Annotated[
        list[str] | None,
        typer.Option(metavar="NAMES", help="also vote with the confidences of p_true,verbal,..."),
    ] = None,
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMES", help="further strategies to compare: sc,grace-es,threshold=0.9"
        ),
    ] = None,
    orders: Annotated[
        int, typer.Option(min=1, help="random orders of the samples to average over")
    ] = 50,
    device: RunDevice = None,
    as_json: Json = False,
) -> None:
    """Compare voting strategies by accuracy, samples and tokens. Resumes.

    RUN is a finished run or study. Its report is written again, with the result in it.
    """
    from rich.console import Console

    from grace.pipeline.scaling import ScaleSettings, scale_runs
    from grace.report import Report, from_json
    from grace.report.console import console_table
    from grace.report.tables.votes import scaling_tables
    from grace.store import read_json

    settings = ScaleSettings(samples, tuple(listed(estimators)), tuple(listed(strategy)), orders)
    result = scale_runs(path, settings, device=device)
    if as_json:
        print(json.dumps(result, indent=2, ensure_ascii=False))
        return
    report = from_json(Report, read_json(path / "report.json"))
    for tables in scaling_tables(report).values():
        Console().print(*map(console_table, tables))
    print(f"every budget, paired differences: {path}/scaling.json")
    print(f"report: {path}/report.html")


def threshold(
    path: RunPath,
    target_accuracy: Annotated[
        float, typer.Option(help="share of the given answers that must be right")
    ],
    delta: Annotated[float, typer.Option(help="accepted risk that the guarantee is false")] = 0.05,
    mode: Annotated[
        str, typer.Option(help="answer: one answer or none; early-stop: a vote of --budget samples")
    ] = "answer",
    budget: Annotated[
        int | None, typer.Option(help="with early-stop: most samples; default: 8")
    ] = None,
    drop: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="with early-stop: abort hopeless samples, and at most this share of right ones",
        ),
    ] = None,
    device: RunDevice = None,
    as_json: Json = False,
) -> None:
    """Choose a threshold with a guarantee, on validation questions; `ask` then uses it.

    The exit code is 1 if no threshold can guarantee it.
    """
    from grace.pipeline.scaling.guarantees import choose_threshold

    chosen = choose_threshold(
        path,
        target=target_accuracy,
        mode=mode,
        delta=delta,
        budget=budget,
        alpha=drop,
        device=device,
    )
    _show_threshold(chosen, path, as_json=as_json)
    if chosen.tau is None:
        raise typer.Exit(1)


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
