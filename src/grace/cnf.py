"""The `<CNF>` token: one more vocabulary entry whose probability is the confidence.

GrACE-Disc, an ablation, has ten tokens `<B1>` to `<B10>` in its place, one per interval of
confidence; `Readout` is all that the rest of the package knows of the difference.

Shapes: B rows, V vocabulary, D hidden size, E tokens that are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from grace.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

CNF_TOKEN = "<CNF>"
TIE = 1e-4  # relative difference of probabilities up to which two intervals are equally probable
Head = Literal["token", "bins"]
Init = Literal["mean", "eos", "scaled_eos"]
TOKENS: dict[Head, tuple[str, ...]] = {
    "token": (CNF_TOKEN,),
    "bins": tuple(f"<B{number}>" for number in range(1, 11)),
}


@dataclass(frozen=True, slots=True)
class Readout:
    """The tokens that are read for a confidence: `<CNF>` alone, or one per interval."""

    ids: tuple[int, ...]

    @property
    def head(self) -> Head:
        """Return the name of the kind, as in `train.head`."""
        return "token" if len(self.ids) == 1 else "bins"

    @property
    def cnf(self) -> int | None:
        """Return the id of `<CNF>`, None where intervals are read."""
        return self.ids[0] if self.head == "token" else None

    def confidence(self, probs_BE: Tensor) -> Tensor:
        """Return c, shape (B,), from the probabilities of the tokens.

        With `<CNF>` c is its probability; with intervals, the middle of the most probable one.
        Intervals that no example fell into keep equal rows; of those the lowest counts, whatever
        the rounding.
        """
        if self.head == "token":
            return probs_BE[:, 0]
        top_B1 = probs_BE.amax(-1, keepdim=True) * (1 - TIE)
        return ((probs_BE >= top_B1).int().argmax(-1) + 0.5) / len(self.ids)


@dataclass(frozen=True, slots=True)
class CnfTokens:
    """What `add_cnf` added: the tokens, whether spare rows were used, how the rows started."""

    readout: Readout
    spare_row: bool
    init: str

    @property
    def id(self) -> int:
        """Return the id of the first token; with `<CNF>` the only one."""
        return self.readout.ids[0]


def find_readout(tokenizer: Any) -> Readout | None:
    """Return the tokens that a tokenizer has for reading a confidence, None without any."""
    vocabulary = tokenizer.get_added_vocab()
    for names in TOKENS.values():
        if all(name in vocabulary for name in names):
            return Readout(tuple(vocabulary[name] for name in names))
    return None


def add_cnf(
    model: Any, tokenizer: Any, *, head: Head = "token", init: Init = "eos", seed: int = 0
) -> CnfTokens:
    """Add `<CNF>` to a tokenizer and its model, leaving all other logits bit-equal.

    A padded vocabulary (more rows than tokens) gives one of its spare rows; otherwise the model
    grows, never shrinks. Tied embeddings stay tied. Calling it again changes nothing. The row, in
    the input embedding and in the output head, each from its own matrix, starts as

    - `eos`: a copy of the EOS row, so that c starts equal to p(EOS);
    - `scaled_eos`: the EOS row rescaled to the mean length of the vocabulary's rows, for models
      whose EOS row is unusually long or was never trained;
    - `mean`: the mean of the vocabulary's rows; c starts below 1 / V.

    With the head `bins` all of this happens to the ten tokens `<B1>` to `<B10>` instead. `seed` is
    for the filler rows below the new ones of a model with fewer rows than tokens.

    Raises:
        ModelError: an EOS row is asked for and the tokenizer has no EOS token, or the tokenizer
            has the tokens of the other head.
    """
    rows = model.get_input_embeddings().weight.shape[0]
    known = find_readout(tokenizer)
    if known is not None and known.head != head:
        raise ModelError(
            f"the tokenizer has {TOKENS[known.head][0]} already, so head {head!r} cannot be added; "
            "start from the base model"
        )
    if known is not None and max(known.ids) < rows:
        return CnfTokens(known, spare_row=rows > max(known.ids) + 1, init=init)
    if init != "mean" and tokenizer.eos_token_id is None:
        raise ModelError(
            f"the tokenizer has no EOS token; set eos_token, or init 'mean', not {init!r}"
        )
    num_tokens = len(tokenizer) if known is None else min(known.ids)
    readout = known or _add_tokens(tokenizer, TOKENS[head])
    last = max(readout.ids)
    if last >= rows:
        _grow(model, last + 1, seed)
    for matrix in _matrices(model):
        for token in readout.ids:
            _set_row(matrix, token, tokenizer.eos_token_id, min(num_tokens, rows), init)
    return CnfTokens(readout, spare_row=last < rows, init=init)


def trainable_rows(model: Any, readout: Readout) -> list[int] | dict[str, list[int]]:
    """Return PEFT's `trainable_token_indices` that trains the rows read, input and output.

    Tied embeddings take a plain list; untied ones a dict with the names of both modules.
    """
    ids = sorted(readout.ids)
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if head is None or head.weight is embedding.weight:
        return ids
    names = {id(module): name for name, module in model.named_modules()}
    return {names[id(module)].rpartition(".")[2]: ids for module in (embedding, head)}


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


def without(logits: Tensor, readout: Readout) -> Tensor:
    """Return the logits of a model that lacks the tokens: their entries, last axis, are -inf."""
    ids = logits.new_tensor(readout.ids).long()
    return logits.index_fill(-1, ids, -float("inf"))


def _add_tokens(tokenizer: Any, names: Sequence[str]) -> Readout:
    from tokenizers import AddedToken

    tokenizer.add_tokens(
        [AddedToken(name, special=True, normalized=False) for name in names], special_tokens=True
    )
    return Readout(tuple(tokenizer.convert_tokens_to_ids(list(names))))


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
