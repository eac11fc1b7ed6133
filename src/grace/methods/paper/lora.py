"""LoRA and the `<CNF>` row: target modules, the row's start, and rows without a full gradient.

Shapes: B sequences, T tokens, D hidden size, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from grace.cnf import CnfTokens, Readout, trainable_rows, without
from grace.config import PaperSettings
from grace.errors import ConfigError, TrainingError
from grace.methods.paper.examples import Example, TrainingBatch, collate, to_device
from grace.methods.paper.loss import forward_logits

PROMPTS, AT_ONCE = 1024, 16  # on which a row starts even, and how many at a time
RIDGE = 0.1  # its penalty, as a share of the mean squared length of the states
ALIASES = ("mlp", "attention", "qv", "all-linear")
MLP_PARENTS = ("mlp", "feed_forward", "ffn", "ff", "block_sparse_moe", "shared_mlp")
MLP_LEAVES = ("fc1", "fc2", "fc_in", "fc_out", "dense_h_to_4h", "dense_4h_to_h")
ROUTERS = ("router", "shared_expert_gate")
QV_LEAVES = ("q_proj", "v_proj", "query", "value", "q_lin", "v_lin")
FUSED_QKV_LEAVES = ("qkv_proj", "query_key_value", "c_attn", "Wqkv", "wqkv", "in_proj")


def target_modules(model: nn.Module, wanted: Sequence[str]) -> list[str]:
    """Resolve aliases (mlp, attention, qv, all-linear); fused projections count as a whole."""
    names = _linear_names(model)
    chosen: set[str] = set()
    for want in wanted:
        matching = {name for name in names if _matches(name, want)}
        if want == "qv" and not matching:
            matching = {name for name in names if name.rpartition(".")[2] in FUSED_QKV_LEAVES}
        if want == "mlp" and not matching:
            matching = {name for name in names if _matches(name, "attention")} or set(names)
        if not matching:
            leaves = sorted({name.rpartition(".")[2] for name in names})
            raise ConfigError(
                f"paper.target_modules {want!r} matches no linear layer of this model; "
                f"use {', '.join(ALIASES)} or one of {', '.join(leaves)}"
            )
        chosen |= matching
    return sorted({_suffix(name, names, chosen) for name in chosen})


def _linear_names(model: Any) -> list[str]:
    head = model.get_output_embeddings()
    return [
        name
        for name, module in model.named_modules()
        if (isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D")
        and module is not head
        and not set(ROUTERS) & set(name.split("."))
    ]


def _matches(name: str, want: str) -> bool:
    *parents, leaf = name.split(".")
    if want == "all-linear":
        return True
    if want == "mlp":
        return leaf in MLP_LEAVES or any(parent in MLP_PARENTS for parent in parents)
    if want == "attention":
        return any("attn" in parent or "attention" in parent for parent in parents)
    if want == "qv":
        return leaf in QV_LEAVES
    return name == want or name.endswith(f".{want}")


def _suffix(name: str, names: Sequence[str], chosen: set[str]) -> str:
    """Return the shortest suffix of `name` that matches chosen modules only."""
    parts = name.split(".")
    for length in range(1, len(parts)):
        suffix = ".".join(parts[-length:])
        if all(other in chosen for other in names if other.endswith(f".{suffix}")):
            return suffix
    return name


def add_lora(model: Any, cnf: CnfTokens, settings: PaperSettings) -> Any:
    """Wrap a model in place with LoRA and the trainable `<CNF>` row; all trainables are float32."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=target_modules(model, settings.target_modules),
        trainable_token_indices=trainable_rows(model, cnf.readout),
        task_type="CAUSAL_LM",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PEFT uses deprecated names
        peft_model = get_peft_model(model, config)
    wrong = [
        f"{name} ({parameter.dtype})"
        for name, parameter in peft_model.named_parameters()
        if parameter.requires_grad and parameter.dtype != torch.float32
    ]
    if wrong:
        raise TrainingError(
            f"{len(wrong)} trainable parameters are not float32, first {wrong[0]}; small learning "
            "rates would train nothing: load the base model in bfloat16 or float32"
        )
    return peft_model


@torch.no_grad()
def start_even(peft_model: Any, readout: Readout, examples: Sequence[Example], pad_id: int) -> None:
    """Initialise the output row of `<CNF>` so that c is about 1/2 at the end of a prompt.

    There neither the row of EOS nor the mean row of the vocabulary would do: c would start below
    one in a million, where (t - c)^2 has no gradient, and stay there.

    The row is a ridge regression of the logit that makes c 1/2 on the hidden states at the ends of
    some prompts, so that c is near 1/2 at each of them, not only on average. Its length is then
    adjusted through the whole model, as a model may scale its logits.
    """
    head = peft_model.get_base_model().get_output_embeddings()
    (row_1D,) = head.token_adapter.trainable_tokens_delta.values()
    prompts = [dataclasses.replace(item, response_ids=()) for item in examples[:PROMPTS]]
    parts = [prompts[at : at + AT_ONCE] for at in range(0, len(prompts), AT_ONCE)]
    batches = [collate(part, readout, pad_id) for part in parts]
    seen: list[Tensor] = []
    hook = head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0][:, -1].float()))
    logits_BV = _last_logits(peft_model, batches)
    hook.remove()
    states_BD = torch.cat(seen)
    rest_B = without(logits_BV, readout).logsumexp(dim=-1)
    row_1D.copy_(_ridge(states_BD, rest_B))
    logits_BV = _last_logits(peft_model, batches)
    row_1D.mul_(rest_B.mean() / logits_BV[:, readout.ids[0]].mean())


