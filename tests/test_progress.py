import pytest

from grace import progress as module
from grace.progress import progress


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test moves."""
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_without_a_terminal_there_is_a_line_now_and_then(clock, capsys):
    with progress("train", 100, unit="steps") as advance:
        for _ in range(40):
            clock[0] += 1.0
            advance(1, "loss 0.5")
    assert capsys.readouterr().err.splitlines() == [
        "train: 15/100 steps, 1.0/s, 85 s left, loss 0.5",
        "train: 30/100 steps, 1.0/s, 70 s left, loss 0.5",
    ]


def test_the_first_of_many_tells_no_rate_and_a_long_time_is_in_minutes(clock, capsys):
    with progress("sample", 100, unit="answers") as advance:
        for done in (1, 9):
            clock[0] += 60.0
            advance(done)
    assert capsys.readouterr().err.splitlines() == [
        "sample: 1/100 answers",
        "sample: 10/100 answers, 0.1/s, 18 min left",
    ]


def test_what_was_done_before_a_resume_does_not_count_in_the_rate(clock, capsys):
    with progress("a", 100, done=90, unit="rows") as advance:
        clock[0] += 20.0
        advance(5)
    assert capsys.readouterr().err.splitlines() == [
        "a: going on after 90/100 rows",
        "a: 95/100 rows, 0.2/s, 20 s left",
    ]


def test_a_terminal_gets_a_bar_with_the_note(monkeypatch, capsys):
    monkeypatch.setattr(module.sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "120")
    with progress("train", 2, unit="steps") as advance:
        advance(2, "loss 0.25")
    shown = capsys.readouterr().err
    assert "2/2 steps" in shown
    assert "loss 0.25" in shown
