"""The settings of the two methods: how the confidence is fitted, or trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from grace.config.fields import setting
from grace.errors import ConfigError

Head = Literal["linear", "token", "bins"]
ReadAt = Literal["predict", "feed", "prompt"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraceSettings:
    """Our method (`method=grace`): one convex fit, which changes no answer."""

    trace: bool = setting(False, "also fit the confidence at every token of an answer")
    layer: int = setting(
        -1,
        "what the confidence reads. 0: the last hidden state; N: the MLP of block N, counted from "
        "1; -1: the last state or one of four blocks, whichever is best on held-out folds",
        low=-1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperSettings:
    """The paper's method (`method=paper`), with the values of its Appendix A."""

    variant: Literal["grace", "disc", "pre", "sft", "feed"] = setting(
        "grace",
        "grace: the paper's own. Its ablations: disc: the likeliest of ten tokens, trained by SFT "
        "only; pre: read at the last prompt token; sft: <CNF> is one more label of the SFT term. "
        "feed: <CNF> is fed and read at its own position, with one more forward pass",
    )
    folds: int = setting(
        10, "folds of the probe, grouped by question; fewer if those are few", low=3
    )
    bins: int = setting(
        10, "equal-width bins of the probe's scores; a target is one's accuracy", low=1
    )
    min_count: int = setting(20, "smallest number of responses in a bin without a warning", low=1)
    balance: Literal["none", "cap"] = setting(
        "cap",
        "how training examples are balanced over ten intervals of their target. none: not at all; "
        "cap: at most the mean number from each",
    )
    gamma: float = setting(
        0.1, "weight of the SFT term (supervised fine-tuning on the model's own answers)", low=0
    )
    learning_rate: float = setting(1e-5, "peak learning rate of AdamW", low=0)
    row_learning_rate: float = setting(0.0, "learning rate of the <CNF> row; 0: the same", low=0)
    epochs: int = setting(3, "passes over the training responses", low=1)
    batch_size: int = setting(8, "responses per optimizer step", low=1)
    micro_batch_size: int = setting(0, "responses per forward pass; 0: the batch size", low=0)
    rank: int = setting(16, "LoRA rank", low=1)
    alpha: float = setting(16.0, "LoRA scaling factor", low=0)
    dropout: float = setting(0.05, "LoRA dropout", low=0, high=1)
    target_modules: tuple[str, ...] = setting(
        ("mlp",), "layers that LoRA adapts: mlp, attention, qv, all-linear, or module names"
    )
    weight_decay: float = setting(0.01, "weight decay of AdamW", low=0)
    schedule: Literal["constant", "linear", "cosine"] = setting(
        "linear", "learning-rate schedule: constant, linear or cosine"
    )
    warmup: float = setting(0.0, "share of the steps spent warming up", low=0, high=1)
    max_grad_norm: float = setting(1.0, "norm at which gradients are clipped; 0: never", low=0)
    gradient_checkpointing: bool = setting(False, "train with less memory, more slowly")
    report_to: Literal["none", "tensorboard", "wandb", "trackio"] = setting(
        "none", "tracker that also gets the training log: none, tensorboard, wandb or trackio"
    )

    @property
    def head(self) -> Head:
        """The kind of read-out (`grace.cnf`)."""
        return "bins" if self.variant == "disc" else "token"

    @property
    def read_at(self) -> ReadAt:
        """Where c is read: at the last response token, unless a variant says otherwise."""
        return {"pre": "prompt", "feed": "feed"}.get(self.variant, "predict")  # type: ignore[return-value]


FREE_IN_TRAINING = ("micro_batch_size", "gradient_checkpointing", "report_to")
"""Settings that may change during training, after it ran out of memory, say."""

REMEDY = "read its report.md, or start a new run (docs/decisions/016-what-went.md)"


def of_earlier(tree: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return settings that a version without `method` has stored; refuse those that are gone."""
    tree = dict(tree)
    if "method" in tree or not tree.keys() & {"train", "target"}:
        return tree
    train, target = dict(tree.pop("train", {})), dict(tree.pop("target", {}))
    if (head := train.pop("head", "linear")) == "linear":
        if train.get("lora", "auto") == "always":
            raise ConfigError(f"{where}: LoRA was trained on top of fitted rows; {REMEDY}")
        kept = {name: train[name] for name in ("trace", "layer") if name in train}
        return {**tree, "method": "grace", "grace": kept}
    read_at, in_sft = train.pop("read_at", "predict"), train.pop("cnf_in_sft", False)
    variants = {("bins", "predict", False): "disc", ("token", "prompt", False): "pre"}
    variants |= {("token", "predict", True): "sft", ("token", "feed", False): "feed"}
    variants |= {("token", "predict", False): "grace"}
    usual = {"evidence": "none", "init": "eos", "lora": "auto", "trace": False, "layer": -1}
    usual |= {} if head == "bins" else {"loss": "mse"}
    usual |= {"kind": "scores" if head == "bins" else "bins", "features": ["mean"]}
    given = train | target
    other = {name: given[name] for name in usual if given.get(name, usual[name]) != usual[name]}
    variant = variants.get((head, read_at, in_sft))
    if other or variant is None or train.get("balance") == "sampler":
        raise ConfigError(f"{where}: this version cannot train with {other or train}; {REMEDY}")
    known = PaperSettings.__dataclass_fields__
    kept = {name: value for name, value in given.items() if name in known}
    return {**tree, "method": "paper", "paper": {"variant": variant, **kept}}
