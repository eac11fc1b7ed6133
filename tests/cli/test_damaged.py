"""A damaged file of a model gets one line that names it, whichever command reads it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from grace.engines.transformers import TransformersEngine
from grace.evidence import FEATURES, Evidence
from grace.evidence.trace import TRACE_FEATURES, Trace
from grace.export import export_model
from grace.pipeline.stages.fit import write_rows_adapter


class Damage(NamedTuple):
    """A file of a folder of `makes`, what it holds, and what the error says of it."""

    folder: str
    file: str
    content: str | bytes | dict[str, Any]  # a dict replaces entries
    says: str


ONES, TRACE_ONES = (1.0,) * len(FEATURES), (1.0,) * len(TRACE_FEATURES)
EVIDENCE = Evidence(
    ONES, ONES, low=ONES, high=ONES,
    trace=Trace(TRACE_ONES, TRACE_ONES, 0.0, TRACE_ONES, TRACE_ONES, 9.0),
).to_dict()  # fmt: skip
TRACE = EVIDENCE["trace"]
DEEP = '{"evidence": ' + "[" * 100_000 + "]" * 100_000 + "}"
DAMAGES = [
    Damage("base", "generation_config.json", '{"eos_token_id": ', "is not valid JSON"),
    Damage("base", "generation_config.json", b"\xff\xfe", "is not valid JSON"),
    Damage("base", "generation_config.json", "[]", "is not a JSON object"),
    Damage("base", "generation_config.json", '{"eos_token_id": "x"}', "eos_token_id is ['x']"),
    Damage("base", "generation_config.json", '{"eos_token_id": 3.5}', "eos_token_id is [3.5]"),
    Damage("base", "config.json", "", "is not valid JSON"),
    Damage("adapter", "grace.json", "null", "is not a JSON object"),
    Damage("adapter", "grace.json", {"rows": "321"}, "rows is '321'"),
    Damage("adapter", "grace.json", {"stop_ids": ["a"]}, "stop_ids is ['a']"),
    Damage("adapter", "grace.json", {"read_at": "end"}, "read_at is 'end'"),
    Damage("adapter", "grace.json", {"evidence": [1]}, "evidence is [1]"),
    Damage("adapter", "grace.json", {"evidence": {"weights": [1]}}, "this version knows"),
    *(
        Damage("rows", "grace.json", {"evidence": evidence}, "there are not")
        for evidence in (
            EVIDENCE | {"weights": []},
            EVIDENCE | {"center": []},
            EVIDENCE | {"high": []},
            EVIDENCE | {"trace": TRACE | {"weights": []}},
            EVIDENCE | {"trace": TRACE | {"low": []}},
        )
    ),
    Damage("rows", "grace.json", {"layer": "x"}, "layer is 'x'"),
    Damage("rows", "grace.json", {"end_ids": ["a"]}, "end_ids is ['a']"),
    Damage("adapter", "grace.json", {"shots": [{"a": 1}]}, "the shots in grace.json"),
    Damage("adapter", "grace.json", {"schema_version": 2}, "has version 2, this GrACE reads 1"),
    Damage("adapter", "grace.json", {"recalibrated": [{}]}, "recalibrated is [{}]"),
    Damage("adapter", "adapter_config.json", "{", "is not valid JSON"),
    Damage("adapter", "tokenizer_config.json", "{", "no tokenizer in"),
    Damage("adapter", "tokenizer_config.json", {"model_max_length": "x"}, "no tokenizer in"),
    Damage("adapter", "chat_template.jinja", "{{ 1 / 0 }}", "the chat template refuses"),
    Damage("adapter", "grace.json", DEEP, "is not valid JSON"),
    Damage("adapter", "adapter_config.json", DEEP, "is not valid JSON"),
    Damage("rows", "rows.safetensors", b"torn", "rows.safetensors cannot be read"),
    Damage("merged", "generation_config.json", '{"eos_token_id": ', "is not valid JSON"),
    Damage("merged", "tokenizer.json", "{", "no tokenizer in"),
]


@pytest.fixture(scope="module")
def whole(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Whole folders by name: a base, an adapter of it, one of rows alone, and an export."""
    root, run, base = tmp_path_factory.mktemp("whole"), finished / "run", finished / "model"
    export_model(run, run / "adapter", str(base), root / "merged")
    rows = np.zeros((4, 32), np.float32)
    metadata = {"base_model": str(base), "data": {"task": "jsonl", "prompt": "short"}}
    engine = TransformersEngine.load(base)
    write_rows_adapter(engine, rows, Evidence.none(), root / "rows", metadata)
    return {
        "base": base,
        "adapter": run / "adapter",
        "rows": root / "rows",
        "merged": root / "merged",
    }


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: f"{damage.file}: {damage.says}")
def test_a_damaged_file_is_named_in_one_line(
    damage: Damage,
    whole: dict[str, Path],
    tmp_path: Path,
    cli: Any,
) -> None:
    folder, content = tmp_path / "model", damage.content
    file = shutil.copytree(whole[damage.folder], folder) / damage.file
    if isinstance(content, dict):
        content = json.dumps(json.loads(file.read_text()) | content)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    based = ("--base", folder) if damage.folder == "base" else ()
    model = whole["adapter"] if based else folder
    commands: list[tuple[Any, ...]] = [("ask", model, "What is 1?", *based)]
    if damage.folder != "merged":
        commands.append(("export", model, tmp_path / "out", *based))
    for command in commands:
        result = cli(*command)
        assert result.code == 2, result.err
        *before, last = result.err.splitlines()
        assert (before, last.startswith("grace: error: ")) == ([], True), result.err
        assert damage.says in last
        assert "again" in last or "correct" in last or ";" in last
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("file", ["grace.json", "tokenizer.json"])
def test_an_adapter_beside_the_tokenizer_of_another_model_is_not_exported(
    file: str, whole: dict[str, Path], tmp_path: Path, cli: Any
) -> None:
    adapter = shutil.copytree(whole["adapter"], tmp_path / "adapter")
    if file == "grace.json":
        card = json.loads((adapter / file).read_text())
        (adapter / file).write_text(json.dumps(card | {"cnf_id": 5}))
    else:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(whole["base"] / name, adapter / name)
    for form in ("merged", "adapter", "gguf"):
        result = cli("export", adapter, tmp_path / "out", "--format", form)
        assert (result.code, result.err.count("\n")) == (2, 1), result.err
        assert "the tokenizer beside it is another's; train again" in result.err
