"""The paper's method tuned: learning rate, then epochs, then rank, by validation answers.

Each round starts from the setting with the best validation Brier score so far: four learning
rates, more epochs for the two best of them, two other ranks. All settings share the sampled
answers; test questions are answered and never looked at. Then the best setting is run with several
seeds, beside `method=grace` on the same questions, and rated on test questions. It resumes.

    python bench/paper.py runs/tuned --model FILE.gguf --data DIR --seeds 3
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import NamedTuple

from grace.cli import main as grace
from grace.methods.adapter import LOG
from grace.store import RunDir

RECIPE = """\
method = "paper"
[model]
path = {model}
[data]
task = "qa_wikidata"
dir = {data}
train = 300
validation = 300
test = 600
prompt = "text"
template = "{{question}}"
shots = 5
[sample]
max_new_tokens = 24
[report]
name = "{first}"
estimators = ["grace", "grace_base"]
[paper]
{values}
"""
VARIANT = """\
[study.variant."{name}"]
report.estimators = ["grace", "grace_base"]
[study.variant."{name}".paper]
{values}
"""


FINAL = """\
[study]
tasks = ["qa_wikidata"]
seeds = {seeds}
[study.variant.grace]
method = "grace"
report.name = "grace"
report.estimators = ["grace", "likelihood", "platt", "probe", "probe_tokens"]
"""


class Setting(NamedTuple):
    """One way to train."""

    rate: str
    epochs: int = 3
    rank: int = 16

    @property
    def name(self) -> str:
        """The folder of its run."""
        return f"lr{self.rate}-e{self.epochs}-r{self.rank}"

    @property
    def values(self) -> str:
        """Its lines of a recipe."""
        return f"learning_rate = {self.rate}\nepochs = {self.epochs}\nrank = {self.rank}"


FIRST = [Setting(rate) for rate in ("1e-3", "3e-4", "3e-3", "1e-4")]


def validation(run: Path, setting: Setting) -> dict[str, float]:
    """Return the figures of the last epoch on the validation answers."""
    log = RunDir(run / setting.name).adapter / LOG
    rows = map(json.loads, log.read_text(encoding="utf-8").splitlines())
    last: dict[str, float] = [row for row in rows if "eval_brier" in row][-1]
    return last


def next_round(run: Path, number: int, tried: list[Setting]) -> list[Setting]:
    """Return the settings to try in a round, from the figures of those before it."""
    if number == 1:
        return FIRST
    best = sorted(tried, key=lambda one: validation(run, one)["eval_brier"])
    if number == 2:
        return [one._replace(epochs=8) for one in best[:2]]
    return [best[0]._replace(rank=rank) for rank in (4, 64)]


def main() -> None:
    """Do the rounds and print ECE / Brier score / AUROC of every setting."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True, help="folder with qa_wikidata/SPLIT.jsonl")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=0, help="of the best setting, on test answers")
    arguments = parser.parse_args()
    run, tried = arguments.run, list[Setting]()
    for number in range(1, arguments.rounds + 1):
        tried += next_round(run, number, tried)
        first, *others = tried
        places = {"model": json.dumps(arguments.model), "data": json.dumps(arguments.data)}
        text = RECIPE.format(first=first.name, values=first.values, **places)
        text += "".join(VARIANT.format(name=one.name, values=one.values) for one in others)
        study(run, text, "--until", "fit")
    for one in tried:
        shown = (validation(run, one)[f"eval_{name}"] for name in ("ece", "brier", "auroc"))
        print(one.name, " / ".join(f"{100 * value:.1f}" for value in shown))
    if arguments.seeds:
        best = min(tried, key=lambda one: validation(run, one)["eval_brier"])
        text = RECIPE.format(first="grace-paper", values=best.values, **places)
        study(run / "best", text + FINAL.format(seeds=arguments.seeds))


def study(run: Path, text: str, *options: str) -> None:
    """Do the runs of a recipe."""
    run.mkdir(parents=True, exist_ok=True)
    recipe = run / "recipe.toml"
    recipe.write_text(text, encoding="utf-8")
    try:
        grace(["run", str(run), "--recipe", str(recipe), *options])
    except SystemExit as stopped:
        if stopped.code:
            raise


if __name__ == "__main__":
    main()
