"""The vocabulary entries from which the confidence is read: how to add, initialise and read them.

There are three kinds of read-out:

- `linear`, ours: `<CNF>`, `<CNF-PROMPT>` and `<CNF-ANSWER>`, each compared with `<NOC>`. The three
  differences of logits are readings of the confidence, in log-odds, for the step that ends an
  answer, the end of its prompt and its tokens. All four are so improbable that they never change
  what a model writes; they end nothing.
- `token`, the paper's: the probability of `<CNF>` is the confidence, and `<CNF>` ends a response.
- `bins`, an ablation (GrACE-Disc): ten tokens `<B1>` to `<B10>`, one per interval of confidence.

The rest of the package sees the difference only through `Readout`.

Shapes: B rows, V vocabulary, D hidden size, E tokens that are read, Q readings of a step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from grace.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

CNF_TOKEN = "<CNF>"
NOC_TOKEN = "<NOC>"  # "not confident"
PLACES = ("end", "prompt", "answer")  # the readings of a linear read-out, by where they count
TIE = 1e-4  # relative difference of probabilities up to which two intervals are equally probable
Head = Literal["linear", "token", "bins"]
TOKENS: dict[Head, tuple[str, ...]] = {
    "linear": (CNF_TOKEN, "<CNF-PROMPT>", "<CNF-ANSWER>", NOC_TOKEN),
    "token": (CNF_TOKEN,),
    "bins": tuple(f"<B{number}>" for number in range(1, 11)),
}
HEADS: dict[int, Head] = {len(names): head for head, names in TOKENS.items()}


@dataclass(frozen=True, slots=True)
class Readout:
    """The tokens that are read for a confidence."""

    ids: tuple[int, ...]

    @property
    def head(self) -> Head:
        """Return the kind of read-out."""
        return HEADS[len(self.ids)]

    @property
    def cnf(self) -> int | None:
        """Return the id of `<CNF>`, or None for `bins`."""
        return None if self.head == "bins" else self.ids[0]

    @property
    def ends(self) -> tuple[int, ...]:
        """Return the ids that end a response; a linear read-out has none, nor is it ever drawn."""
        return () if self.head == "linear" else self.ids

    @property
    def num_readings(self) -> int:
        """Return the number of readings of a step."""
        return len(PLACES) if self.head == "linear" else 1

    def readings(self, logits_BE: Tensor, total_B: Tensor) -> Tensor:
        """Return the readings of a step, in log-odds (B, Q); `total_B` is the log-sum-exp."""
        if self.head == "linear":
            return logits_BE[..., :-1] - logits_BE[..., -1:]
        if self.head == "token":
            return log_odds(logits_BE - total_B[:, None])
        probs_BE = (logits_BE - total_B[:, None]).exp()
        top_B1 = probs_BE.amax(-1, keepdim=True) * (1 - TIE)
        middle_B1 = ((probs_BE >= top_B1).int().argmax(-1, keepdim=True) + 0.5) / len(self.ids)
        return middle_B1.logit()


@dataclass(frozen=True, slots=True)
class CnfTokens:
    """The tokens that `add_cnf` added, and whether they took spare rows."""

    readout: Readout
    spare_row: bool

    @property
    def id(self) -> int:
        """Return the id of the first token, `<CNF>` unless the read-out is `bins`."""
        return self.readout.ids[0]


def find_readout(tokenizer: Any) -> Readout | None:
    """Return the read-out whose tokens a tokenizer has, or None."""
    vocabulary = tokenizer.get_added_vocab()
    for names in TOKENS.values():
        if all(name in vocabulary for name in names):
            return Readout(tuple(vocabulary[name] for name in names))
    return None


def add_cnf(model: Any, tokenizer: Any, *, head: Head = "token", seed: int = 0) -> CnfTokens:
    """Add the tokens of a read-out to a tokenizer and its model; all other logits stay bit-equal.

    The tokens take spare rows of a padded vocabulary (more rows than tokens) if there are enough;
    otherwise the model grows. Tied embeddings stay tied. A second call changes nothing. Each new
    row, in the input embedding and in the output head, is a copy of that of EOS, so that c starts
    equal to p(EOS). In a head with a bias, the tokens have none (`clear_bias`).

    `seed` fills the rows between, in a model that has fewer rows than its tokenizer has tokens.
    """
    rows = count_rows(model)
    known = _known(tokenizer, head)
    if known is not None and max(known.ids) < rows:
        return CnfTokens(known, spare_row=rows > max(known.ids) + 1)
    if tokenizer.eos_token_id is None:
        raise ModelError(
            "the tokenizer has no EOS token, whose row <CNF> starts from; set eos_token in "
            "tokenizer_config.json"
        )
    readout = known or _add_tokens(tokenizer, TOKENS[head])
    last = max(readout.ids)
    if last >= rows:
        _grow(model, last + 1, seed)
    for matrix in _matrices(model):
        for token in readout.ids:
            _copy_row(matrix, tokenizer.eos_token_id, token)
    clear_bias(model, readout)
    return CnfTokens(readout, spare_row=last < rows)


def name_readout(tokenizer: Any, head: Head) -> tuple[Any, Readout]:
    """Return a copy of a tokenizer with the tokens of a head, and their ids."""
    import copy

    tokenizer = copy.deepcopy(tokenizer)
    return tokenizer, _known(tokenizer, head) or _add_tokens(tokenizer, TOKENS[head])


def count_rows(model: Any) -> int:
    """Return the number of rows of a model's vocabulary."""
    return int(model.get_input_embeddings().weight.shape[0])


