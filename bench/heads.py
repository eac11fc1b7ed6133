"""Fit a ready head of the package to answers that `bench/travel.py` collected.

    python bench/travel.py MODEL DATA OUT --answers 500
    python bench/heads.py MODEL OUT src/grace/heads/NAME --layers 15 18

Sources without an entry in LICENCES are left out of the fit, and rated as questions that it has
never seen. Each source was asked after five examples of its own; the head asks after EXAMPLES. The
description of the prompts is kept in float16, which halves a head.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import travel
from safetensors.numpy import load_file, save_file

import grace
from grace.config import override_settings
from grace.engines import Features, LayerStates, StepStates
from grace.engines.gguf import gguf_file
from grace.engines.local.adapters import PROMPT_ENDS
from grace.engines.local.layers import candidates
from grace.methods.card import model_card
from grace.metrics import evaluate
from grace.pipeline.context import Context
from grace.pipeline.stages.fit import FitData, adapter_metadata, fit_rows, write_rows_adapter
from grace.probe.rows import Sourced
from grace.records import Question, to_json
from grace.store import CARD, ROWS, RunDir, read_card, write_json
from grace.store.files import digest

LICENCES = {
    "arc_text": "CC BY-SA 4.0 (ARC Challenge, options in the question)",
    "qa_wikidata": "Apache-2.0 (BIG-bench qa_wikidata)",
    "squad_open": "CC BY-SA 4.0 (SQuAD without passages)",
    "trivia_qa": "none stated (TriviaQA; its code is Apache-2.0)",
    "web_questions": "CC BY 4.0 (WebQuestions)",
}
EXAMPLES = (  # in no source
    ("What is the capital of Canada?", "Ottawa"),
    ("Who painted the Mona Lisa?", "Leonardo da Vinci"),
    ("In which year did the Berlin Wall fall?", "1989"),
    ("What is the largest planet of the solar system?", "Jupiter"),
    ("Which river flows through Cairo?", "the Nile"),
)
SETTINGS = {
    "data": {"task": "jsonl", "prompt": "text", "template": "Q: {question}\nA:", "shots": 0},
    "sample": {"max_new_tokens": 32},
}


def main() -> None:
    """Fit, rate on sources left out, and write the head with its card."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("stored", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, nargs="+", help="blocks to choose from")
    parser.add_argument("--dtype", default="auto", help="as model.dtype of a run")
    given = parser.parse_args()
    model, stored, out = given.model, given.stored, given.out
    names = sorted({file.name.split(".")[0] for file in stored.glob("*.?????.npz")})
    sources = {name: travel._stored(stored, name) for name in names}
    fitted = [name for name in names if name in LICENCES]
    context = Context(
        RunDir(out),
        override_settings(SETTINGS | {"model": {"path": model, "dtype": given.dtype}}, []),
    )
    shots = [Question(f"example-{n}", "jsonl", q, (a,)) for n, (q, a) in enumerate(EXAMPLES, 1)]

    def joined(key: str) -> Any:
        return np.concatenate([sources[name]["states"][key] for name in fitted])

    def read(layer: int) -> LayerStates:
        pooled = Features(*(joined(f"{place}.{layer}") for place in travel.PLACES))
        return LayerStates(pooled, StepStates(*[pooled.last_ND[:, None][:, :0]] * 2))

    info = [one for name in fitted for one in sources[name]["info"]]
    groups = [Sourced(name, (name, n)) for name in fitted for n in range(_count(sources, name))]
    logprobs = [(one["logprobs"], one["end"]) for one in info]
    labels = np.array([float(one["right"]) for one in info])
    engine = context.engines.base
    layers = sorted({min(candidates(engine.model)), *(given.layers or candidates(engine.model))})
    readout = fit_rows(context, layers, read, FitData(logprobs, labels, groups))
    # it is for other questions, after other examples, which no fit to one source alone is for
    known = replace(readout.evidence.familiar, own=())
    evidence, (block, prompts) = replace(readout.evidence, familiar=known), readout.prompts
    metadata = adapter_metadata(context, shots)
    metadata["data"]["shots"], metadata["shots"] = len(shots), [to_json(shot) for shot in shots]
    file = gguf_file(Path(model)) or Path(model) / "model.safetensors"
    metadata["questions"], metadata["base_model"] = ", ".join(fitted), file.name
    metadata["ready"] = {
        "version": grace.__version__,
        "weights": {"file": file.name, "bytes": file.stat().st_size, "sha256": digest(file)},
        "sources": [
            {"name": name, "answers": _count(sources, name), "licence": LICENCES[name]}
            for name in fitted
        ],
        "left_out": [_left_out(sources, fitted, name, given.layers) for name in names],
    }
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "made"
        rows, ends = (readout.rows_ED, evidence), (block, prompts._replace(own=()))
        write_rows_adapter(engine, *rows, made, metadata, readout.layer_rows, ends)
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        arrays = load_file(made / ROWS)
        arrays |= {name: arrays[name].astype(np.float16) for name in PROMPT_ENDS}
        save_file(arrays, out / ROWS)
        record = read_card(made)
    write_json(out / CARD, record)
    (out / "README.md").write_text(model_card(record), encoding="utf-8")


def _count(sources: dict[str, Any], name: str) -> int:
    return len(sources[name]["right"])


def _left_out(
    sources: dict[str, Any], fitted: list[str], name: str, layers: list[int] | None
) -> dict[str, Any]:
    """Return how good c is on a source that the fit has not seen."""
    some = {one: sources[one] for one in sorted({*fitted, name})}
    rated, right = (
        travel._rate(some, name, travel._others(some, name, 0), 0, layers),
        some[name]["right"],
    )

    def shown(method: str) -> str:
        found = evaluate(rated[method], right, ("ece", "brier", "auroc"))
        return " / ".join(f"{100 * value:.1f}" for value in found.values())

    return {
        "name": name,
        "answers": len(right),
        "right": round(100 * float(right.mean())),
        "familiar": round(float(rated["familiar"].mean()), 2),
        "likelihood": shown("likelihood"),
        "confidence": shown("GrACE"),
    }


if __name__ == "__main__":
    main()
