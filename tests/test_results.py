"""The tables of README.md and of the results pages are those that the stored reports give."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from grace.metrics import Estimate
from tools import results

NOT_WORSE = re.compile(
    r"(Brier score|AUROC|accuracy)[^.]{,60}? not worse than [^(]{,60}? by ([\d.]+) points or more "
    r"\(([-+\d.]+) \[([-+\d.]+), ([-+\d.]+)\]\)"
)


@pytest.mark.parametrize("page", results.PAGES, ids=lambda page: page.name)
def test_every_table_is_as_its_report_says(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert results.written(text) == text
    assert results.BLOCK.search(text)


def test_a_table_follows_its_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def entry(estimator: str, brier: float, mark: str | None) -> dict[str, object]:
        costs = dict.fromkeys(results.COSTS)
        names = {"task": "sums", "train_task": "sums", "backbone": "tiny", "estimator": estimator}
        mean = {"ece": 0.03, "brier": brier, "auroc": 0.8, "accuracy": 0.5}
        interval = {metric: [value - 0.01, value + 0.01] for metric, value in mean.items()}
        marks = dict.fromkeys(mean) | {"brier": mark}
        return names | costs | mean | {"seeds": [0], "interval": interval, "mark": marks}

    cells = [entry("platt", 0.2, None), entry("grace", 0.15, "best")]
    against = {"task": "sums", "train_task": "sums", "a": "grace", "b": "platt", "seed": 0}
    against |= {"metric": "brier", "difference": -0.05, "interval": [-0.06, -0.04]}
    report = {"created": "2026-01-01T00:00", "hardware": "one core", "summaries": cells}
    report |= {"comparisons": [against]}
    (tmp_path / "report.json").write_text(json.dumps(report))
    monkeypatch.setattr(results, "REPORTS", tmp_path / "kept")
    results.keep(tmp_path, "try")
    page = "<!-- table: methods try sums -->\nold\n<!-- end -->\n"
    page += "<!-- table: costs try sums -->\n<!-- end -->\n"
    page += "<!-- table: pairs try/sums try/sums/sums -->\n<!-- end -->\n"
    made = results.written(page)
    assert "old" not in made and results.written(made) == made
    assert "| GrACE | 3.0 / 15.0 / 80.0 |  |  |\n| Platt scaling" in made
    assert "| Platt scaling | 3.0 / 20.0 / 80.0 | **-5.0 [-6.0, -4.0]** | - |" in made
    assert "| GrACE | - | - | - |" in made
    row = " | ".join(["3.0 / 20.0 / 80.0", "**-5.0 [-6.0, -4.0]**"] * 2)
    assert "|  | sums | " in made and f"| Platt scaling | {row} |" in made


def not_worse(gap: Estimate, margin: float, *, better: int) -> bool:
    """Non-inferiority at 2.5%: that a is worse by the margin or more is ruled out."""
    return better * (gap.low if better > 0 else gap.high) > -margin


def test_not_worse_is_said_with_a_margin_that_the_interval_keeps() -> None:
    claims = 0
    for page in (results.ROOT / "README.md", *results.ROOT.glob("docs/**/*.md")):
        if page.parent.name == "decisions":
            continue
        text = " ".join(page.read_text(encoding="utf-8").split())
        made = NOT_WORSE.findall(text)
        assert len(made) == text.count("not worse"), f"{page.name}: write it as NOT_WORSE has it"
        for metric, margin, *values in made:
            gap, better = Estimate(*map(float, values)), -1 if metric == "Brier score" else 1
            assert not_worse(gap, float(margin), better=better), (page.name, metric, values)
        claims += len(made)
    assert claims
    assert not not_worse(Estimate(0.1, -0.4, 0.5), 0.5, better=-1)
    assert not_worse(Estimate(-0.1, -0.4, 0.5), 0.5, better=1)
    assert not not_worse(Estimate(2.0, -0.6, 3.0), 0.5, better=1)
