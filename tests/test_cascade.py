"""Cascades: what forwarding gives, its guarantee, and `grace cascade`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grace.cli import main
from grace.errors import DataError, RunError, UserInputError
from grace.measuring import read_both
from grace.store import RunDir
from grace.thresholds.cascade import cascade, curve


def drawn(n: int, seed: int, large: float = 0.85) -> tuple[Any, Any, Any]:
    """Return confidences, which are calibrated, and whether the small and the large are right."""
    random = np.random.default_rng(seed)
    confidence = random.beta(1, 1, n)
    return confidence, random.random(n) < confidence, random.random(n) < large


def test_the_curve_is_that_of_its_definition() -> None:
    confidence = [0.9, 0.1, float("nan"), 0.5]
    small, large = [True, False, False, True], [False, True, True, False]
    found = {p.share: p for p in curve(confidence, small, large, shares=(0, 0.25, 0.5, 0.75, 1))}
    assert [found[s].accuracy["grace"] for s in (0, 0.25, 0.5, 0.75, 1)] == [
        0.5,
        0.75,
        1,
        0.75,
        0.5,
    ]
    assert [found[s].accuracy["oracle"] for s in (0, 0.25, 0.5, 1)] == [0.5, 0.75, 1, 0.5]
    assert found[0.5].accuracy["chance"] == 0.5
    assert [found[s].below for s in (0, 0.25, 0.5, 0.75, 1)] == [None, 0.1, 0.5, 0.9, None]


def test_a_confidence_beats_chance_and_its_interval_holds_the_truth() -> None:
    truth, held, found = {0: 0.5, 0.5: 0.8, 1: 0.85}, [], []
    for seed in range(1, 21):
        points = curve(*drawn(200, seed), shares=(0, 0.5, 1), seed=seed)
        held += [p.interval[0] <= truth[p.share] <= p.interval[1] for p in points]
        found.append(points[1].accuracy["grace"])
    assert np.mean(found) == pytest.approx(truth[0.5], abs=0.02)  # by chance it would be .675
    assert np.mean(held) > 0.9


def test_a_threshold_forwards_what_the_server_forwards() -> None:
    confidence, small, large = drawn(2000, 3)
    confidence[:50] = np.nan
    found = cascade(confidence, small, large, target=0.8)
    assert found.tau is not None
    goes = ~(confidence >= found.tau)
    assert found.forwarded == goes.sum() and 0 < goes.mean() < 1
    assert found.right == np.where(goes, large, small).sum()
    assert found.bound >= 0.8 and "--below" in str(found)


def test_what_is_promised_counts_answers_of_confidence_1_as_kept() -> None:
    confidence, small, large = [1.0] * 300 + [0.2] * 300, [False] * 300 + [True] * 300, [True] * 600
    found = cascade(confidence, small, large, target=0.9)  # the large alone would keep it
    assert (found.tau, found.forwarded, found.right) == (None, 300, 300)
    assert "answers all but 300 of confidence 1, 300 of 600 right" in str(found)


def test_what_cannot_be_promised_is_said() -> None:
    none = cascade(*drawn(500, 0), target=0.95)
    assert none.tau is None and none.forwarded == 500 and "even where the large" in str(none)
    easy = cascade([0.5] * 500, [True] * 500, [True] * 500, target=0.9)
    assert (easy.tau, easy.forwarded) == (0.0, 0)
    with pytest.raises(UserInputError):
        cascade([0.5], [True], [True], target=1)


@pytest.mark.slow
@pytest.mark.parametrize("n", [200, 1000])
def test_the_guarantee_is_broken_in_at_most_delta_of_1000_splits(n: int) -> None:
    """The truth at a threshold is exact: c is uniform and calibrated, the large model .85 right."""
    broken = chosen = 0
    for seed in range(1000):
        found = cascade(*drawn(n, seed), target=0.8, delta=0.1)
        if found.tau is not None:
            chosen += 1
            truth = found.tau * 0.85 + (1 - found.tau**2) / 2
            broken += truth < 0.8
    assert chosen > 400
    assert broken <= 100 + 3 * 9.5  # of 1,000, three standard errors above delta


def run(*arguments: str) -> Any:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return ended.value.code


def write(file: Path, rows: list[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    confidence, small, large = drawn(400, 1)
    ours = [
        {"question": f"q{n}", "confidence": c if n else None, "correct": bool(s), "logprobs": [-c]}
        | {"end_logprob": -1.0}
        for n, (c, s) in enumerate(zip(confidence, small, strict=True))
    ]
    theirs = [{"question": f"q{n}", "correct": bool(one)} for n, one in enumerate(large)]
    return write(tmp_path / "small.jsonl", ours), write(tmp_path / "large.jsonl", theirs[:-10])


def test_the_command_tells_the_curve_and_the_guarantee(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small, large = map(str, files)
    rows = [json.loads(line) for line in files[0].read_text().splitlines()]
    write(files[0], [rows[0] | {"logprobs": None}, *rows[1:]])  # one answer has none
    plot = ["--plot", str(tmp_path / "c.svg")]
    assert run("cascade", small, large, "--target-accuracy", "0.7", *plot) == 0
    told = capsys.readouterr().out
    assert "390 questions" in told and "10 questions that only one" in told
    assert "by likelihood" in told and "--below 0." in told
    assert b"<svg" in (tmp_path / "c.svg").read_bytes()
    assert run("cascade", small, large, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["n"], len(found["curve"])) == (390, 11)
    assert run("cascade", small, large, "--target-accuracy", "0.99") == 1


def test_files_without_a_shared_question_are_refused(files: tuple[Path, Path]) -> None:
    small, large = files
    with pytest.raises(DataError, match="no question is in both"):
        read_both(small, write(large, [{"question": "other", "correct": True}]))
    with pytest.raises(DataError, match='"confidence" is missing'):
        read_both(large, small)


def test_one_question_of_each_group_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Questions about one document are not independent, which the guarantee needs."""
    rows = [
        {"question": f"q{n}", "confidence": 0.5, "correct": n < 20, "group": f"document {n // 20}"}
        for n in range(40)
    ]
    bare = [{key: value for key, value in row.items() if key != "group"} for row in rows]
    for ours, theirs in ((rows, rows), (rows, bare), (bare, rows)):
        files = write(tmp_path / "small.jsonl", ours), write(tmp_path / "large.jsonl", theirs)
        both = read_both(*files)
        assert (both.small, both.large, both.alone) == ([True, False], [True, False], 0)
        assert "one question of each group is used: 2 of 40" in capsys.readouterr().err


def test_a_run_counts_with_its_test_answers(finished: Path, tmp_path: Path) -> None:
    own = finished / "run"
    split = RunDir(own).split("test")
    responses, grades = split.tuned.responses.read(), split.tuned.grades.read()
    both = read_both(own, own)
    assert both.confidence == [one.confidence for one in responses]
    assert both.small == both.large == [one.correct for one in grades]
    assert both.alone == 0 and both.likelihood is not None
    texts = [question.text for question in split.questions.read()]
    theirs = [{"question": text, "correct": True} for text in texts[1:]]
    mixed = read_both(own, write(tmp_path / "large.jsonl", theirs))
    assert (len(mixed.large), mixed.alone, all(mixed.large)) == (len(texts) - 1, 1, True)


def test_a_run_without_answers_is_refused(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.json").write_bytes((finished / "run/config.json").read_bytes())
    with pytest.raises(RunError, match="finish it first: grace run"):
        read_both(tmp_path / "run", finished / "run")
