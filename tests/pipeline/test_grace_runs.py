"""Runs of our method: rows and token probabilities, fitted to the backbone's own answers."""

from __future__ import annotations

import dataclasses
import gc
import json
import re
import shutil
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import grace
import tiny_run
from grace.config import override_settings
from grace.engines.transformers import TransformersEngine
from grace.errors import DataError, RunError
from grace.estimators.probes import StateProbe
from grace.pipeline import run
from grace.pipeline.context import Context, open_run
from grace.pipeline.scaling import ScaleSettings, scale_runs
from grace.pipeline.stages.answers import sampling_for
from grace.pipeline.stages.cost import stored_training
from grace.pipeline.stages.fit import fit_run, read_layer
from grace.pipeline.stages.paper import make_run_targets, train_on
from grace.pipeline.stages.score import rated_estimators
from grace.records import Response
from grace.store import RunDir

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
PAIR = (
    "method=grace",
    'report.estimators=["grace","likelihood","evidence"]',
)


def settings(folder: Path, *changes: str) -> Any:
    where = (f"model.path={folder / 'model'}", "data.task=jsonl")
    file = f"data.file={folder / 'questions.jsonl'}"
    return override_settings({}, [*where, file, *tiny_run.FAST, *PAIR, *changes])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("linear")
    tiny_run.write_model(folder / "model")
    tiny_run.write_questions(folder / "questions.jsonl")
    run(folder / "rows", settings(folder))
    run(folder / "last", settings(folder, "grace.layer=0"), until="features")
    run(folder / "paper", settings(folder, "method=paper"), until="features")
    return folder


