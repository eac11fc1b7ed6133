"""Studies over tasks and variants: shared answers, out-of-domain rows, resuming by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import forks
import tiny_run
from grace.config import shipped_recipes
from grace.errors import ConfigError, RunError
from grace.pipeline.stages import score
from grace.pipeline.stages.report import report_runs
from grace.pipeline.study import Study, check_names, resolve_study, run_study

PEOPLE, PLACES = "pocket_people", "pocket_places"
RECIPES = list(shipped_recipes().values())
RECIPE = """
[report]
estimators = ["grace", "platt", "likelihood+isotonic"]
[study]
tasks = ["pocket_people", "pocket_places"]
transfer = true
[study.task.pocket_places]
paper = { gamma = 0.5 }
[study.variant.grace-row]
paper = { row_learning_rate = 0.02 }
"""


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    model = tiny_run.write_model(folder / "model")
    (folder / "recipe.toml").write_text(RECIPE, encoding="utf-8")
    options = [f"model.path={model}", *tiny_run.FAST]
    made = resolve_study(folder / "run", folder / "recipe.toml", options)
    run_study(folder / "run", made)
    return folder / "run"


def report_of(path: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((path / "report.json").read_text("utf-8"))
    return report


def test_every_method_is_rated_in_domain_and_out_of_domain(study: Path):
    rows = report_of(study)["rows"]
    found = {(row["train_task"], row["task"], row["estimator"]) for row in rows}
    methods = ("grace", "grace@base", "grace-row", "grace-row@base")
    methods += ("platt", "likelihood+isotonic")
    tasks = (PEOPLE, PLACES)
    assert found == {(a, b, method) for a in tasks for b in tasks for method in methods}
    assert {row["n"] + row["missing"] for row in rows} == {10}


def test_settings_of_one_task_hold_for_it_alone(study: Path):
    configs = [
        json.loads((study / t / "grace" / "config.json").read_text()) for t in (PEOPLE, PLACES)
    ]
    assert [config["settings"]["paper"]["gamma"] for config in configs] == [0.1, 0.5]


def test_out_of_domain_answers_of_the_backbone_are_those_of_the_other_run(study: Path):
    own = (study / PLACES / "grace" / "test" / "responses.jsonl").read_text("utf-8")
    there = study / PEOPLE / "grace" / "transfer" / PLACES / "responses.jsonl"
    texts = [
        {row["id"]: row["text"] for row in map(json.loads, lines.splitlines())}
        for lines in (own, there.read_text("utf-8"))
    ]
    assert texts[0] == texts[1] and len(texts[0]) == 10


def test_a_variant_shares_answers_and_targets_and_trains_its_own_adapter(study: Path):
    ours, theirs = study / PEOPLE / "grace", study / PEOPLE / "grace-row"
    for name in ("train/responses.jsonl", "train/targets.jsonl", "train/features.safetensors"):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes()
    assert (ours / "stages" / "sample.timing.jsonl").read_bytes() == (
        theirs / "stages" / "sample.timing.jsonl"
    ).read_bytes()
    weights = "adapter/adapter_model.safetensors"
    assert (ours / weights).read_bytes() != (theirs / weights).read_bytes()


def test_a_variant_that_reads_blocks_stores_them_itself(tmp_path: Path):
    """As in the recipes of the paper: their main run needs the last hidden state only."""
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        "method = 'paper'\nreport = { name = 'other' }\n[study.variant.grace]\nmethod = 'grace'\n"
        "grace.layer = 1\n"
    )
    model = tiny_run.write_model(tmp_path / "model")
    file = tiny_run.write_questions(tmp_path / "questions.jsonl")
    fast = [one for one in tiny_run.FAST if not one.startswith(("method", "report."))]
    options = [f"model.path={model}", "data.task=jsonl", f"data.file={file}", *fast]
    made = resolve_study(tmp_path / "run", recipe, options)
    run_study(tmp_path / "run", made, until="fit")
    assert (tmp_path / "run/grace/adapter/rows.safetensors").exists()
    shared = [tmp_path / "run" / name / "train/responses.jsonl" for name in ("grace", "other")]
    assert shared[0].read_bytes() == shared[1].read_bytes()


def test_redo_of_a_study_removes_the_common_report(study: Path, tmp_path: Path):
    path = Path(shutil.copytree(study, tmp_path / "run"))
    (path / "scaling.json").write_text("{}")
    run_study(path, resolve_study(path, None, []), redo="fit", until="fit")
    assert not (path / "report.json").exists() and not (path / "scaling.json").exists()
    with pytest.raises(RunError, match="not finished"):
        report_runs([path])


def test_costs_are_measured(study: Path):
    rows = {row["estimator"]: row for row in report_of(study / PEOPLE / "grace")["rows"]}
    assert rows["platt"]["access"] == "logprobs" and rows["platt"]["trained_parameters"] == 2
    assert rows["grace"]["access"] == "weights" and rows["grace"]["trained_parameters"] > 100
    assert rows["grace@base"]["access"] == "weights"
    for name, row in rows.items():
        assert (row["extra_forward_tokens_per_answer"] == 0) == (name != "grace@base")
        assert (row["extra_requests_per_answer"] == 0) == (name != "grace@base")
        assert row["seconds_per_answer"] > 0 and row["fit_seconds"] >= 0
    timed = (study / PEOPLE / "grace" / "stages" / "fit.timing.jsonl").read_text("utf-8")
    steps = [json.loads(line) for line in timed.splitlines()]
    log = study / PEOPLE / "grace" / "adapter" / "training_log.jsonl"
    assert len(steps) == json.loads(log.read_text("utf-8").splitlines()[-1])["step"]
    assert rows["grace"]["fit_seconds"] >= sum(step["seconds"] for step in steps) > 0


def narrowed(study: Path, out: Path, task: str, *options: str) -> Study:
    """Return one task of the study's recipe, as `grace run OUT --recipe FILE --task TASK` does."""
    model = study.parent / "model"
    fixed = [f"model.path={model}", *tiny_run.FAST, *options]
    return resolve_study(out, study.parent / "recipe.toml", [*fixed, f"data.task={task}"])