def _ridge(states_BD: Tensor, logits_B: Tensor) -> Tensor:
    """Return the row (D,) whose products with the states are close to these logits."""
    gram_BB = states_BD @ states_BD.T
    gram_BB.diagonal().add_(RIDGE * gram_BB.diagonal().mean())
    row_D: Tensor = states_BD.T @ torch.linalg.solve(gram_BB, logits_B)
    return row_D


def _last_logits(peft_model: Any, batches: Sequence[TrainingBatch]) -> Tensor:
    peft_model.eval()
    device = next(peft_model.parameters()).device
    logits = []
    for batch in batches:
        length = batch["input_ids"].shape[1] - 1  # without <CNF>
        logits_B1V = forward_logits(peft_model, to_device(batch, device), length, 1)
        logits.append(logits_B1V[:, -1].float())
    return torch.cat(logits)


def set_activation_checkpointing(model: Any, enabled: bool) -> None:
    """Switch recomputation of activations, by the name that this transformers version has."""
    name = "activation_checkpointing"
    if not hasattr(model, f"{name}_enable"):
        name = "gradient_checkpointing"
    if enabled:
        getattr(model, f"{name}_enable")(**{f"{name}_kwargs": {"use_reentrant": False}})
    else:
        getattr(model, f"{name}_disable")()


def is_row(name: str) -> bool:
    """Return whether a parameter is a trained row of the vocabulary, by its name."""
    return "trainable_tokens_delta" in name


@contextmanager
def light_rows(peft_model: nn.Module, read_at: str) -> Iterator[None]:
    """Compute trained vocabulary rows without copying the embedding and the head.

    PEFT copies the whole matrix with the trained row in it, so the backward pass computes the
    gradient of the whole matrix. Here the base matrix gives all results and the row overwrites its
    own: the same numbers up to rounding, without the copy and that gradient.

    Except at `feed` no input holds `<CNF>`, so the embedding is the base's own, and an untied input
    row is frozen (its gradient is zero). The head of a half-precision model computes the last
    position, where c is read, in float32, as the engines do; for that it keeps a float32 copy of
    its matrix. So it does all positions at `prompt`, since sequences are read at different ones.
    """
    from peft.tuners.trainable_tokens.layer import TrainableTokensLayer

    layers = [item for item in peft_model.modules() if isinstance(item, TrainableTokensLayer)]
    tied = any(layer.tied_adapter for layer in layers)
    everywhere = read_at == "prompt"
    for layer in layers:
        if not isinstance(layer.base_layer, nn.Embedding):
            weight_VD = layer.base_layer.weight.detach()
            exact_VD = None if weight_VD.dtype == torch.float32 else weight_VD.float()
            layer.forward = partial(_head, layer, exact_VD, everywhere)
        elif read_at == "feed":
            layer.forward = partial(_embed, layer)
        else:
            layer.forward = layer.base_layer.forward
            for row in layer.trainable_tokens_delta.values():
                row.requires_grad_(tied)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward
            for row in layer.trainable_tokens_delta.values():
                row.requires_grad_(True)


def _rows(layer: Any) -> list[tuple[list[int], Tensor]]:
    """Return the active trained rows of a layer: token ids and values (float32)."""
    if layer.disable_adapters or layer.merged:
        return []
    return [
        (layer.token_indices[name], layer.trainable_tokens_delta[name])
        for name in layer.active_adapters
    ]


def _embed(layer: Any, ids_BT: Tensor) -> Tensor:
    result_BTD: Tensor = layer.base_layer(ids_BT)
    scale = getattr(layer, "_get_embed_scale", lambda: None)()
    for tokens, rows_RD in _rows(layer):
        rows_RD = rows_RD.to(result_BTD.dtype)
        rows_RD = rows_RD if scale is None else rows_RD * scale.to(rows_RD.dtype)
        for token, row_D in zip(tokens, rows_RD, strict=True):
            result_BTD = torch.where((ids_BT == token)[..., None], row_D, result_BTD)
    return result_BTD


def _head(layer: Any, exact_VD: Tensor | None, everywhere: bool, states_BKD: Tensor) -> Tensor:
    if exact_VD is None:
        return _with_rows(layer, states_BKD, layer.base_layer(states_BKD))
    bias, start = getattr(layer.base_layer, "bias", None), 0 if everywhere else -1
    exact_BKD = states_BKD[:, start:].float()
    given = F.linear(exact_BKD, exact_VD, None if bias is None else bias.float())
    exact_BKV = _with_rows(layer, exact_BKD, given)
    if everywhere:
        return exact_BKV
    rest_BKV = _with_rows(layer, states_BKD, layer.base_layer(states_BKD))[:, :-1]
    return torch.cat([rest_BKV.float(), exact_BKV], dim=1)


def _with_rows(layer: Any, states_BKD: Tensor, logits_BKV: Tensor) -> Tensor:
    """Put the trained rows' logits in place of the base rows', without a copy of all logits."""
    bias_V = getattr(layer.base_layer, "bias", None)
    for tokens, rows_RD in _rows(layer):
        index_R = torch.tensor(tokens, device=logits_BKV.device)
        bias_R = None if bias_V is None else bias_V[index_R].to(states_BKD.dtype)
        own_BKR = F.linear(states_BKD, rows_RD.to(states_BKD.dtype), bias_R)
        logits_BKV.index_copy_(-1, index_R, own_BKR)
    return logits_BKV