def set_rows(model: Any, readout: Readout, rows_ED: Any) -> None:
    """Write one row per token of the read-out into the output head; tied embeddings stay tied."""
    import torch

    head = model.get_output_embeddings()
    with torch.no_grad():
        given_ED = torch.as_tensor(rows_ED, dtype=head.weight.dtype, device=head.weight.device)
        head.weight[list(readout.ids)] = given_ED
    clear_bias(model, readout)


def clear_bias(model: Any, readout: Readout) -> None:
    """Set the bias of the tokens of a read-out to 0: adapters hold their rows, and no bias."""
    import torch

    bias = getattr(model.get_output_embeddings(), "bias", None)
    if bias is not None:
        with torch.no_grad():
            bias[list(readout.ids)] = 0


class HeadShape(NamedTuple):
    """The properties of an output head on which new rows depend."""

    mean_D: Any  # mean of its rows: as a row, the mean of all logits, far below their log-sum-exp
    scale: float = 1.0  # of the product of a row and the last state
    capped: bool = False  # logits, so that new rows must stay near the others


def trainable_rows(model: Any, readout: Readout) -> list[int] | dict[str, list[int]]:
    """Return PEFT's `trainable_token_indices` for the rows of a read-out, input and output."""
    ids, matrices = sorted(readout.ids), _matrices(model)
    if len(matrices) == 1:
        return ids
    names = {id(module): name for name, module in model.named_modules()}
    return {names[id(module)].rpartition(".")[2]: ids for module in matrices}


def log_odds(log_c: Tensor) -> Tensor:
    """Return the log-odds of probabilities given as natural logarithms."""
    return log_c.clamp(max=-1e-7) - log1mexp(log_c)


def log1mexp(log_c: Tensor) -> Tensor:
    """Return log(1 - exp(x)) for x <= 0, accurate at both ends; x is kept below -1e-7."""
    import torch

    log_c = log_c.clamp(max=-1e-7)
    near_zero = log_c > -math.log(2)
    far = torch.where(near_zero, torch.full_like(log_c, -1.0), log_c)
    close = torch.where(near_zero, log_c, torch.full_like(log_c, -0.5))
    return torch.where(near_zero, torch.log(-torch.expm1(close)), torch.log1p(-torch.exp(far)))


def without(logits: Tensor, readout: Readout) -> Tensor:
    """Return logits with -inf at the tokens of the read-out (last axis), as if there were none."""
    import torch

    ids = torch.tensor(readout.ids, device=logits.device)
    return logits.index_fill(-1, ids, -torch.inf)


def _known(tokenizer: Any, head: Head) -> Readout | None:
    """Return the tokenizer's read-out; raises a ModelError if it is that of another head."""
    known = find_readout(tokenizer)
    if known is not None and known.head != head:
        raise ModelError(
            f"the tokenizer has {TOKENS[known.head][0]} already, so head {head!r} cannot be added; "
            "start from the base model"
        )
    return known


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
    """Return the modules with a row per token: the embedding, and the head unless it is tied."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    return [embedding] if head is None or head.weight is embedding.weight else [embedding, head]


def _copy_row(module: Any, source: int, token: int) -> None:
    import torch

    with torch.no_grad():
        module.weight[token] = module.weight[source]