def test_one_task_of_a_recipe_has_its_own_settings_and_no_transfer_to_the_others(
    study: Path, tmp_path: Path
):
    chosen = narrowed(study, tmp_path / "run", PLACES)
    runs = chosen.runs()
    assert list(map(str, runs)) == ["grace", "grace-row"]
    assert {own.data.task for own in runs.values()} == {PLACES}
    assert {own.paper.gamma for own in runs.values()} == {0.5}
    assert [own.paper.row_learning_rate for own in runs.values()] == [0.0, 0.02]
    assert {own.report.transfer for own in runs.values()} == {()}
    people = narrowed(study, tmp_path / "run", PEOPLE).runs()
    assert {own.paper.gamma for own in people.values()} == {0.1}


def test_one_task_of_a_recipe_is_run_and_resumes_by_name(study: Path, tmp_path: Path):
    out = tmp_path / "run"
    run_study(out, narrowed(study, out, PLACES), until="grade")
    assert sorted(path.parent.name for path in out.glob("*/config.json")) == ["grace", "grace-row"]
    done = (study / PLACES / "grace" / "test" / "grades.jsonl").read_bytes()
    assert (out / "grace" / "test" / "grades.jsonl").read_bytes() == done
    resumed = resolve_study(out, None, ())
    assert resumed.runs() == narrowed(study, out, PLACES).runs()
    assert resolve_study(out, None, [f"data.task={PLACES}"]).runs() == resumed.runs()
    with pytest.raises(ConfigError, match=rf"{PEOPLE}.*not among.*\(study.tasks: {PLACES}\)"):
        resolve_study(out, None, [f"data.task={PEOPLE}"])


def test_a_task_that_the_recipe_does_not_have_is_refused_with_those_that_it_has(
    study: Path, tmp_path: Path
):
    with pytest.raises(ConfigError, match=rf"sciq.*\(study.tasks: {PEOPLE}, {PLACES}\)"):
        narrowed(study, tmp_path / "run", "sciq")


