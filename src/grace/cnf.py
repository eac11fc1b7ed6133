"""The `<CNF>` token: one more vocabulary entry whose probability is the confidence.

Shapes: B rows, V vocabulary, D hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from grace.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

CNF_TOKEN = "<CNF>"
Init = Literal["mean", "eos", "scaled_eos"]


@dataclass(frozen=True, slots=True)
class CnfToken:
    """Where `<CNF>` lives: its id, whether a spare row was used, and how the row started."""

    id: int
    spare_row: bool
    init: str


def cnf_id(tokenizer: Any) -> int | None:
    """Return the id of `<CNF>`, or None when the tokenizer does not have it."""
    found: int | None = tokenizer.get_added_vocab().get(CNF_TOKEN)
    return found


def add_cnf(model: Any, tokenizer: Any, *, init: Init = "eos", seed: int = 0) -> CnfToken:
    """Add `<CNF>` to a tokenizer and its model, leaving all other logits bit-equal.

    A padded vocabulary (more rows than tokens) gives one of its spare rows; otherwise the model
    grows, never shrinks. Tied embeddings stay tied. Calling it again changes nothing. The row, in
    the input embedding and in the output head, each from its own matrix, starts as

    - `eos`: a copy of the EOS row, so that c starts equal to p(EOS);
    - `scaled_eos`: the EOS row rescaled to the mean length of the vocabulary's rows, for models
      whose EOS row is unusually long or was never trained;
    - `mean`: the mean of the vocabulary's rows; c starts below 1 / V.

    `seed` is for the filler rows below `<CNF>` of a model with fewer rows than tokens.

    Raises:
        ModelError: an EOS row is asked for and the tokenizer has no EOS token.
    """
    known = cnf_id(tokenizer)
    rows = model.get_input_embeddings().weight.shape[0]
    if known is not None and known < rows:
        return CnfToken(known, spare_row=rows > known + 1, init=init)
    if init != "mean" and tokenizer.eos_token_id is None:
        raise ModelError(
            f"the tokenizer has no EOS token; set eos_token, or init 'mean', not {init!r}"
        )
    num_tokens = len(tokenizer) if known is None else known
    token = _add_token(tokenizer)
    if token >= rows:
        _grow(model, token + 1, seed)
    for matrix in _matrices(model):
        _set_row(matrix, token, tokenizer.eos_token_id, min(num_tokens, rows), init)
    return CnfToken(token, spare_row=token < rows, init=init)


def trainable_rows(model: Any, token: int) -> list[int] | dict[str, list[int]]:
    """Return PEFT's `trainable_token_indices` that trains the row of `<CNF>`, input and output.

    Tied embeddings take a plain list; untied ones a dict with the names of both modules.
    """
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if head is None or head.weight is embedding.weight:
        return [token]
    names = {id(module): name for name, module in model.named_modules()}
    return {names[id(module)].rpartition(".")[2]: [token] for module in (embedding, head)}


def log_confidence(logits_BV: Tensor, token: int) -> Tensor:
    """Return log c, shape (B,): float32 log-softmax over the full vocabulary, entry `<CNF>`.

    Source: arXiv 2509.09438 eq. 5.
    """
    return end_log_prob(logits_BV, [token])


def end_log_prob(logits_BV: Tensor, end_ids: Sequence[int]) -> Tensor:
    """Return the log of the summed probability of some tokens, shape (B,), in float32.

    With the EOS ids and `<CNF>` it is the log-probability that the response ends here.
    """
    logits_BV = logits_BV.float()
    return logits_BV[..., list(end_ids)].logsumexp(-1) - logits_BV.logsumexp(-1)


def _add_token(tokenizer: Any) -> int:
    from tokenizers import AddedToken

    tokenizer.add_tokens(
        [AddedToken(CNF_TOKEN, special=True, normalized=False)], special_tokens=True
    )
    token: int = tokenizer.convert_tokens_to_ids(CNF_TOKEN)
    return token


def _grow(model: Any, num_rows: int, seed: int) -> None:
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model.resize_token_embeddings(num_rows, mean_resizing=False)


def _matrices(model: Any) -> list[Any]:
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    return [embedding] if head is None or head.weight is embedding.weight else [embedding, head]


def _set_row(module: Any, token: int, eos: int | None, num_tokens: int, init: Init) -> None:
    import torch

    with torch.no_grad():
        for parameter in (module.weight, getattr(module, "bias", None)):
            if parameter is not None:
                parameter[token] = _initial(parameter.data[:num_tokens], eos, init)


def _initial(rows_VD: Tensor, eos: int | None, init: Init) -> Tensor:
    if init == "mean" or eos is None:
        return rows_VD.float().mean(0).to(rows_VD.dtype)
    if init == "eos" or rows_VD.dim() == 1:
        return rows_VD[eos]
    lengths_V = rows_VD.float().norm(dim=-1)
    scale = lengths_V.mean() / lengths_V[eos].clamp_min(1e-12)
    row_D: Tensor = rows_VD[eos].float() * scale
    return row_D.to(rows_VD.dtype)
