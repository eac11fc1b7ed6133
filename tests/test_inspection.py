"""The Inspect AI provider: the engine's answers, with their confidence as metadata."""

from __future__ import annotations

import asyncio
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("inspect_ai", reason="Inspect AI is not installed: pip install inspect-ai")
pytestmark = pytest.mark.filterwarnings("default")


def answer(path: Path, prompt: Any, *, ask: bool = False, tools: Any = (), **config: Any) -> Any:
    from inspect_ai.model import GenerateConfig, get_model

    import grace.inspection  # noqa: F401 (registers the provider)

    model = get_model(f"grace/{path}", ask=ask, memoize=False)
    return asyncio.run(model.generate(prompt, tools=tools, config=GenerateConfig(**config)))


def test_a_question_is_answered_with_the_confidence_of_ask(finished: Path) -> None:
    import grace

    wanted = grace.load(finished / "run").ask("Who wrote Middlemarch?")
    found = answer(finished / "run", "Who wrote Middlemarch?", ask=True)
    assert found.completion == wanted.text
    assert found.metadata["confidence"] == pytest.approx(wanted.confidence, abs=1e-6)
    assert (
        found.metadata["calibrated"]
        and not answer(finished / "run", "Hello").metadata["calibrated"]
    )
    assert found.stop_reason == {"stop": "stop", "length": "max_tokens"}[wanted.finish_reason]


def test_every_choice_has_a_confidence_and_a_seed_repeats_them(finished: Path) -> None:
    config = {"num_choices": 3, "temperature": 1.0, "seed": 1, "max_tokens": 12}
    first, again = (answer(finished / "run", "Hello", **config) for _ in range(2))
    assert len(first.choices) == len(first.metadata["confidences"]) == 3
    assert [c.message.text for c in first.choices] == [c.message.text for c in again.choices]
    assert first.metadata == again.metadata
    assert first.usage.total_tokens == first.usage.input_tokens + first.usage.output_tokens


def test_a_stop_string_cuts_an_answer_whose_confidence_is_that_of_what_is_left(
    finished: Path,
) -> None:
    import grace

    config = {"temperature": 1.0, "seed": 1, "max_tokens": 12}
    whole = answer(finished / "run", "Hello", **config).completion
    stop = whole[len(whole) // 2]
    left, _, rest = whole.partition(stop)
    assert left and rest
    found = answer(finished / "run", "Hello", stop_seqs=["never written", stop], **config)
    assert (found.completion, found.stop_reason) == (left.strip(), "stop")
    chat = [{"role": "user", "content": "Hello"}]
    (wanted,) = grace.load(finished / "run").score([chat], [left])
    assert found.metadata["confidence"] == pytest.approx(wanted, abs=1e-6)


def test_an_option_that_the_model_does_not_have_is_refused(finished: Path) -> None:
    from grace.errors import UserInputError

    with pytest.raises(UserInputError, match="no top_k; leave it out"):
        answer(finished / "run", "Hello", top_k=5)


def test_an_evaluation_reads_the_confidence_in_a_scorer(finished: Path, tmp_path: Path) -> None:
    from inspect_ai import Task, eval
    from inspect_ai.dataset import Sample
    from inspect_ai.scorer import Score, mean, scorer

    import grace.inspection  # noqa: F401

    @scorer(metrics=[mean()])
    def confidence() -> Any:
        async def score(state: Any, target: Any) -> Score:
            return Score(value=state.output.metadata["confidence"])

        return score

    task = Task(dataset=[Sample(input="What is 3 and 21?", target="3")], scorer=confidence())
    (log,) = eval(
        task,
        model=f"grace/{finished / 'run'}",
        model_args={"ask": True},
        log_dir=str(tmp_path),
        display="none",
    )
    assert log.status == "success"
    assert 0 <= log.results.scores[0].metrics["mean"].value <= 1


def test_inspect_finds_the_provider_by_itself() -> None:
    names = {(point.name, point.value) for point in entry_points(group="inspect_ai")}
    assert ("grace", "grace.inspection") in names