def test_training_holds_a_single_backbone_in_memory(made: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(made / "paper", path)
    context = open_run(path)
    base, held = weakref.ref(context.engines.base.model), []

    def look(step: int, steps: int, values: dict[str, float]) -> None:
        gc.collect()
        held.append(base())

    train_on(context, make_run_targets(context)[1].targets.tolist(), look)
    assert set(held) == {None}


@pytest.mark.parametrize("layer", [1, -1])
def test_a_layer_in_the_middle_is_read_and_changes_no_answer(
    made: Path,
    tmp_path: Path,
    layer: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deep, fitting, probed = tmp_path / "deep", StateProbe.fit, list[tuple[int, ...]]()

    def spied(probe: StateProbe, *given: Any, **more: Any) -> Any:
        probed.append(probe.layers)
        return fitting(probe, *given, **more)

    monkeypatch.setattr(StateProbe, "fit", spied)
    changes = (f"grace.layer={layer}", f"grace.trace={str(layer > 0).lower()}")
    run(deep, settings(made, *changes))
    ours, theirs = (
        RunDir(path).split("test").tuned.responses.read() for path in (deep, made / "rows")
    )
    bare = {"trace": (), "confidence": None}
    assert [dataclasses.replace(one, **bare) for one in ours] == [
        dataclasses.replace(one, confidence=None) for one in theirs
    ]
    said = capsys.readouterr().err
    compared = re.findall(r"(?:block (\d+)|last state): held-out log loss (\S+)", said)
    losses = {int(name or 0): float(loss) for name, loss in compared}
    assert list(losses) == ([] if layer == 1 else [0, 1, 2])
    chosen = json.loads((deep / "adapter" / "grace.json").read_text())["layer"]
    assert losses.get(chosen) == min(losses.values(), default=None)
    place = f"the MLP of block {chosen}" if chosen else "the last state"
    assert f"the confidence reads {place}, fitted" in said
    assert probed and all(chosen in layers for layers in probed)  # no weaker probe than ours
    assert rated_estimators(open_run(deep))["grace"].answers == "tuned"
    notes = json.loads((deep / "report.json").read_text())["notes"]
    assert (f"questions, seed 0: the confidence reads {place}" in notes) == (chosen > 0)
    model = grace.load(deep)
    ended = [one for one in ours if one.finish_reason == "stop"]
    assert len({one.confidence for one in ended}) > 1
    assert model.traces == (layer > 0)
    if model.traces:
        assert {len(one.trace) - len(one.token_ids) for one in ended} == {1}
        ends = [one.trace[-1] for one in ended]
        assert ends == pytest.approx([one.confidence for one in ended], abs=1e-6)


def test_states_that_other_settings_did_not_store_are_asked_for(made: Path) -> None:
    stored = RunDir(made / "last").split("train").features
    with pytest.raises(RunError, match=r"lacks the states mean\.1, .* --redo features"):
        read_layer([stored], 1, [0])


def test_settings_of_a_stage_that_has_not_begun_may_change(made: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    run(path, settings(made), until="sample")
    other = settings(made, "grade.grader=tiny_run:right")
    with pytest.raises(DataError, match="responses are right"):
        run(path, other, until="fit")
    assert all(grade.correct for grade in RunDir(path).split("train").grades.read())


def test_another_layer_is_read_from_the_states_on(made: Path) -> None:
    with pytest.raises(RunError, match="--redo features"):
        run(made / "rows", settings(made, "grace.layer=1"))


def drawn_again(run: Path) -> list[Response]:
    """The answers to the test questions that the tuned model writes when it is asked."""
    context = open_run(run)
    questions = context.directory.split("test").questions.read()
    engine, sampling = context.engines.tuned, sampling_for(context.settings, "test")
    drawn = engine.generate(
        context.prompts(questions), sampling, keys=[question.id for question in questions]
    )
    return [one for _, samples in drawn for one in samples]


def test_without_lora_a_run_rates_its_backbones_answers_as_asking_would(
    made: Path, tmp_path: Path
) -> None:
    """The run has not drawn them a second time, which would give the same answers and c."""
    sampled = ("sample.test_temperature=0.8", "sample.test_samples=2")  # some end, some are cut
    path = tmp_path / "run"
    run(path, settings(made, *sampled, "grace.trace=true", "grace.layer=0"))
    test = RunDir(path).split("test")
    assert not (path / "stages/answer.timing.jsonl").exists()
    base, tuned, asked = test.responses.read(), test.tuned.responses.read(), drawn_again(path)
    assert test.tuned.grades.read() == test.grades.read()
    assert [p.name for p in (path / "adapter").glob("*.safetensors")] == ["rows.safetensors"]
    assert any(one.confidence is not None for one in tuned)
    assert {one.finish_reason for one in asked} == {"stop", "length"}
    for stored, rated, drawn in zip(base, tuned, asked, strict=True):
        assert rated == dataclasses.replace(stored, confidence=rated.confidence, trace=rated.trace)
        assert (drawn.token_ids, drawn.finish_reason) == (rated.token_ids, rated.finish_reason)
        assert drawn.logprobs == pytest.approx(rated.logprobs, abs=1e-5)
        assert drawn.confidence == pytest.approx(rated.confidence, abs=1e-5)
        assert rated.trace == pytest.approx(drawn.trace, abs=3e-5)


def test_the_evidence_and_the_rows_are_those_of_the_fit(made: Path) -> None:
    directory = RunDir(made / "rows")
    fitted = json.loads(directory.readout.read_text())
    card = json.loads((directory.adapter / "grace.json").read_text())
    assert card["evidence"] == fitted["evidence"]
    assert fitted["answers"] == sum(
        r.finish_reason == "stop" for r in directory.split("train").responses.read()
    )
    assert card["read_ids"] == list(range(card["cnf_id"], card["cnf_id"] + 4))
    model = grace.load(made / "rows")
    evidence = model.engine.evidence.to_dict()  # type: ignore[attr-defined]
    assert json.loads(json.dumps(evidence)) == fitted["evidence"]


def test_every_report_of_two_rows_says_what_they_and_the_evidence_say_alone(made: Path) -> None:
    rows = json.loads((made / "rows/report.json").read_text())["rows"]
    assert {row["estimator"] for row in rows} == {
        *("grace", "likelihood", "evidence", "probe", "probe_tokens")
    }
    found = {row["estimator"]: row for row in rows}
    assert found["probe"]["access"] == "hidden states"


def test_validation_answers_are_rated_once_and_compared_in_the_report(made: Path) -> None:
    directory = RunDir(made / "rows")
    report = json.loads((made / "rows/report.json").read_text())
    assert {(row["a"], row["b"], row["metric"]) for row in report["validation"]} == {
        ("grace", b, metric)
        for b in ("platt", "evidence", "probe")
        for metric in ("log_loss", "brier")
    }
    split = directory.split("validation")
    c, right = (
        np.array([getattr(row, key) for row in table.read()], dtype=float)
        for table, key in (
            (split.confidences("grace_base"), "confidence"),
            (split.grades, "correct"),
        )
    )
    theirs = np.array([row.confidence for row in split.confidences("probe").read()], dtype=float)
    both = np.isfinite(c)
    ours_N, theirs_N = ((x - right)[both] ** 2 for x in (c, theirs))
    row = next(r for r in report["validation"] if (r["b"], r["metric"]) == ("probe", "brier"))
    assert (row["a_value"], row["b_value"]) == pytest.approx(
        (ours_N.mean(), theirs_N.mean()), abs=1e-6
    )
    error = (ours_N - theirs_N).std(ddof=1) / np.sqrt(both.sum())
    assert row["standard_error"] == pytest.approx(error, abs=1e-6)


def test_the_states_of_training_answers_are_not_computed_twice(made: Path) -> None:
    directory = RunDir(made / "rows")
    context = Context(directory, settings(made))
    samples = context.samples(directory.split("train"))
    tokens = [response.token_ids for response in samples.responses]
    for layer in (0, 2):
        found = stored_training(context)(samples.prompts[3:7], tokens[3:7], layer)
        assert found is not None
        fresh = context.engine("base").features(samples.prompts[3:7], tokens[3:7], layer)
        for ours, theirs in zip(found, fresh, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert stored_training(context)(samples.prompts[3:4], [(*tokens[3], 5)], 0) is None


def test_without_lora_both_pools_of_a_vote_are_drawn_once(made: Path, tmp_path: Path) -> None:
    run_path = Path(shutil.copytree(made / "rows", tmp_path / "run"))
    drawn = []
    generate = TransformersEngine.generate_unit
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            TransformersEngine,
            "generate_unit",
            lambda self, prompts, *rest, **how: (
                drawn.append(len(prompts)) or generate(self, prompts, *rest, **how)
            ),
        )
        found = scale_runs(run_path, ScaleSettings(samples=2, orders=2))
    test, validation = (RunDir(run_path).split(name) for name in ("test", "validation"))
    asked = [*test.questions.read(), *validation.questions.read()]  # the latter for `grace-vote`
    assert sum(drawn) == len(asked)
    base, tuned = (split.pool(2, 0.8).responses.path.read_bytes() for split in (test, test.tuned))
    assert base == tuned
    votes = {row["strategy"]: row["accuracy"] for row in found["rows"] if row["budget"] == 2}
    assert "grace-sc" in votes and "sc@grace" not in votes


def test_where_the_few_whole_answers_are_alike_the_length_limit_is_named(
    made: Path, tmp_path: Path
) -> None:
    run_path = Path(shutil.copytree(made / "rows", tmp_path / "run"))
    table = RunDir(run_path).split("train").responses
    cut = {"finish_reason": "length", "end_logprob": None, "confidence": None}
    table.write([table.read()[0], *(dataclasses.replace(row, **cut) for row in table.read()[1:])])
    with pytest.raises(
        DataError, match=r"end within sample\.max_new_tokens=24 with a text \(19 do"
    ):
        fit_run(Context(RunDir(run_path), settings(made)))
