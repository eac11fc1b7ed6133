from pathlib import Path
from typing import Any

import pytest

from grace.config import (
    RunSettings,
    assignment,
    describe,
    from_dict,
    is_missing,
    override_settings,
    parse_value,
    read_recipe,
    shipped_recipes,
    to_dict,
)
from grace.errors import ConfigError
from grace.estimators.recalibrated import load_estimator


def test_overrides_win_over_the_recipe_and_the_recipe_over_defaults(tmp_path):
    recipe = tmp_path / "r.toml"
    recipe.write_text("seed = 3\n[paper]\nlearning_rate = 1e-3\nepochs = 7\n")
    settings = override_settings(read_recipe(recipe), ["paper.epochs=9", "data.task=sciq"])
    assert (settings.seed, settings.paper.learning_rate) == (3, 1e-3)
    assert (settings.paper.epochs, settings.data.task) == (9, "sciq")
    assert settings.paper.rank == 16


def test_the_settings_of_an_estimator_in_a_module_with_dots_can_be_reached():
    tree = {"estimators": {"my.parts:OWN": {"folds": 3}}}
    typed = ["estimators.my.parts:OWN.folds=4", "estimators.p_true.shots=2", "estimators.a:B.x=1"]
    assert override_settings(tree, typed).estimators == {
        "my.parts:OWN": {"folds": 4},
        "p_true": {"shots": 2},
        "a:B": {"x": 1},
    }


@pytest.mark.parametrize("value", ["Frage 😀", 'a "b"\n', "1", "", 0.1, True, ["a,b", "c"]])
def test_an_assignment_is_read_as_the_value_that_it_was_made_of(value: Any) -> None:
    assert parse_value(assignment("data.system", value).partition("=")[2]) == value


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("paper.learning_rat=1", "unknown setting 'paper.learning_rat'; did you mean"),
        ("banana=1", "unknown setting 'banana'"),
        ("paper=3", "expected a section"),
        ("paper.epochs=0", "at least 1"),
        ("paper.epochs=1.5", "expected a whole number"),
        ("paper.epochs=true", "expected a whole number"),
        ("paper.learning_rate=nan", "finite"),
        ("paper.learning_rate=inf", "finite"),
        ("paper.dropout=1.5", "at most 1"),
        ("paper.variant=huber", "expected one of grace, disc"),
        ("paper.target_modules=[]", "at least one entry"),
        ("method=median", "expected one of grace, paper"),
        ("data.task=3", "expected a text"),
        ("seed.x=1", "expected a whole number"),
        (
            r"data.template=Q: {question}\nA:",
            r"""which is no newline; write --set 'data\.template="\.\.\.\\n""",
        ),
    ],
)
def test_bad_settings_are_refused_by_name(override, message):
    with pytest.raises(ConfigError, match=message):
        override_settings({}, [override])


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"seed = ", "not valid TOML"), (b"\xff\xfe", "cannot be read"), (b"sed = 1", "did you mean")],
)
def test_bad_recipes_are_refused_by_file(tmp_path, content, message):
    recipe = tmp_path / "r.toml"
    recipe.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        override_settings(read_recipe(recipe), [], where=str(recipe))
    assert "r.toml" in str(caught.value)


def test_a_recipe_is_a_file_or_a_shipped_one_by_its_name(tmp_path, monkeypatch):
    shipped = read_recipe(Path("closedbook"))
    assert "study" in shipped and "paper/qwen2.5-7b" in shipped_recipes()
    monkeypatch.chdir(tmp_path)
    Path("closedbook").write_text("seed = 7")
    assert read_recipe(Path("closedbook")) == {"seed": 7}


def test_every_setting_has_help():
    rows = list(describe(RunSettings))
    assert len(rows) > 40
    assert all(doc for _, _, doc in rows)


def test_settings_that_are_fixed_now_count_nothing_or_are_refused_with_what_to_do():
    old = to_dict(RunSettings())
    old["paper"] |= {"schedule": "linear", "warmup": 0.0, "max_grad_norm": 1.0, "min_count": 3}
    assert from_dict(RunSettings, old) == RunSettings()
    for override in ("paper.warmup=0", "paper.schedule=linear", "paper.min_count=2"):
        assert override_settings({}, [override]) == RunSettings()
    with pytest.raises(ConfigError, match="'cosine', and always 'linear' now"):
        override_settings({}, ["paper.schedule=cosine"])
    assert load_estimator("likelihood", {"with_end": True}) == load_estimator("likelihood")
    with pytest.raises(ConfigError, match="leave it out"):
        load_estimator("loglik", {"with_end": False})


def test_settings_read_back_are_the_same_to_the_letter():
    tree = to_dict(RunSettings())
    assert repr(from_dict(RunSettings, tree)) == repr(RunSettings())


@pytest.mark.parametrize("name", ["llama-2-7b", "llama-3.1-8b", "phi-3-mini", "qwen2.5-7b"])
def test_the_papers_recipes_hold_its_values_for_open_questions(name):
    """Source: arXiv 2509.09438, sections 3.2 and 4.1, and Appendix A."""
    tree = read_recipe(Path(f"paper/{name}"))
    tree.pop("study")
    run = to_dict(override_settings(tree, []))
    assert run["method"] == "paper"
    wanted = {
        "data": {"train": 2000, "test": 1000, "prompt": "paper"},
        "sample": {"train_samples": 1, "train_temperature": 0.0, "test_temperature": 0.0},
        "grade": {"rouge_threshold": 0.3},
        "paper": {
            "variant": "grace",
            "folds": 10,
            "bins": 10,
            "learning_rate": 1e-5,
            "epochs": 3,
            "batch_size": 8,
            "gamma": 0.1,
            "rank": 16,
            "alpha": 16.0,
            "dropout": 0.05,
            "target_modules": ["mlp"],
            "balance": "cap",
        },
        "report": {"bins": 10},
    }
    found = {
        section: {name: run[section][name] for name in values} for section, values in wanted.items()
    }
    assert found == wanted


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("runs/none", True), ("./none", True), ("~/none", True), ("/none", True), ("a/b/c", True),
        ("none/", True), ("none", False), ("owner/none", False), ("pocket", False), ("runs", False),
    ],
)  # fmt: skip
def test_a_model_that_is_no_hub_id_and_not_there_is_missing(
    name: str, missing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    assert is_missing(name) is missing
    assert is_missing(Path("none"))


def test_the_defaults_are_the_convex_fit_and_the_papers_values():
    run = to_dict(RunSettings())
    assert (run["method"], run["grade"]["rouge_threshold"]) == ("grace", 0.3)
    assert run["grace"] == {"trace": False, "layer": -1}
    wanted = {"gamma": 0.1, "learning_rate": 1e-5, "epochs": 3, "batch_size": 8, "rank": 16}
    assert {name: run["paper"][name] for name in wanted} == wanted


def test_a_text_for_a_list_is_split_at_commas_unless_they_may_be_part_of_it():
    settings = override_settings({}, ["report.estimators=grace, platt", "sample.stop=a,b"])
    assert settings.report.estimators == ("grace", "platt")
    assert settings.sample.stop == ("a,b",)
    assert override_settings({}, ["report.transfer="]).report.transfer == ()
