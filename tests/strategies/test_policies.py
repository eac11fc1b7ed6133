"""Names of policies: a strategy, its settings, and whose confidences it reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from grace import strategies
from grace.errors import ConfigError
from grace.plugins import find
from grace.records import Vote
from grace.strategies import (
    POLICIES,
    AdaptiveConsistency,
    EarlyStop,
    FittedVote,
    Majority,
    Weighted,
    decide,
    load,
    policy,
)


def test_a_file_is_a_strategy():
    files = ["asc", "best", "cisc", "es", "esc", "sc", "vote", "weighted"]
    assert list(find("grace.strategies")) == files
    for name in files:
        assert hasattr(strategies, type(load(name)).__name__)


@pytest.mark.parametrize(
    ("name", "strategy", "estimator"),
    [
        ("sc", Majority(), None),
        ("asc", AdaptiveConsistency(), None),
        ("asc,rule=beta", AdaptiveConsistency("beta"), None),
        ("asc,rule=beta,threshold=0.9", AdaptiveConsistency("beta", 0.9), None),
        ("es", EarlyStop(), "grace"),
        ("grace-es", EarlyStop(), "grace"),
        ("grace-sc", Weighted(), "grace"),
        ("p_true-sc", Weighted(), "p_true"),
        ("vote", FittedVote(), "grace"),
        ("grace-vote,threshold=0.9", FittedVote(0.9), "grace"),
        ("verbal-es,threshold=1", EarlyStop(1.0), "verbal"),
        ("likelihood+isotonic-es", EarlyStop(), "likelihood+isotonic"),
    ],
)
def test_a_name_says_the_strategy_and_the_estimator(name, strategy, estimator):
    made = policy(name)
    assert (made.strategy, made.estimator) == (strategy, estimator)
    assert policy(made.name) == made  # the name that is shown finds it again


def test_settings_can_be_given_as_arguments():
    assert load("asc", rule="beta") == AdaptiveConsistency("beta")
    assert policy("es", threshold=0.9).name == "grace-es,threshold=0.9"
    assert policy("weighted").name == "grace-sc"


def test_the_compared_policies_all_exist_and_differ():
    made = [policy(name) for name in POLICIES]
    assert tuple(each.name for each in made) == POLICIES
    assert len({each[1:] for each in made}) == len(POLICIES)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("grace-asc", "'asc' counts answers and reads no confidences"),
        ("es,threshold=high", "expected a number"),
        ("es,threshold=-1", "at least 0"),
        ("asc,rule=alpha", "expected one of ratio, beta"),
        ("esc,window=0", "at least 1"),
        ("grace.errors:GraceError", "must be a dataclass with stops"),
    ],
)
def test_a_wrong_name_says_what_is_wrong(name, message):
    with pytest.raises(ConfigError, match=message):
        policy(name)


def test_a_live_vote_carries_no_other_estimators_confidences():
    assert load("grace-es", threshold=0.7) == EarlyStop(0.7)
    with pytest.raises(ConfigError, match=r"confidences of 'p_true'.*use 'grace-es'"):
        load("p_true-es")
    with pytest.raises(ConfigError, match=r"use 'grace-cisc,temperature=0.2'"):
        load("P_True-CISC", temperature=0.2)


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("SC", "sc"),
        ("GrACE-SC", "grace-sc"),
    ],
)
def test_a_strategy_goes_by_what_texts_call_it(said: str, name: str) -> None:
    assert policy(said) == policy(name)


def test_a_strategy_of_ones_own_that_raises_is_named_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing_strategy_module.py").write_text(
        "from dataclasses import dataclass\n"
        "@dataclass(frozen=True)\n"
        "class Failing:\n"
        "    def stops(self, table):\n"
        "        return table.nothing\n"
        "    def chooses(self, table):\n"
        "        return table.nothing\n"
    )
    monkeypatch.chdir(tmp_path)
    strategy = policy("failing_strategy_module:Failing").strategy
    votes = [Vote("a", 0.5, 1), Vote("b", 0.5, 1)]
    wanted = (
        r"^strategy failing_strategy_module:Failing failed \(AttributeError: .*module\.py:[57]\)"
    )
    with pytest.raises(ConfigError, match=wanted):
        decide(strategy, votes, 2)
    with pytest.raises(ConfigError, match=wanted):
        decide(strategy, votes, 1)
