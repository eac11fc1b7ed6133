"""Runs whose read-out is two rows: fitted before LoRA, which must earn its place."""

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
from grace.errors import ConfigError, DataError, RunError
from grace.pipeline import run
from grace.pipeline.context import Context, open_run
from grace.pipeline.sampling import sampling_for
from grace.pipeline.stages import choosing
from grace.pipeline.stages.choosing import LoraChoice, keep_better
from grace.pipeline.stages.depth import read_layer
from grace.pipeline.stages.fit import fit
from grace.pipeline.stages.score import rated_estimators
from grace.pipeline.stages.train import train_run_adapter, training_seconds
from grace.pipeline.study import resolve_study
from grace.records import Generation
from grace.store import RunDir

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
PAIR = (
    "train.head=linear",
    "train.evidence=likelihood",
    "train.loss=log",
    "target.kind=labels",
    "train.keep=best",
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
    run(folder / "rows", settings(folder, "train.lora=never"))
    run(folder / "auto", settings(folder, "train.layer=0"))
    return folder


def test_training_holds_a_single_backbone_in_memory(made: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(made / "auto", path)
    shutil.rmtree(RunDir(path).checkpoints, ignore_errors=True)
    context = open_run(path)
    base, held = weakref.ref(context.engines.base.model), []

    def look(step: int, steps: int, values: dict[str, float]) -> None:
        gc.collect()
        held.append(base())

    train_run_adapter(context, look)
    assert set(held) == {None}


def test_a_trace_leaves_the_answers_as_they_are_and_ends_with_c(made: Path, tmp_path: Path) -> None:
    """Its rows are fitted to the steps too, so c at the end is another, of the same answers."""
    traced = tmp_path / "traced"
    run(traced, settings(made, "train.lora=never", "train.trace=true"))
    ours, theirs = (
        RunDir(path).split("test").tuned.responses.read() for path in (traced, made / "rows")
    )
    bare = {"trace": (), "confidence": None}
    assert [dataclasses.replace(one, **bare) for one in ours] == [
        dataclasses.replace(one, confidence=None) for one in theirs
    ]
    for one in ours:
        assert len(one.trace) == len(one.token_ids) + (one.finish_reason == "stop")
        if one.confidence is not None:
            assert one.trace[-1] == pytest.approx(one.confidence, abs=1e-6)
    model = grace.load(traced)
    assert model.traces and not grace.load(made / "rows").traces


@pytest.mark.parametrize("layer", [1, -1])
def test_a_layer_in_the_middle_is_read_and_changes_no_answer(
    made: Path, tmp_path: Path, layer: int, capsys: pytest.CaptureFixture[str]
) -> None:
    deep = tmp_path / "deep"
    changes = (f"train.layer={layer}", "train.lora=never", "train.trace=true")
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
    rated = rated_estimators(open_run(deep))
    assert (chosen in rated["probe"].layers, rated["grace"].answers) == (True, "tuned")  # type: ignore[attr-defined]
    notes = json.loads((deep / "report.json").read_text())["notes"]
    assert (f"questions, seed 0: the confidence reads {place}" in notes) == (chosen > 0)
    model = grace.load(deep)
    ended = [one for one in ours if one.finish_reason == "stop"]
    assert len({one.confidence for one in ended}) > 1
    for one in ended:
        assert one.trace[-1] == pytest.approx(one.confidence, abs=1e-6)
    assert model.traces


@pytest.mark.parametrize(
    ("changes", "layer", "why"),
    [
        (["train.layer=1"], 1, "the confidence reads the MLP of block 1 (train.layer=0 trains it)"),
        (["train.layer=0", "train.trace=true"], 0, "train.trace is set"),
        (["train.layer=1", "train.trace=true"], 1, "train.trace is set"),
        (["train.lora=always"], 0, None),
    ],
)
def test_lora_is_trained_only_where_c_reads_the_last_state_at_the_end(
    made: Path,
    tmp_path: Path,
    changes: list[str],
    layer: int,
    why: str | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "run"
    run(path, settings(made, *changes, "train.epochs=1"))
    card = json.loads((path / "adapter" / "grace.json").read_text())
    trained = (path / "adapter" / "adapter_config.json").exists()
    assert (card.get("layer", 0), trained) == (layer, why is None)
    assert "lora" not in card  # no choice was made
    said = re.findall(r"no LoRA is trained, since (.*)", capsys.readouterr().err)
    assert said == ([why] if why else [])


def test_states_that_other_settings_did_not_store_are_asked_for(made: Path) -> None:
    stored = RunDir(made / "auto").split("train").features
    with pytest.raises(RunError, match=r"lacks the states mean\.1, .* --redo features"):
        read_layer(stored, 1, [0])


def test_settings_of_a_stage_that_has_not_begun_may_change(made: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    run(path, settings(made, "train.lora=never"), until="sample")
    other = settings(made, "train.lora=never", "grade.grader=tiny_run:right")
    with pytest.raises(DataError, match="responses are right"):
        run(path, other, until="fit")
    assert all(grade.correct for grade in RunDir(path).split("train").grades.read())


def test_another_layer_is_read_from_the_states_on(made: Path) -> None:
    with pytest.raises(RunError, match="--redo features"):
        run(made / "rows", settings(made, "train.lora=never", "train.layer=1"))


def test_a_changed_setting_is_checked_beside_those_that_the_run_has(
    made: Path, tmp_path: Path
) -> None:
    """`train.trace` is not for `train.lora=always`, which a run may have been told before."""
    (settings,) = resolve_study(made / "rows", None, ["train.trace=true"]).runs().values()
    assert settings.train.trace and settings.train.lora == "never"
    told = (made / "auto" / "config.json").read_text().replace('"lora": "auto"', '"lora": "always"')
    (tmp_path / "config.json").write_text(told)
    with pytest.raises(ConfigError, match=r"train\.trace is read .* train\.lora=never"):
        resolve_study(tmp_path, None, ["train.trace=true"]).runs()


def drawn_again(run: Path) -> list[Generation]:
    """The answers to the test questions that the tuned model writes when it is asked."""
    context = open_run(run)
    questions = context.directory.split("test").questions.read()
    engine, sampling = context.engines.tuned, sampling_for(context, "test")
    drawn = engine.generate(
        context.prompts(questions), sampling, keys=[question.id for question in questions]
    )
    return [one for _, samples in drawn for one in samples]


@pytest.mark.parametrize("changes", [(), ("train.trace=true",)])
def test_without_lora_a_run_rates_its_backbones_answers_as_asking_would(
    changes: tuple[str, ...], made: Path, tmp_path: Path
) -> None:
    """The run has not drawn them a second time, which would give the same answers and c."""
    sampled = ("sample.test_temperature=0.8", "sample.test_samples=2")  # some end, some are cut
    path = tmp_path / "run"
    run(path, settings(made, "train.lora=never", *sampled, *changes))
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
        assert rated.trace == pytest.approx(drawn.trace if changes else (), abs=3e-5)


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


def test_a_run_says_whether_lora_was_kept_and_uses_what_it_says(made: Path) -> None:
    card = json.loads((made / "auto/adapter/grace.json").read_text())
    found = card["lora"]
    gains = found["gain"] > 2 * found["standard_error"]
    assert (found["accuracy_after"] is not None) == gains  # else no answer is needed to tell
    moved = abs(found["accuracy_after"] - found["accuracy_before"]) if gains else 0
    assert found["kept"] == (gains and moved <= 0.01)
    assert (made / "auto/adapter/rows.safetensors").exists() != found["kept"]
    if not found["kept"]:
        test = RunDir(made / "auto").split("test")
        said = [response.token_ids for response in test.responses.read()]
        assert [response.token_ids for response in test.tuned.responses.read()] == said


@pytest.mark.parametrize("kept", [True, False])
def test_what_validation_answers_say_is_done(
    kept: bool, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    shutil.copytree(made / "auto", tmp_path / "run")
    directory = RunDir(tmp_path / "run")
    (directory.adapter / "rows.safetensors").unlink(missing_ok=True)
    (directory.adapter / "of_lora").write_text("")
    monkeypatch.setattr(choosing, "compare", lambda _: LoraChoice(kept, 0.1, 0.05, 10, 0.5, 0.5))
    context = Context(directory, settings(made, "train.layer=0"))
    with_lora: Any = object()
    context.engines.__dict__["tuned"] = with_lora  # the comparison has loaded and cached it
    keep_better(context)
    assert ("tuned" in context.engines.__dict__) == kept  # later stages must not answer with LoRA
    assert (directory.adapter / "of_lora").exists() == kept
    assert (directory.adapter / "rows.safetensors").exists() != kept
    assert json.loads((directory.adapter / "grace.json").read_text())["lora"]["kept"] == kept
    fit, steps = directory.seconds_in("fit"), directory.seconds_in("steps")
    assert fit and steps
    assert training_seconds(directory) == ((fit + steps, 0.0) if kept else (fit, steps))


def test_lora_that_moves_the_accuracy_or_gains_nothing_is_not_kept(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = RunDir(made / "auto")
    context = Context(directory, settings(made, "train.layer=0"))
    samples = context.samples(directory.split("validation"))
    right = [c for c, r in zip(samples.correct, samples.responses, strict=True)
             if r.finish_reason == "stop"]  # fmt: skip

    class Rater:
        def __init__(self, sure: float) -> None:
            self.sure = sure

        def confidences(self, prompts: Any, responses: Any) -> list[float]:
            noise = np.random.default_rng(len(prompts)).normal(0, 0.01, len(prompts))
            return [self.sure + n if c else 1 - self.sure + n
                    for c, n in zip(right, noise, strict=True)]  # fmt: skip

    def outcome(rows: float, lora: float, after: float) -> LoraChoice:
        raters = {directory.rows: Rater(rows), directory.adapter: Rater(lora)}
        monkeypatch.setattr(context.engines, "load", lambda path: raters[path])
        monkeypatch.setattr(choosing, "answer", lambda *_, **__: None)
        graded = [type("G", (), {"correct": after})()]
        tuned = type("T", (), {"grades": type("R", (), {"read": lambda _: graded})()})()
        split = directory.split("validation")
        monkeypatch.setattr(type(split), "tuned", property(lambda _: tuned))
        return choosing.compare(context)

    before = float(np.mean(samples.correct))
    assert outcome(0.6, 0.9, before).kept
    assert not outcome(0.9, 0.6, before).kept
    assert not outcome(0.7, 0.7, before).kept
    assert not outcome(0.6, 0.9, before - 0.02).kept
    assert outcome(0.9, 0.6, before - 0.02).accuracy_after is None  # the gain has decided


@pytest.mark.parametrize(
    ("after", "wanted"),
    [
        (
            None,
            "LoRA left out, the rows are used without it: on 99 validation answers it lowers "
            "the log loss by 0.01000 (a reduction of more than 0.02000, two standard errors, is "
            "needed)",
        ),
        (
            0.48,
            "LoRA left out, the rows are used without it: on 99 validation answers it lowers "
            "the log loss by 0.01000 (a reduction of more than 0.02000, two standard errors, is "
            "needed) "
            "and moves the accuracy from 50.0 to 48.0% (at most 1 point is allowed)",
        ),
    ],
)
def test_the_choice_is_said_with_the_rule_that_made_it(after: float | None, wanted: str) -> None:
    assert str(LoraChoice(False, 0.01, 0.01, 99, 0.5, after)) == wanted


@pytest.mark.parametrize(("errors", "kept"), [(1.8, False), (2.2, True)])
def test_lora_is_kept_from_a_gain_of_two_paired_standard_errors_on(
    errors: float, kept: bool, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = RunDir(made / "auto")
    context = Context(directory, settings(made, "train.layer=0"))
    samples = context.samples(directory.split("validation"))
    right = np.array([c for c, r in zip(samples.correct, samples.responses, strict=True)
                      if r.finish_reason == "stop"])  # fmt: skip
    noise = np.random.default_rng(0).normal(size=len(right))
    noise = (noise - noise.mean()) / noise.std(ddof=1)
    better = 0.05 * (noise + errors / np.sqrt(len(right)))  # log loss of each answer
    sure = {directory.rows: np.full(len(right), 0.5), directory.adapter: 0.5 * np.exp(better)}

    def load(path: Path) -> Any:
        c = np.where(right, sure[path], 1 - sure[path])
        return type("Rater", (), {"confidences": lambda *_: c.tolist()})()

    monkeypatch.setattr(context.engines, "load", load)
    monkeypatch.setattr(choosing, "answer", lambda *_, **__: None)
    monkeypatch.setattr(type(directory.split("validation")), "tuned", samples_graded(samples))
    found = choosing.compare(context)
    assert found.gain / found.standard_error == pytest.approx(errors, rel=1e-4)
    assert found.kept is kept


def samples_graded(samples: Any) -> Any:
    """Return a split's `tuned` whose answers are as often right as the backbone's."""
    grades = [type("G", (), {"correct": correct})() for correct in samples.correct]
    table = type("R", (), {"read": lambda _: grades})()
    return property(lambda _: type("T", (), {"grades": table})())


def test_every_report_of_two_rows_says_what_they_and_the_evidence_say_alone(made: Path) -> None:
    rows = json.loads((made / "rows/report.json").read_text())["rows"]
    assert {row["estimator"] for row in rows} == {
        *("grace", "likelihood", "evidence", "probe", "probe_tokens")
    }
    found = {row["estimator"]: row for row in rows}
    assert found["probe"]["access"] == "hidden states"
    kept = json.loads((made / "auto/adapter/grace.json").read_text())["lora"]["kept"]
    rows = json.loads((made / "auto/report.json").read_text())["rows"]
    assert ("grace@base" in {row["estimator"] for row in rows}) == kept


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
    from grace.pipeline.stages.cost import StoredTraining

    directory = RunDir(made / "rows")
    context = Context(directory, settings(made, "train.lora=never"))
    samples = context.samples(directory.split("train"))
    tokens = [response.token_ids for response in samples.responses]
    for layer in (0, 2):
        found = StoredTraining(context)(samples.prompts[3:7], tokens[3:7], layer)
        assert found is not None
        fresh = context.engine("base").features(samples.prompts[3:7], tokens[3:7], layer)
        for ours, theirs in zip(found, fresh, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert StoredTraining(context)(samples.prompts[3:4], [(*tokens[3], 5)], 0) is None


def test_without_lora_both_pools_of_a_vote_are_drawn_once(made: Path, tmp_path: Path) -> None:
    import shutil

    from grace.engines.transformers import TransformersEngine
    from grace.pipeline.scaling import ScaleSettings, scale_runs

    run_path = Path(shutil.copytree(made / "rows", tmp_path / "run"))
    drawn = []
    generate = TransformersEngine.generate_batch
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            TransformersEngine,
            "generate_batch",
            lambda self, prompts, *rest, **how: (
                drawn.append(len(prompts)) or generate(self, prompts, *rest, **how)
            ),
        )
        found = scale_runs(run_path, ScaleSettings(samples=2, orders=2))
    test = RunDir(run_path).split("test")
    assert sum(drawn) == len(test.questions.read())
    base, tuned = (split.pool(2, 0.8).responses.path.read_bytes() for split in (test, test.tuned))
    assert base == tuned
    votes = {row["strategy"]: row["accuracy"] for row in found["rows"] if row["budget"] == 2}
    assert votes["sc"] == votes["sc@grace"] and "grace-sc" in votes


def test_where_the_few_whole_answers_are_alike_the_length_limit_is_named(
    made: Path, tmp_path: Path
) -> None:
    import shutil

    run_path = Path(shutil.copytree(made / "rows", tmp_path / "run"))
    table = RunDir(run_path).split("train").responses
    cut = {"finish_reason": "length", "end_logprob": None, "confidence": None}
    table.write([table.read()[0], *(dataclasses.replace(row, **cut) for row in table.read()[1:])])
    with pytest.raises(DataError, match=r"end within sample\.max_new_tokens=24 \(\d+ do"):
        fit(Context(RunDir(run_path), settings(made, "train.lora=never")))
