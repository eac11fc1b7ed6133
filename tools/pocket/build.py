"""Build the pocket from nothing: world, tokenizer, training, checkpoint, recipe.

A rebuild has the same world, corpus and tokenizer byte for byte, but the same weights only
statistically: float sums depend on the processor, the number of threads and the torch build. So the
digests of the weights differ, and so do the accuracies: by a few points on the closed-book tasks,
by more on `pocket_sums` (see README.md). On one CPU, with one thread and the same versions, the
weights are the same too. A GPU is used if there is one.

    python -m tools.pocket.build OUT
"""

from __future__ import annotations

import argparse
import json
import platform
import time
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


def build(
    out: Path, *, seed: int = 0, recipe: Recipe | None = None, num_asked: int = 1000
) -> dict[str, Any]:
    """Build the pocket into a folder; a build that was interrupted resumes.

    Args:
        out: Folder to write; its files are overwritten.
        seed: Seed of the world, the initial weights and the order of reading.
        recipe: Sizes and settings; default: those of the shipped pocket.
        num_asked: Largest number of questions per task and split to measure the accuracy on.

    Returns:
        The content of `recipe.json`.
    """
    recipe = recipe or Recipe()
    start_s = time.perf_counter()
    world = World.build(seed)
    docs = documents(world, recipe.corpus)
    tokenizer = train_tokenizer(world, docs, recipe.vocab_size, recipe.context)
    ids_RT, weights_RT = pack(
        encode(tokenizer, docs), recipe.training.row_length, tokenizer.pad_token_id
    )
    model = new_model(tokenizer, recipe, seed)
    if torch.cuda.is_available():
        model.to("cuda")
    how = train(model, ids_RT, weights_RT, recipe.training, out / "unfinished.pt")
    save(widen(model), tokenizer, out)
    model, tokenizer = load(out)
    accuracy, topics = {}, {}
    for task in TASKS:
        right = answered_right(model, tokenizer, world, task, "test", num_asked)
        accuracy[task] = round(sum(right) / len(right), 4)
        if task in KINDS:
            known = answered_right(model, tokenizer, world, task, "train", num_asked)
            topics[task] = round(topic_alone(world, task, known, right), 4)
    content = {
        "seed": seed,
        "settings": asdict(recipe),
        "num_parameters": model.num_parameters(),
        "num_tokens": int((ids_RT != tokenizer.pad_token_id).sum()) * recipe.training.passes,
        "seconds": round(time.perf_counter() - start_s),
        "threads": torch.get_num_threads(),
        "trained_with": how,
        "greedy_test_accuracy": accuracy,
        "topic_alone_auroc": topics,
        "sha256": {name: digest(out / name) for name in ("model.safetensors", "tokenizer.json")},
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }
    (out / "recipe.json").write_text(json.dumps(content, indent=2) + "\n")
    return content


def new_model(tokenizer: PreTrainedTokenizerFast, recipe: Recipe, seed: int) -> LlamaForCausalLM:
    """Return an untrained decoder with an untied head."""
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
    """Write a Hugging Face checkpoint with float16 weights."""
    out.mkdir(parents=True, exist_ok=True)
    model.generation_config = GenerationConfig(
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model.half().save_pretrained(out)
    tokenizer.save_pretrained(out)


def load(folder: Path) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Return the decoder in float32, ready to answer, and its tokenizer; no network."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    return model.eval(), tokenizer


def main() -> None:
    """Build into the folder that the command line names, and print the recipe."""
    parser = argparse.ArgumentParser(description="Build the pocket from nothing.")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write")
    parser.add_argument("--seed", type=int, default=0, help="of the world and of the training")
    arguments = parser.parse_args()
    print(json.dumps(build(arguments.out, seed=arguments.seed), indent=2))


if __name__ == "__main__":
    main()
