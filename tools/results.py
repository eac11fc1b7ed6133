"""Write the tables of README.md and of the results pages from the reports of runs.

    python tools/results.py keep runs/study NAME    # store the numbers that the tables need
    python tools/results.py                         # write every table of the pages again

`keep` stores a few numbers per estimator of RUN/report.json in docs/reports/NAME.json. A table
stands between two comments, `<!-- table: KIND NAME ... -->` and `<!-- end -->`; KINDS lists the
kinds.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from grace.report.names import as_code, estimator_order, label

ROOT = Path(__file__).parents[1]
PAGES = (
    ROOT / "README.md",
    ROOT / "docs/results.md",
    *(ROOT / f"docs/results/{name}.md" for name in ("methods", "speed", "earlier")),
)
REPORTS = ROOT / "docs" / "reports"
METRICS = ("ece", "brier", "auroc")
COSTS = {
    "extra_forward_tokens_per_answer": "extra tokens",
    "trained_parameters": "fitted numbers",
    "access": "needs",
}
BLOCK = re.compile(r"(<!-- table: (.+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)

Entry = dict[str, Any]


# --- what is kept of a report


def keep(run: Path, name: str) -> Path:
    """Store what the tables need of a run's report and return the file."""
    report = json.loads((run / "report.json").read_text(encoding="utf-8"))
    kept = {
        "schema_version": report.get("schema_version", 1),
        "created": report["created"][:10],
        "hardware": report["hardware"],
        "cells": [_cell(entry) for entry in report["summaries"]],
        "against": list(_against(report["comparisons"])),
    }
    REPORTS.mkdir(exist_ok=True)
    path = REPORTS / f"{name}.json"
    lines = (f'"{key}": {_lines(value)}' for key, value in kept.items())
    path.write_text("{" + ",\n".join(lines) + "}\n", encoding="utf-8")
    return path


def _lines(value: Any) -> str:
    """Return JSON with one entry of a list to a line, so that a change is a readable diff."""
    if not isinstance(value, list):
        return json.dumps(value)
    return "[\n" + ",\n".join(json.dumps(entry) for entry in value) + "\n]"


def _cell(entry: Entry) -> Entry:
    where = ("task", "train_task", "backbone", "estimator")
    kept = {key: entry[key] for key in (*where, "seeds")}
    for metric in (*METRICS, "accuracy"):
        ends = entry["interval"].get(metric) or (None, None)
        mark = (entry["mark"] or {}).get(metric)
        kept[metric] = [*map(_round, (entry[metric], *ends)), mark]
    return kept | {key: _round(entry[key]) for key in COSTS}


def _against(comparisons: Iterable[Entry]) -> Iterator[Entry]:
    """Yield GrACE minus another, over all seeds where there are several."""
    for entry in comparisons:
        several = any(
            other["seed"] is None and (other["task"], other["b"]) == (entry["task"], entry["b"])
            for other in comparisons
        )
        if entry["metric"] in METRICS and (entry["seed"] is None) == several:
            keys = ("task", "train_task", "a", "b", "metric")
            values = [_round(value) for value in (entry["difference"], *entry["interval"])]
            yield {key: entry[key] for key in keys if key in entry} | {"values": values}


def _round(value: Any) -> Any:
    return round(value, 5) if isinstance(value, float) else value


# --- tables


def methods(name: str, task: str, train_task: str = "") -> list[str]:
    """Every estimator on one task, and GrACE minus it in points; bold where that excludes 0."""
    apart = _apart(name, task, train_task)
    rows = [
        [
            label(cell["estimator"]),
            _three(cell),
            *(_gap(apart, cell["estimator"], metric) for metric in METRICS[1:]),
        ]
        for cell in _cells(name, task, train_task)
    ]
    return _table(["", "ECE ↓ / Brier ↓ / AUROC ↑", "GrACE minus it: Brier", "AUROC"], rows)


def pairs(*cells: str) -> list[str]:
    """Every estimator on several NAME/TASK or NAME/TASK/FITTED ON, and GrACE's Brier minus its."""
    rows: dict[str, list[str]] = {}
    heads = [""]
    for cell in cells:
        where = cell.split("/")
        apart = _apart(*where)
        heads += [", fitted on ".join(where[1:]), "GrACE minus it: Brier"]
        for entry in _cells(*where):
            other = entry["estimator"]
            row = rows.setdefault(other, [label(other)])
            row += [_three(entry), _gap(apart, other, "brier")]
    return _table(heads, rows.values())


