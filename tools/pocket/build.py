"""Building the pocket from nothing: world, tokenizer, training, checkpoint, recipe.

A rebuild has the same world, corpus and tokenizer byte for byte. The weights are the same only
statistically: float sums depend on the processor, the number of threads and the torch build, so
the digests of the weights differ, and so do the accuracies: by a few points on the closed-book
tasks, by more on `pocket_sums` (see README.md). On one CPU, with one thread and the same versions,
the weights come out the same too. A GPU is used where there is one.

    python -m tools.pocket.build OUT
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from grace.store import digest
from tools.pocket import TASKS
from tools.pocket.check import answered_right, topic_alone
from tools.pocket.corpus import CorpusSettings, documents
from tools.pocket.tokens import encode, pack, train_tokenizer
from tools.pocket.topics import KINDS
from tools.pocket.train import TrainSettings, train
from tools.pocket.widen import widen
from tools.pocket.world import World

Progress = Callable[[str, float], None]
"""Called with a stage's name and the share of it that is done, in [0, 1]."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides what is built, except the world's own constants.

    Attributes:
        vocab_size: Entries of the tokenizer.
        width: Size of the hidden state in training; `widen` rounds it up to a multiple of 32.
        num_layers: Number of decoder layers.
        num_heads: Number of attention heads, whose size is rounded up likewise.
        mlp_width: Size of the inner layer of the MLP, which is rounded up likewise.
        context: Longest prompt and reply together, in tokens.
        corpus: What the corpus holds.
        training: How the decoder is trained.
    """

    vocab_size: int = 1536
    width: int = 176
    num_layers: int = 6
    num_heads: int = 8
    mlp_width: int = 464
    context: int = 512
    corpus: CorpusSettings = field(default_factory=CorpusSettings)
    training: TrainSettings = field(default_factory=TrainSettings)


@dataclass(frozen=True, slots=True)
class BuildReport:
    """What a build made.

    Attributes:
        out: Folder of the checkpoint.
        num_parameters: Of the decoder.
        num_tokens: Read in training.
        seconds: Wall clock of the whole build.
        accuracy: Greedy test accuracy by task, in [0, 1].
        topic_alone: By closed-book task, the AUROC on test of a confidence that knows no more than
            the question's topic (see `topic_alone`), in [0, 1].
    """

    out: Path
    num_parameters: int
    num_tokens: int
    seconds: float
    accuracy: dict[str, float]
    topic_alone: dict[str, float]


def build(
    out: Path,
    *,
    seed: int = 0,
    recipe: Recipe | None = None,
    progress: Progress | None = None,
    num_asked: int = 1000,
) -> BuildReport:
    """Builds the pocket into a folder; a build that was interrupted goes on where it stopped.

    Args:
        out: Folder to write; made where missing, its files overwritten.
        seed: Of the world, the initial weights and the order of reading.
        recipe: Sizes and settings; default: those of the shipped pocket.
        progress: Called as the work goes on; default: a progress bar.
        num_asked: Questions per task and split that it is measured on, at most.

    Returns:
        What was built; the same is written to `recipe.json`.
    """
    if progress is None:
        with _ProgressBar() as bar:
            return build(out, seed=seed, recipe=recipe, progress=bar, num_asked=num_asked)
    recipe = recipe or Recipe()
    start_s = time.perf_counter()
    progress("world", 0.0)
    world = World.build(seed)
    docs = documents(world, recipe.corpus)
    tokenizer = train_tokenizer(world, docs, recipe.vocab_size, recipe.context)
    ids_RT, weights_RT = pack(
        encode(tokenizer, docs), recipe.training.row_length, tokenizer.pad_token_id
    )
    progress("world", 1.0)
    model = new_model(tokenizer, recipe, seed)
    if torch.cuda.is_available():
        model.to("cuda")
    how = train(
        model,
        ids_RT,
        weights_RT,
        recipe.training,
        lambda step, total, _: progress("reading", step / total),
        out / "unfinished.pt",
    )
    save(widen(model), tokenizer, out)
    model, tokenizer = load(out)
    accuracy, topics = {}, {}
    for i, task in enumerate(TASKS):
        progress("asking", i / len(TASKS))
        right = answered_right(model, tokenizer, world, task, "test", num_asked)
        accuracy[task] = sum(right) / len(right)
        if task in KINDS:
            known = answered_right(model, tokenizer, world, task, "train", num_asked)
            topics[task] = topic_alone(world, task, known, right)
    progress("asking", 1.0)
    num_tokens = int((ids_RT != tokenizer.pad_token_id).sum()) * recipe.training.passes
    report = BuildReport(
        out, model.num_parameters(), num_tokens, time.perf_counter() - start_s, accuracy, topics
    )
    _write_recipe(report, recipe, seed, how)
    return report


def new_model(tokenizer: PreTrainedTokenizerFast, recipe: Recipe, seed: int) -> LlamaForCausalLM:
    """Returns an untrained decoder with an untied head."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=recipe.width,
        intermediate_size=recipe.mlp_width,
        num_hidden_layers=recipe.num_layers,
        num_attention_heads=recipe.num_heads,
        max_position_embeddings=recipe.context,
        tie_word_embeddings=False,
        initializer_range=recipe.width**-0.5,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return LlamaForCausalLM(config)


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Writes a Hugging Face checkpoint with float16 weights."""
    out.mkdir(parents=True, exist_ok=True)
    model.generation_config = GenerationConfig(
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model.half().save_pretrained(out)
    tokenizer.save_pretrained(out)


def load(folder: Path) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Returns the decoder in float32, ready to answer, and its tokenizer; no network."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    return model.eval(), tokenizer


def _write_recipe(report: BuildReport, recipe: Recipe, seed: int, how: str) -> None:
    content: dict[str, Any] = {
        "seed": seed,
        "settings": asdict(recipe),
        "num_parameters": report.num_parameters,
        "num_tokens": report.num_tokens,
        "seconds": round(report.seconds),
        "threads": torch.get_num_threads(),
        "trained_with": how,
        "greedy_test_accuracy": {k: round(v, 4) for k, v in report.accuracy.items()},
        "topic_alone_auroc": {k: round(v, 4) for k, v in report.topic_alone.items()},
        "sha256": {
            name: digest(report.out / name) for name in ("model.safetensors", "tokenizer.json")
        },
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }
    (report.out / "recipe.json").write_text(json.dumps(content, indent=2) + "\n")


class _ProgressBar:
    """A rich progress bar that is called with a stage and its share done."""

    def __enter__(self) -> Progress:
        from rich.progress import Progress as Bar

        self._bar = Bar()
        self._stages: dict[str, Any] = {}
        self._bar.start()
        return self._update

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def _update(self, stage: str, done: float) -> None:
        if stage not in self._stages:
            self._stages[stage] = self._bar.add_task(stage, total=1.0)
        self._bar.update(self._stages[stage], completed=done)


def main() -> None:
    """Builds into the folder that the command line names, and prints what came out."""
    parser = argparse.ArgumentParser(description="Build the pocket from nothing.")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write")
    parser.add_argument("--seed", type=int, default=0, help="of the world and of the training")
    arguments = parser.parse_args()
    print(build(arguments.out, seed=arguments.seed))


if __name__ == "__main__":
    main()
