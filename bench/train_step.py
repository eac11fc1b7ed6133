"""Cost of the calibration term: a training step with it against a plain LoRA fine-tuning step.

Both sides are measured in one run, alternating on the same batches. The plain step trains LoRA
alone on the response tokens; the other adds the `<CNF>` row and the calibration term. Claim:
the ratio of the median times is at most 1.05.

    python bench/train_step.py --model DIR --steps 60
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from keeping import add_keep, figure
from timing import in_turns

from grace.cnf import CnfTokens, Readout
from grace.config import PaperSettings
from grace.methods.paper.examples import Example, TrainingBatch, collate
from grace.methods.paper.loop import MAX_GRAD_NORM
from grace.methods.paper.lora import add_lora, light_rows, target_modules
from grace.methods.paper.loss import forward_logits, losses, mean_over_tokens, token_losses


def main() -> None:
    arguments = _arguments()
    torch.manual_seed(0)
    plain, taught = _model(arguments.model, arguments.dtype)
    rows = plain.get_input_embeddings().weight.shape[0]
    cnf, settings = CnfTokens(Readout((rows - 1,)), spare_row=True), PaperSettings()
    batches = _batches(arguments, rows)
    plain_step = _sft_step(_lora_only(plain, settings), settings)
    peft_model = add_lora(taught, cnf, settings)
    with light_rows(peft_model, settings.read_at):
        taught_step = _grace_step(peft_model, cnf, settings)
        sides = [_each(step, batches) for step in (plain_step, taught_step)]
        taken = in_turns(*sides, rounds=arguments.steps, warm=arguments.warmup)
    seconds = [[one.clock for one in side] for side in taken]
    ratios = [one / other for other, one in zip(*seconds, strict=True)]
    what = "a step with the calibration term / a plain SFT step, seconds"
    figure(what, ratios, arguments.keep)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="", help="model directory; empty: a random Llama")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--warmup", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=60, help="mean prompt length, in tokens")
    parser.add_argument("--response", type=int, default=8, help="mean response length, in tokens")
    add_keep(parser)
    return parser.parse_args()


def _model(path: str, dtype: str) -> tuple[Any, Any]:
    import transformers

    kind = getattr(torch, dtype)
    if path:
        model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=kind)
    else:
        config = transformers.LlamaConfig(
            vocab_size=16_000,
            hidden_size=384,
            intermediate_size=1024,
            num_hidden_layers=6,
            num_attention_heads=6,
        )
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=kind)
    model = model.to("cuda" if torch.cuda.is_available() else "cpu")
    return model, copy.deepcopy(model)


def _batches(arguments: argparse.Namespace, rows: int) -> list[TrainingBatch]:
    rng = np.random.default_rng(0)

    def tokens(mean: int) -> tuple[int, ...]:
        low, high = max(1, mean // 2), mean + mean // 2 + 1
        return tuple(rng.integers(5, rows - 1, rng.integers(low, high)).tolist())

    device = "cuda" if torch.cuda.is_available() else "cpu"
    made = []
    for _ in range(arguments.steps + arguments.warmup):
        examples = [
            Example("", tokens(arguments.prompt), tokens(arguments.response), rng.random())
            for _ in range(arguments.batch)
        ]
        batch: Any = collate(examples, Readout((rows - 1,)), 0)
        made.append({name: value.to(device) for name, value in batch.items()})
    return made


def _lora_only(model: Any, settings: PaperSettings) -> Any:
    import warnings

    from peft import LoraConfig, get_peft_model

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return get_peft_model(
            model,
            LoraConfig(
                r=settings.rank,
                lora_alpha=settings.alpha,
                lora_dropout=settings.dropout,
                target_modules=target_modules(model, settings.target_modules),
                task_type="CAUSAL_LM",
            ),
        )


def _step(model: Any, settings: PaperSettings, loss_of: Callable[[TrainingBatch], Any]) -> Any:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=settings.learning_rate)
    model.train()

    def step(batch: TrainingBatch) -> None:
        loss_of(batch).backward()
        torch.nn.utils.clip_grad_norm_(trained, MAX_GRAD_NORM)
        optimizer.step()
        optimizer.zero_grad()

    return step


def _sft_step(model: Any, settings: PaperSettings) -> Any:
    def loss_of(batch: TrainingBatch) -> Any:
        length = batch["input_ids"].shape[1] - 1  # without <CNF>
        labels_BT = batch["labels"][:, 1:length]
        kept = int((labels_BT != -100).sum(dim=1).max()) + 1
        labels_BK = labels_BT[:, length - kept :]
        loss_BK = token_losses(forward_logits(model, batch, length, kept)[:, :-1], labels_BK)
        return mean_over_tokens(loss_BK, labels_BK).mean()

    return _step(model, settings, loss_of)


def _grace_step(model: Any, cnf: CnfTokens, settings: PaperSettings) -> Any:
    def loss_of(batch: TrainingBatch) -> Any:
        terms = losses(model, batch, cnf.readout)
        return (terms.calibration + settings.gamma * terms.sft).mean()

    return _step(model, settings, loss_of)


def _each(step: Any, batches: list[TrainingBatch]) -> Callable[[], None]:
    """Return a function that takes the step of the next batch each time."""
    left = iter(batches)

    def work() -> None:
        step(next(left))
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    return work


if __name__ == "__main__":
    main()