def _apart(name: str, task: str, train_task: str = "") -> dict[tuple[str, str], Sequence[float]]:
    """Return GrACE minus another on one task, by the other and the metric."""
    return {
        (entry["b"], entry["metric"]): entry["values"]
        for entry in _report(name)["against"]
        if (entry["a"], entry["task"]) == ("grace", task)
        and entry.get("train_task", task) == (train_task or task)
    }


def _gap(apart: dict[tuple[str, str], Sequence[float]], other: str, metric: str) -> str:
    return "" if other == "grace" else _points(apart.get((other, metric)))


def costs(name: str, task: str) -> list[str]:
    """What every estimator of a task costs and needs."""
    rows = [
        [label(cell["estimator"]), *(_cost(cell[key]) for key in COSTS)]
        for cell in _cells(name, task)
    ]
    return _table(["", *COSTS.values()], rows)


def short(*cells: str) -> list[str]:
    """One row per NAME/TASK: ECE / Brier / AUROC of the estimators of `SHORT` that all have."""
    found = {cell: _cells(*cell.split("/")) for cell in cells}
    known = ({entry["estimator"] for entry in entries} for entries in found.values())
    every = set.intersection(*known)
    columns = [one for one in SHORT if one in every]
    rows = []
    for cell, entries in found.items():
        by = {entry["estimator"]: entry for entry in entries}
        where = f"{_backbone(entries[0]['backbone'])}, {cell.split('/')[1]}"
        seeds = str(len(by["grace"]["seeds"]))
        shown = (_three(by[one], marked=True) for one in columns)
        rows.append([where, seeds, *shown])
    return _table(["backbone, questions", "seeds", *_heads(columns)], rows)


def brier(*cells: str) -> list[str]:
    """One row per NAME/TASK, one column per estimator of `BRIER`: the Brier score alone."""
    rows = []
    for cell in cells:
        entries = _cells(*cell.split("/"))
        by = {entry["estimator"]: entry for entry in entries}
        accuracy = by["grace"]["accuracy"][0]
        shown = (_best(by[one]["brier"]) if one in by else "-" for one in BRIER)
        seeds = len(by["grace"]["seeds"])
        where = f"{_backbone(entries[0]['backbone'])}, {cell.split('/')[1]}"
        right, constant = _percent(accuracy), _percent(accuracy * (1 - accuracy))
        rows.append([where, str(seeds), right, *shown, constant])
    heads = ["backbone, questions", "seeds", "right answers, %", *_heads(BRIER), "constant"]
    return _table(heads, rows)


def votes(name: str, task: str) -> list[str]:
    """Votes over 8 samples; bold where the paired interval against SC or GrACE-SC excludes 0."""
    rows = []
    for row in (row for row in _report(name) if row["set"] == task):
        value, low, high = row["accuracy"]
        cells = [VOTES[row["strategy"]], f"{100 * value:.1f} [{100 * low:.1f}, {100 * high:.1f}]"]
        cells.append("" if row["strategy"] == "sc" else _points(row["gain"]))
        cells += [f"{row['samples'][0]:.2f}", _needed(row["for_sc"])]
        for metric, better in (("auroc", 1), ("brier", -1)):
            shown, ends = _percent(row[metric][0]), row[f"{metric}_gain"][1:]
            clear = all(better * end > 0 for end in ends)
            cells.append(f"**{shown}**" if clear else shown)
        rows.append([*cells, _percent(row["ece"])])
    head = ["", "accuracy", "minus SC", "samples", "samples for SC's accuracy", "AUROC", "Brier"]
    return _table([*head, "ECE"], rows)