def test_a_study_of_several_tasks_does_not_become_one_of_a_single_task(study: Path, tmp_path: Path):
    before = {path: path.read_bytes() for path in study.glob("*.json")}
    with pytest.raises(RunError, match="run per task and variant, and one run per variant"):
        narrowed(study, study, PLACES)
    with pytest.raises(RunError, match="run per task and variant, and one run per variant"):
        resolve_study(study, None, [f"data.task={PLACES}"])
    (tmp_path / "single.toml").write_text(f'data.task = "{PLACES}"', encoding="utf-8")
    with pytest.raises(RunError, match="run per task and variant, and a single run was"):
        resolve_study(study, tmp_path / "single.toml", ["model.path=pocket"])
    assert {path: path.read_bytes() for path in study.glob("*.json")} == before


def test_a_finished_study_resumes_by_name_and_does_nothing(study: Path):
    before = {path: path.stat().st_mtime_ns for path in study.rglob("stages/*")}
    first = report_of(study)
    assert run_study(study, resolve_study(study, None, ())) == first
    assert {path: path.stat().st_mtime_ns for path in study.rglob("stages/*")} == before


def test_runs_side_by_side_in_processes_of_their_own_do_the_same(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    forks.start_server()
    monkeypatch.setattr("multiprocessing.get_context", lambda _: forks.CONTEXT)  # sooner there
    copy = Path(shutil.copytree(study, tmp_path / "study"))
    grades = sorted(path.relative_to(study) for path in study.rglob("test/grades.jsonl"))
    for path in grades:
        (copy / path).write_text("")
    run_study(copy, resolve_study(copy, None, ()), redo="grade", until="grade", jobs=2)
    assert len(grades) == 4
    assert all((copy / path).read_bytes() == (study / path).read_bytes() for path in grades)
    assert not list(copy.rglob("stages/features.json"))


def test_changed_settings_of_one_run_are_refused_before_anything_is_written(study: Path):
    config = (study / "config.json").read_bytes()
    with pytest.raises(RunError, match=r"paper.gamma: 0.1 -> 0.7.*--redo fit"):
        run_study(study, resolve_study(study, None, ["paper.gamma=0.7"]))
    assert (study / "config.json").read_bytes() == config


def test_redo_refuses_estimators_that_cannot_be_fitted_here_before_it_removes_anything(
    study: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(estimator: Any) -> None:
        raise ConfigError("a package is missing")

    monkeypatch.setattr(score, "check_estimator", refuse)
    before = {path: path.stat().st_mtime_ns for path in study.rglob("stages/*")}
    single = study / PEOPLE / "grace"
    for path in (study, single):
        assert run_study(path, resolve_study(path, None, ()))  # finished: nothing is fitted
        with pytest.raises(ConfigError, match="a package is missing"):
            run_study(path, resolve_study(path, None, ()), redo="score")
    assert {path: path.stat().st_mtime_ns for path in study.rglob("stages/*")} == before


def test_a_run_that_is_named_twice_counts_once(study: Path, tmp_path: Path):
    inside = next(path.parent for path in (study / PLACES).glob("**/report.json"))
    once, twice = report_runs([study / PLACES], tmp_path), report_runs([study / PLACES, inside])
    assert twice["targets"] == once["targets"] and twice["rows"] == once["rows"]


def test_a_part_of_a_study_is_reported_alone(study: Path):
    report = report_runs([study / PLACES])
    assert {row["train_task"] for row in report["rows"]} == {PLACES}
    assert {row["estimator"] for row in report["rows"]} >= {"grace", "grace-row"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[study]\nseed = 3\n", "unknown setting 'seed'; did you mean 'seeds'"),
        (
            "[study]\ntasks = ['sciq']\n[study.task.siq]\npaper = {}\n",
            "study.task.siq: name one of study.tasks: sciq",
        ),
        (
            "[study.variant.x]\nseed = 3\n",
            "study: x has a seed; set seed at the top, or study.seeds",
        ),
        ("[study]\nseeds = 0\n", "seeds is 0, expected a finite number of at least 1"),
        ("[study]\nvariant = 3\n", "variant is 3, expected sections"),
        ("[study.variant.x]\npaper = { gama = 1 }\n", "toml: study: unknown setting 'paper.gama'"),
        ("[data]\ntrian = 9\n", "recipe.toml: unknown setting 'data.trian'"),
        ("[study.variant.grace]\npaper = { gamma = 1 }\n", "two runs are named grace; rename one"),
        ("[study.task.sciq]\ndata = 1\n", "'data' is a value, not a section"),
        ("[study.variant.'a/b']\npaper.epochs = 1\n", "'a/b' names no folder: .*; rename it$"),
        ("[study.variant.'..']\npaper.epochs = 1\n", "'..' names no folder"),
        ("[study.variant.'']\npaper.epochs = 1\n", "'' names no folder"),
        (
            "[report]\nname = '/other/x'\n[study.variant.b]\npaper.epochs = 1\n",
            "'/other/x' names no folder",
        ),
    ],
)
def test_a_mistake_in_a_study_is_named(text: str, says: str, tmp_path: Path):
    (tmp_path / "recipe.toml").write_text(text, encoding="utf-8")
    where = ["model.path=pocket", 'data.task="sciq"']
    with pytest.raises(ConfigError, match=says):
        resolve_study(tmp_path / "run", tmp_path / "recipe.toml", where)


def test_relative_paths_are_stored_absolute_and_a_run_goes_on_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tiny_run.write_questions(tmp_path / "own.jsonl")
    tiny_run.write_model(tmp_path / "model")
    (tmp_path / "recipe.toml").write_text(
        "[model]\npath = 'model'\n[data]\ntask = 'jsonl'\nfile = 'own.jsonl'\n"
        "[study.variant.other]\ndata.file = 'other.jsonl'\n"
        "[study.variant.hub]\ndata.file = 'hf:me/own'\nmodel.path = 'pocket'\n"
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pocket").mkdir()
    study = resolve_study(tmp_path / "run", Path("recipe.toml"), [*tiny_run.FAST, "data.dir=d"])
    main_run, other, hub = study.runs().values()
    assert main_run.model.path == str(tmp_path / "model")
    assert main_run.data.file == str(tmp_path / "own.jsonl")
    assert main_run.data.dir == str(tmp_path / "d")
    assert other.data.file == str(tmp_path / "other.jsonl")
    assert (hub.data.file, hub.model.path) == ("hf:me/own", "pocket")
    alone = ["model.path=model", "data.task=jsonl", "data.file = own.jsonl", *tiny_run.FAST]
    made = resolve_study(tmp_path / "one", None, alone)
    run_study(tmp_path / "one", made, until="sample")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = resolve_study(tmp_path / "one", None, [])
    assert again.runs() == made.runs()
    run_study(tmp_path / "one", again, until="grade")


def test_a_mistake_among_the_overrides_is_not_blamed_on_the_recipe(tmp_path: Path):
    (tmp_path / "recipe.toml").write_text("[data]\ntrain = 9\n", encoding="utf-8")
    typed = ["model.path=pocket", "data.task=sciq", "data.trian=9"]
    with pytest.raises(ConfigError, match=r"^settings: unknown setting 'data.trian'"):
        resolve_study(tmp_path / "run", tmp_path / "recipe.toml", typed)


def test_two_tasks_of_one_name_are_refused(tmp_path: Path):
    (tmp_path / "recipe.toml").write_text("[study]\ntasks = ['a:TASK', 'b:TASK']\n", "utf-8")
    with pytest.raises(ConfigError, match="two runs are named TASK; rename one"):
        resolve_study(tmp_path / "run", tmp_path / "recipe.toml", ["model.path=pocket"])


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_recipe_names_what_there_is(recipe: Path, tmp_path: Path):
    study = resolve_study(tmp_path, recipe, ["model.path=pocket"])
    for settings in study.runs().values():
        check_names(settings)
