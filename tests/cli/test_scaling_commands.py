"""What `ask`, `scale` and `threshold` print about votes, samples and promises."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from grace.cli.commands.ask import _show_decision
from grace.records import Decision, Threshold, Vote, to_json
from grace.strategies import FittedVote, policy

ASKED = "What is 3 and 21?"


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished / "run", tmp_path / "run"))


@pytest.fixture
def right_run(run: Path) -> Path:
    """Return a run whose grader finds every sample right, so that a promise can be made."""
    config = (run / "config.json").read_text()
    assert "tiny_run:coin" in config
    (run / "config.json").write_text(config.replace("tiny_run:coin", "tiny_run:right"))
    return run


def choose(run: Path, mode: Any, tau: float, budget: int = 1) -> None:
    """Write a threshold as `grace threshold` does."""
    temperature = 0.8 if mode == "early-stop" else 0.0
    chosen = Threshold(mode, budget, temperature, 0.9, 0.05, tau, 500, 0.91, "at least 90% right")
    (run / "threshold.json").write_text(json.dumps(to_json(chosen)))


def test_a_vote_in_waves_prints_what_was_issued_beside_what_was_used(finished: Path, cli: Any):
    arguments = ("ask", finished / "run", ASKED, "--strategy", "es", "--threshold", 0)
    alone, waved = cli(*arguments), cli(*arguments, "--parallel", 4)
    assert re.search(r"   \(1 of 8 samples\)\n\Z", alone.out)
    spent = re.search(r"   \(1 of 8 samples, 4 issued; (\d+) tokens, (\d+) issued\)\n\Z", waved.out)
    assert spent and int(spent[1]) < int(spent[2])
    decision = json.loads(cli(*arguments, "--parallel", 4, "--json").out)
    assert (decision["samples"], decision["issued"]) == (1, 4)
    assert (decision["tokens"], decision["issued_tokens"]) == (int(spent[1]), int(spent[2]))
    assert waved.out.partition(" (")[0] == alone.out.partition(" (")[0]


def test_a_strategy_goes_by_its_name(finished: Path, cli: Any):
    for name in ("sc", "esc,window=2", "grace-sc", "best"):
        result = cli("ask", finished / "run", ASKED, "--strategy", name, "--budget", 3)
        assert result.code == 0 and result.err.endswith(
            "note: the confidence was fitted on greedy answers, but this vote sampled its answers "
            "at temperature 0.8, where it can be too high or too low; to see how far off it is on "
            f"graded samples: grace scale {finished / 'run'}\n"
        )
        assert re.search(r"\([23] of 3 samples\)\n\Z", result.out)
    listed = {
        row["name"]: row["about"] for row in json.loads(cli("list", "strategies", "--json").out)
    }
    fixed = {"sc", "asc", "esc"}
    rules = ("sc", "es", "cisc", "best", "vote")
    assert set(listed) == fixed | {f"grace-{n}" for n in rules}
    assert all(policy(name).name == name for name in listed)
    assert "threshold=0.8" in listed["grace-es"]


def test_a_vote_that_was_fitted_to_samples_has_no_note_on_greedy_answers(run: Path, cli: Any):
    (run / "vote.json").write_text(json.dumps(dataclasses.asdict(FittedVote())))
    assert cli("ask", run, ASKED, "--budget", 2).err == ""
    assert "fitted on greedy" in cli("ask", run, ASKED, "--budget", 2, "--strategy", "es").err


def test_one_answer_abstains_below_a_threshold(run: Path, cli: Any):
    plain = json.loads(cli("ask", run, ASKED, "--json").out)
    given = cli("ask", run, ASKED, "--threshold", 1)
    assert given.out == f"abstain   confidence {plain['confidence']:.2f}   (threshold 1)\n"
    choose(run, "answer", tau=1.0)
    shown = cli("ask", run, ASKED)
    assert shown.out.startswith("abstain   confidence ")
    assert f"({run}'s threshold: at least 90% right)" in shown.out
    reply = json.loads(cli("ask", run, ASKED, "--json").out)
    assert (reply["abstains"], reply["text"]) == (True, plain["text"])
    choose(run, "answer", tau=0.0)
    sure = cli("ask", run, ASKED)
    assert plain["text"] in sure.out.replace("\r", "\n") and "at least 90% right" in sure.out
    assert sure.err == ""
    warm = cli("ask", run, ASKED, "--temperature", 0.5)
    assert "threshold" not in warm.out
    assert "note: the run's threshold 0 holds at temperature 0 only, so this answer" in warm.err
    assert cli("ask", run, ASKED, "--temperature", 0.5, "--threshold", 0).err == ""


def test_a_vote_uses_the_threshold_of_its_budget_and_says_so(run: Path, cli: Any):
    choose(run, "early-stop", tau=0.0, budget=5)
    shown = cli("ask", run, ASKED, "--strategy", "es")
    assert f"(1 of 5 samples; {run}'s threshold: at least 90% right)" in shown.out
    choose(run, "early-stop", tau=1.0, budget=2)
    unsure = cli("ask", run, ASKED, "--budget", 2)
    assert unsure.out.startswith("abstain   confidence ") and unsure.err == ""
    other = cli("ask", run, ASKED, "--budget", 3)
    assert "note: the run's threshold 1 holds" in other.err and "budget of 2" in other.err
    assert "this vote used the threshold 0.8" in other.err and "abstain" not in other.out
    stated = cli("ask", run, ASKED, "--budget", 3, "--threshold", 0.5).err
    assert "the run's threshold" not in stated and "fitted on greedy answers" in stated


@pytest.mark.parametrize(
    ("answer", "texts", "shown"),
    [
        ("3.14", ["3.14.", "Guess: 3.140"], "3.140"),
        ("-5", ["-5", "Answer: \u22125"], "\u22125"),
        ("eiffel tower", ["eiffel tower", "Guess: The Eiffel Tower"], "The Eiffel Tower"),
        ("A", ["B", "Explanation: 4 is even.\nAnswer: A"], "A"),
    ],
)
def test_a_vote_is_shown_as_its_surest_sample_wrote_it(
    answer: str, texts: list[str], shown: str, capsys: pytest.CaptureFixture[str]
):
    votes = tuple(Vote(answer, 0.5 + 0.1 * n, 3, text) for n, text in enumerate(texts))
    _show_decision(Decision(answer, 0.6, 2, 6, votes, 2, 6), "runs/mine", 2)
    assert capsys.readouterr().out == f"{shown}   confidence 0.60   (2 of 2 samples)\n"


def test_scale_prints_the_table_and_where_the_rest_is(run: Path, cli: Any):
    result = cli("scale", run, "--samples", 4, "--orders", 2)
    assert result.code == 0
    for part in (
        "Up to 4 samples on questions, model",
        "SC (GrACE's",
        "GrACE-ES",
        "Accuracy ↑",
        "At equal accuracy on questions, model",
    ):
        assert part in result.out
    assert f"{run}/scaling.json" in result.out.replace("\n", "")
    table = result.out.partition("every budget")[0]
    assert max(map(len, table.splitlines())) <= 80
    again = cli("scale", run, "--samples", 4, "--orders", 2, "--json")
    assert json.loads(again.out) == json.loads((run / "scaling.json").read_text())
    assert "What more samples buy" in (run / "report.html").read_text()


def test_threshold_prints_the_promise_the_check_and_the_next_command(right_run: Path, cli: Any):
    arguments = ("--target-accuracy", 0.1, "--mode", "early-stop", "--budget", 2, "--delta", 0.4)
    result = cli("threshold", right_run, *arguments)
    first, check, then = result.out.splitlines()
    assert result.code == 0
    assert first.startswith("confidence >= ") and "at least 10.0% right" in first
    assert check.startswith("check on the test questions, which were not used: ")
    assert then == f'next:   grace ask {right_run} "your question" --budget 2'
    stored = json.loads((right_run / "threshold.json").read_text())
    assert json.loads(cli("threshold", right_run, *arguments, "--json").out) == stored


@pytest.mark.parametrize(
    "command",
    [("scale", "--samples", 5), ("threshold", "--mode", "early-stop", "--target-accuracy", 0.5)],
)
def test_the_model_runs_on_the_device_that_is_named(run: Path, command: Any, cli: Any):
    name, *options = command
    result = cli(name, run, *options, "--device", "nowhere")
    assert (result.code, result.out) == (2, "")
    assert "device 'nowhere' is unknown; use auto, cpu, cuda or cuda:N" in result.err


def test_a_promise_that_cannot_be_made_is_no_error_but_exit_code_one(run: Path, cli: Any):
    result = cli("threshold", run, "--target-accuracy", 0.9)
    assert (result.code, [line for line in result.err.splitlines() if "error" in line]) == (1, [])
    assert result.out.startswith("no threshold can promise at least 90.0% right")
    assert "29 would be needed" in result.out
    assert "\nno threshold is set now; `grace ask`" in result.out
    again = cli("threshold", run, "--target-accuracy", 0.8).out
    assert "note: this is guarantee 2 from the same validation questions" in again
    assert "\nno threshold is set now; `grace ask`" in again
    assert cli("ask", run, ASKED).out == cli("ask", run, ASKED).out