def pools(name: str, *tasks: str) -> list[str]:
    """One column per set: accuracy (bold: clearly not that of SC), samples, AUROC and Brier."""
    by = {(row["set"], row["strategy"]): row for row in _report(name)}
    rows = []
    for strategy, shown in VOTES.items():
        cells = []
        for row in (by[task, strategy] for task in tasks):
            clear = row["gain"][1] > 0 or row["gain"][2] < 0
            right = _percent(row["accuracy"][0])
            found = [f"**{right}**" if clear else right, f"{row['samples'][0]:.1f}"]
            cells.append(" / ".join([*found, _percent(row["auroc"][0]), _percent(row["brier"][0])]))
        rows.append([shown, *cells])
    return _table(["accuracy / samples / AUROC / Brier", *tasks], rows)


def parts(name: str, backbone: str, task: str) -> list[str]:
    """What each part of GrACE's fit adds in one cell, by the number of answers."""
    found = [row for row in _report(name) if (row["backbone"], row["set"]) == (backbone, task)]
    by = {(row["method"], row["answers"]): row for row in found}
    counts = sorted({row["answers"] for row in found})
    rows = [
        [
            shown,
            *(" / ".join(_percent(by[method, n][metric]) for metric in METRICS) for n in counts),
        ]
        for method, shown in PARTS.items()
    ]
    return _table(["", *(f"{n:,} answers" for n in counts)], rows)


def speed(name: str) -> list[str]:
    """What the benchmarks stored with `--keep`: the median and range of the rounds of each."""
    rows = []
    commands: dict[str, int] = {}  # and their numbers
    for what, (shown, goal) in SPEED.items():
        for row in (row for row in _report(name) if row["what"] == what):
            low, high = (f"{end:.2f}" for end in row["range"])
            spread = f" [{low}, {high}]" if row["rounds"] > 1 else ""
            number = commands.setdefault(row["command"], len(commands) + 1)
            rows.append([shown, f"{row['median']:.2f}{spread}", goal, str(number)])
    listed = [f"{number}. `{command}`" for command, number in commands.items()]
    return [*_table(["what is compared", "measured", "goal", "command"], rows), "", *listed]


def _heads(estimators: Sequence[str]) -> list[str]:
    return [f"**{label(estimators[0])}**", *map(label, estimators[1:])]


def _backbone(name: str) -> str:
    return next((shown for key, shown in BACKBONES.items() if name.lower().startswith(key)), name)


def _needed(found: Sequence[float | None]) -> str:
    ends = ["never" if value is None else f"{value:.1f}" for value in found]
    return f"{ends[0]} [{ends[1]}, {ends[2]}]"


