"""`grace scale` and `grace threshold`: how many samples to vote over, and when to stop."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from grace.cli.options import Json, RunDevice, RunPath, examples, from_one, listed
from grace.errors import ConfigError
from grace.records import Threshold, to_json
from grace.store import read_json
from grace.store.inputs import is_source

SCALE_EXAMPLES = examples(
    "grace scale runs/mine", "grace scale runs/mine --samples 16 --estimators p_true"
)
THRESHOLD_EXAMPLES = examples(
    "grace threshold runs/mine --target-accuracy 0.9",
    "grace threshold runs/mine --target-accuracy 0.9 --mode early-stop --budget 8",
    "grace threshold runs/mine --target-accuracy 0.9 --mode early-stop --strategy grace-vote",
    "grace threshold runs/mix --target-accuracy 0.8 --mixture",
    "grace threshold scored.jsonl --target-accuracy 0.9",
)


def scale(
    path: RunPath,
    samples: Annotated[int, from_one(help="Number of samples of each test question.")] = 32,
    estimators: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMES", help="Also vote with these estimators, such as p_true,verbal."
        ),
    ] = None,
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMES", help="Further strategies to compare, such as grace-es,threshold=0.9."
        ),
    ] = None,
    orders: Annotated[int, from_one(help="Random orders to average over.")] = 50,
    device: RunDevice = None,
    as_json: Json = False,
) -> None:
    """Compare voting strategies by accuracy, samples and tokens.

    RUN is a finished run, or a directory of several; the result is added to its
    report. It also fits the strategy grace-vote, which votes then use where you
    name none. An interrupted command resumes when you repeat it.
    """
    from rich.console import Console

    from grace.pipeline.scaling import ScaleSettings, scale_runs
    from grace.report import Report, from_json
    from grace.report.console import console_table
    from grace.report.sentences import samples_saved, unlike_samples
    from grace.report.tables import scaling_tables

    settings = ScaleSettings(samples, tuple(listed(estimators)), tuple(listed(strategy)), orders)
    result = scale_runs(path, settings, device=device)
    if as_json:
        print(json.dumps(result, indent=2, ensure_ascii=False))
        return
    report = from_json(Report, read_json(path / "report.json"))
    for tables in scaling_tables(report).values():
        Console().print(*map(console_table, tables))
    for line in [*(f"warning: {one}" for one in unlike_samples(report)), samples_saved(report)]:
        Console().print(line, markup=False, highlight=False)
    print(f"every budget, paired differences: {path}/scaling.json")
    print(f"report: {path}/report.html")


def threshold(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="RUN|FILE",
            help="Directory of the run, or graded answers with a confidence, as `grace measure` "
            "takes them.",
        ),
    ],
    target_accuracy: Annotated[
        float, typer.Option(help="Share of the answers given that must be right, such as 0.9.")
    ],
    delta: Annotated[
        float, typer.Option(help="Accepted probability that the guarantee does not hold.")
    ] = 0.05,
    mode: Annotated[
        str,
        typer.Option(
            metavar="answer|early-stop",
            help="answer: give one answer or abstain; early-stop: sample until one is sure enough.",
        ),
    ] = "answer",
    budget: Annotated[
        int | None,
        typer.Option(show_default="8", help="With early-stop: largest number of samples."),
    ] = None,
    strategy: Annotated[
        str,
        typer.Option(
            metavar="grace-es|grace-vote",
            help="With early-stop: how the samples vote; grace-vote is fitted on half of the "
            "questions.",
        ),
    ] = "grace-es",
    mixture: Annotated[
        bool,
        typer.Option(
            "--mixture",
            help="With several sources: guarantee the accuracy for the mixture of sources only, "
            "not in each.",
        ),
    ] = False,
    device: RunDevice = None,
    as_json: Json = False,
) -> None:
    """Choose a confidence threshold that guarantees an accuracy, from the validation answers.

    `grace ask` and `grace serve` then use it. For several sources of questions
    the guarantee holds in each. The exit code is 1 if no threshold can guarantee
    the accuracy. For a file of graded answers, also those of another system, the
    threshold is only printed.
    """
    from grace.pipeline.scaling.guarantees import choose_threshold, threshold_of_answers

    about: dict[str, Any] = {"target": target_accuracy, "delta": delta, "mixture": mixture}
    rules: dict[str, Any] = {"mode": mode, "budget": budget, "strategy": strategy, "device": device}
    if not is_source(path):
        chosen = choose_threshold(path, **about, **rules)
    elif rules == {"mode": "answer", "budget": None, "strategy": "grace-es", "device": None}:
        chosen = threshold_of_answers(path, **about)
    else:
        raise ConfigError(f"{path} holds answers, not a run; leave out --{', --'.join(rules)}")
    _show_threshold(chosen, path, as_json=as_json)
    if chosen.tau is None:
        raise typer.Exit(1)


def _show_threshold(chosen: Threshold, path: Path, *, as_json: bool) -> None:
    from grace.cli.showing import show_next
    from grace.strategies import TEMPERATURE

    if as_json:
        print(json.dumps(to_json(chosen), indent=2, ensure_ascii=False))
        return
    print(chosen.promise)
    if chosen.sources:
        _show_sources(chosen)
    if chosen.tries > 1:
        print(
            f"note: this is guarantee {chosen.tries} from the same validation questions, but delta "
            "holds for one only; choose the target before you see a result"
        )
    if chosen.tau is None:
        if not is_source(path):
            print("no threshold is set now; `grace ask` goes on without a guarantee")
        if chosen.sources:
            print("for a guarantee in the mixture of these sources alone, add --mixture")
        return
    if chosen.test:
        print(f"check on the test questions, which were not used: {chosen.test['shows']}")
    if is_source(path):
        return
    options = "" if chosen.mode == "answer" else f" --budget {chosen.budget}"
    if options and chosen.budget == 1:  # one sample is no vote
        options += f" --strategy {chosen.strategy}"
    if options and chosen.temperature != TEMPERATURE:
        options += f" --temperature {chosen.temperature:g}"
    show_next(path, options=options)


def _show_sources(chosen: Threshold) -> None:
    """Print what the threshold, or else the strictest that was tested, does in each source."""
    from rich.console import Console
    from rich.table import Table

    tested = (chosen.test or {}).get("sources")
    table = Table("source", box=None)
    for head in ("answered", "right", "at least", *(("test: answered", "right") if tested else ())):
        table.add_column(head, justify="right", no_wrap=True)
    for one in chosen.sources:
        bound = f"{one['bound']:.1%}" if one["covered"] else "not covered"
        on_test = _counted(tested[one["source"]]) if tested else ()
        table.add_row(one["source"], *_counted(one), bound, *on_test)
    Console(highlight=False, markup=False).print(table)


def _counted(found: Mapping[str, Any]) -> tuple[str, str]:
    """Return the share of a source's questions that is answered, and of these that is right."""
    n, accepted, right = (found[name] for name in ("n", "accepted", "right"))
    answered = f"{accepted / n:.1%} of {n}" if n else "-"
    return answered, f"{right / accepted:.1%}" if accepted else "-"