VOTES = {
    "sc": "SC",
    "asc": "ASC, stop at 0.95",
    "esc": "ESC",
    "grace-sc": "GrACE-SC",
    "grace-es": "GrACE-ES, stop at 0.8",
    "grace-cisc": "GrACE-CISC",
    "grace-best": "GrACE, the surest of all",
    "grace-vote": "GrACE-vote",
    "grace-vote to the end": "GrACE-vote, all 8 samples",
    "grace-vote without a fit": "GrACE-vote without a fit",
}
PARTS = {
    "grace": "GrACE: states and token-probability features",
    "rows": "states alone",
    "last": "the state of the last step alone",
    "softmax": "one row in the softmax: the paper's c, as a convex fit (last layer)",
    "evidence": "token-probability features alone",
    "platt": "Platt scaling, on the same answers",
}
_ONCE = "questions per second, the examples of all prompts read once / with every prompt: "
SPEED = {
    "tokens/s with confidence / without, greedy": (
        "tokens per second with confidence / without, greedy",
        "0.98",
    ),
    "tokens/s with confidence / without, T 0.8, n = 8": (
        "the same at temperature 0.8, 8 samples",
        "0.98",
    ),
    "tokens/s, rows replaced / whole batches": (
        "tokens per second, samples of very different lengths: rows replaced as soon as they end / "
        "batches that wait for their longest row",
        "2",
    ),
    "sampling: questions/s / those without prefix": (f"{_ONCE}sampling", "3"),
    "scoring: questions/s / those without prefix": (f"{_ONCE}c of given answers", "3"),
    "log-probabilities: questions/s / those without prefix": (f"{_ONCE}log-probabilities", "3"),
    "features: questions/s / those without prefix": (f"{_ONCE}hidden states", "3"),
    "training: questions/s / those without prefix": (f"{_ONCE}training steps", "2.5"),
    "sampling: questions/s / those without room": (
        "sampling with keys and values written in place / copied at every step",
        "",
    ),
    "chunks: questions/s / those without chunks": (
        "log-probabilities, 151,936 tokens of vocabulary: the head in chunks / all logits at once",
        "5",
    ),
    "rating: questions/s / those without known": (
        "c of the answers that a model has drawn itself: logits of the tokens that are read / of "
        "all tokens and positions",
        "5",
    ),
    "eight calls / one call for n = 8, seconds": (
        "seconds of eight calls / of one call for 8 samples per question",
        "3",
    ),
    "waves of 4 / one by one, seconds": (
        "seconds of early stopping at 0.8, in waves of 4 / one sample after the other",
        "below 0.6",
    ),
    "one prefill / one per sample, seconds": (
        "seconds of one prefill for a vote / one per sample",
        "",
    ),
    "single calls / ask(list), by the clock": (
        "seconds of 300 `ask` calls / of one `ask(list)`, same answers",
        "8",
    ),
    "a step with the calibration term / a plain SFT step, seconds": (
        "seconds of a training step with the calibration term / of a plain LoRA SFT step",
        "at most 1.05",
    ),
}
SHORT = ("grace", "rows", "probe_tokens", "probe", "evidence", "platt", "likelihood")
BRIER = ("grace", "probe_tokens", "probe", "platt", "likelihood", "p_true")
BACKBONES = {
    "qwen2.5-coder-1.5b": "Qwen2.5-Coder-1.5B-Instruct",
    "qwen2.5-coder-0.5b": "Qwen2.5-Coder-0.5B-Instruct",
    "smollm2": "SmolLM2-135M-Instruct",
    "gemma": "Gemma 3 270M",
    "closedbook-llama": "closed-book Llama (7 M)",
    "pocket": "pocket (2.8 M)",
}
KINDS: dict[str, Callable[..., list[str]]] = {
    "methods": methods,
    "pairs": pairs,
    "costs": costs,
    "short": short,
    "brier": brier,
    "votes": votes,
    "pools": pools,
    "parts": parts,
    "speed": speed,
}


def _report(name: str) -> Any:
    found: Any = json.loads((REPORTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def _cells(name: str, task: str, train_task: str = "") -> list[Entry]:
    cells = [
        cell
        for cell in _report(name)["cells"]
        if (cell["task"], cell["train_task"]) == (task, train_task or task)
    ]
    if not cells:
        raise SystemExit(f"docs/reports/{name}.json has no results on {task}")
    return sorted(cells, key=lambda cell: estimator_order(cell["estimator"]))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    first, *lines = ("| " + " | ".join(map(as_code, line)) + " |" for line in (head, *rows))
    return [first, "|" + "---|" * len(head), *lines]


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def _three(cell: Entry, *, marked: bool = False) -> str:
    cells = (cell[metric] for metric in METRICS)
    return " / ".join(_best(values) if marked else _percent(values[0]) for values in cells)


def _best(values: Sequence[Any]) -> str:
    return f"**{_percent(values[0])}**" if values[3] == "best" else _percent(values[0])


def _points(values: Sequence[float] | None) -> str:
    if values is None or None in values:
        return "-"
    difference, low, high = (100 * value for value in values)
    shown = f"{difference:+.1f} [{low:+.1f}, {high:+.1f}]"
    return f"**{shown}**" if low > 0 or high < 0 else shown


def _cost(value: Any) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:,.0f}"


# --- pages


def written(page: str) -> str:
    """Return a page with each of its tables written anew."""

    def fill(match: re.Match[str]) -> str:
        kind, *arguments = match[2].split()
        return match[1] + "\n".join(KINDS[kind](*arguments)) + "\n" + match[4]

    return BLOCK.sub(fill, page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command")
    keeping = commands.add_parser("keep", help="store what the tables need of a run's report")
    keeping.add_argument("run", type=Path)
    keeping.add_argument("name")
    arguments = parser.parse_args()
    if arguments.command == "keep":
        print(keep(arguments.run, arguments.name))
        return
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        after = written(before)
        page.write_text(after, encoding="utf-8")
        print("changed" if after != before else "same   ", page.relative_to(ROOT), file=sys.stderr)


if __name__ == "__main__":
    main()
