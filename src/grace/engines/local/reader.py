"""What a model in this process says of given contexts and responses.

Shapes: N sequences, B of them in a batch, C columns to read, K kept positions, V vocabulary, D
hidden size, E tokens that are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from grace.cnf import Readout, end_log_prob, find_readout, unread_end, without
from grace.engines import Features, StepStates
from grace.engines.checks import check_contexts
from grace.engines.local.batching import group, run_batches
from grace.engines.local.forward import Forward, Unread, begin
from grace.engines.local.loading import eos_ids
from grace.errors import ModelError
from grace.evidence import Evidence, confidence, traced

Ids = Sequence[int]
ROWS_IN_FLIGHT = {"cpu": 64, "cuda": 128}
TOKENS_IN_FLIGHT = {"cpu": 16_384, "cuda": 65_536}
LOGITS_IN_FLIGHT = 2**27  # entries of a float32 logits tensor: 512 MB


class LocalReader:
    """Reads probabilities, confidences and states from a model that sits in this process.

    Attributes: `model`, `tokenizer`, `device`, `read_at`, `readout` (the tokens that are read for
    c, or None), `cnf` (the id of `<CNF>`, or None), `end_ids` (every id that ends a response,
    those of the readout last) and `limit` (the context in tokens, None where there is no limit).

    Args:
        model: a causal language model; it is put into evaluation mode.
        tokenizer: its tokenizer; `<CNF>` is used when the tokenizer has it.
        read_at: where c is read: `predict` at the end step, `feed` at `<CNF>`'s own position (one
            more forward per response), `prompt` at the first step, before the response, which is
            then drawn as if there were no `<CNF>`. The trace holds c at every step in any case.
        evidence: how the response's own probabilities shift the logit of `<CNF>`, if at all.
        batch_size: rows in flight; None chooses by device.
        stops: ids that end a response besides those that model and tokenizer name.

    Raises:
        ModelError: neither tokenizer nor model names an end token, or c cannot be read so.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        read_at: str = "predict",
        *,
        evidence: Evidence | None = None,
        batch_size: int | None = None,
        stops: Sequence[int] = (),
    ) -> None:
        self.readout = find_readout(tokenizer)
        self.cnf = self.readout.cnf if self.readout else None
        if read_at not in ("predict", "feed", "prompt"):
            raise ModelError(f"read_at is {read_at!r}; use predict, feed or prompt")
        if self.readout and self.cnf is None and (read_at == "feed" or evidence):
            raise ModelError("bin tokens are read without evidence, and at predict or prompt")
        if read_at == "prompt" and evidence:
            raise ModelError("evidence needs a response, so c cannot be read at the prompt with it")
        config = model.config.get_text_config()
        self.limit: int | None = getattr(config, "max_position_embeddings", None)
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.read_at = read_at
        self.evidence = evidence
        read = self.readout.ids if self.readout else ()
        self.silent = self.readout is not None and (read_at == "prompt" or not self.readout.ends)
        ends = self.readout.ends if self.readout else ()
        self.end_ids = eos_ids(model, tokenizer, read, stops) + ends
        self.device: torch.device = model.get_input_embeddings().weight.device
        self.batch_size = batch_size or ROWS_IN_FLIGHT.get(self.device.type, 64)
        self._forward = Forward(model)

    def next_token_probs(self, contexts: Sequence[Ids], tokens: Ids) -> np.ndarray:
        """Return p(token | context), shape (N contexts, tokens), temperature 1, float32."""
        self._check(contexts)
        columns = list(tokens)

        def run(batch: list[int]) -> list[np.ndarray]:
            logits_BV = self._last_logits([contexts[i] for i in batch], keep=1)[:, -1]
            total_B1 = logits_BV.logsumexp(-1, keepdim=True)
            return list((logits_BV[:, columns] - total_B1).exp().cpu().numpy())

        rows = run_batches(self._group(contexts), run, contexts)
        return np.array(rows, dtype=np.float32).reshape(len(contexts), len(columns))

    def confidences(self, prompts: Sequence[Ids], responses: Sequence[Ids]) -> list[float]:
        """Return c of given responses (token ids without the end token), by one forward each.

        Raises:
            ModelError: the tokenizer has no `<CNF>`.
        """
        if self.readout is None:
            raise ModelError("the tokenizer has no <CNF>; load a trained adapter or call add_cnf")
        if self.evidence is not None:
            read = self._read(prompts, responses)
            return [confidence(one.readings, one.logprobs, one.end, self.evidence) for one in read]
        contexts: Sequence[Ids] = prompts
        if self.read_at != "prompt":
            fed = self._fed()
            contexts = [[*p, *r, *fed] for p, r in zip(prompts, responses, strict=True)]
        probs_NE = torch.from_numpy(self.next_token_probs(contexts, self.readout.ids))
        reading_N = self.readout.reading(probs_NE.log(), torch.zeros(len(probs_NE)))
        return list(reading_N.sigmoid().tolist())

    def traces(self, prompts: Sequence[Ids], responses: Sequence[Ids]) -> list[list[float]]:
        """Return c at every step of given responses, that of the end last, by one forward each.

        Raises:
            ModelError: the model knows c at the end only.
        """
        read = self._read(prompts, responses)
        return [traced(one.readings, one.logprobs, one.end, self.evidence) for one in read]

    def logprobs(
        self, prompts: Sequence[Ids], responses: Sequence[Ids]
    ) -> list[tuple[list[float], float]]:
        """Return each response's token log-probabilities and the log-probability of its end."""
        return [(one.logprobs, one.end_logprob) for one in self._read(prompts, responses)]

    def features(self, prompts: Sequence[Ids], responses: Sequence[Ids]) -> Features:
        """Return the pooled hidden states of given responses."""
        return self.states(prompts, responses)[0]

    def states(
        self,
        prompts: Sequence[Ids],
        responses: Sequence[Ids],
        steps_NB: Sequence[Sequence[int]] = (),
    ) -> tuple[Features, StepStates]:
        """Return the pooled hidden states of given responses, and those at B steps of each.

        A step is the number of response tokens before it; without any B is 0.
        """
        contexts = [[*p, *r] for p, r in zip(prompts, responses, strict=True)]
        self._check(contexts)

        def run(batch: list[int]) -> list[np.ndarray]:
            counts = [len(responses[i]) for i in batch]
            given = begin(self._forward, [contexts[i] for i in batch], self.device, max(counts) + 1)
            return pool(self._forward, given, counts, [steps_NB[i] for i in batch if steps_NB])

        pooled = run_batches(self._group(contexts), run, contexts)
        size = self.model.config.get_text_config().hidden_size
        width = len(steps_NB[0]) if steps_NB else 0
        states_NSD = np.array(pooled, dtype=np.float32).reshape(len(contexts), 3 + 2 * width, size)
        features = Features(states_NSD[:, 0], states_NSD[:, 1], states_NSD[:, 2])
        return features, StepStates(states_NSD[:, 3 : 3 + width], states_NSD[:, 3 + width :])

    @torch.inference_mode()
    def _last_logits(self, contexts: Sequence[Ids], keep: int) -> torch.Tensor:
        """Return float32 logits at the last `keep` positions, shape (B, keep, V)."""
        given = begin(self._forward, contexts, self.device, keep)
        columns = (given.ids_BC, given.mask_BL, given.positions_BC)
        cached = given.cache is not None
        return self._forward(*columns, keep=keep, cache=given.cache, use_cache=cached)[0]

    def _fed(self) -> list[int]:
        """Return what is fed after a response to read c."""
        return [self.cnf] if self.read_at == "feed" and self.cnf is not None else []

    def _read(self, prompts: Sequence[Ids], responses: Sequence[Ids]) -> list[Reading]:
        """Return the probabilities of given responses, of their ends, and what is read of c."""
        fed = self._fed()
        contexts = [[*p, *r, *fed] for p, r in zip(prompts, responses, strict=True)]
        self._check(contexts)
        longest = max(map(len, responses), default=0)

        def run(batch: list[int]) -> list[Reading]:
            keep = max(len(responses[i]) for i in batch) + 1 + len(fed)
            logits_BKV = self._last_logits([contexts[i] for i in batch], keep=keep)
            how = (self.end_ids, self.readout)
            return [
                score(logits_KV[keep - len(r) - 1 - len(fed) :], r, *how, silent=self.silent)
                for r, logits_KV in zip([responses[i] for i in batch], logits_BKV, strict=True)
            ]

        return run_batches(self._group(contexts, keep=longest + 1 + len(fed)), run, contexts)

    def _group(
        self, contexts: Sequence[Ids], num_samples: int = 1, keep: int = 1, new_tokens: int = 0
    ) -> list[list[int]]:
        """Return batches of indices, longest first, within the budgets of this device."""
        vocabulary = self.model.get_input_embeddings().weight.shape[0]
        return group(
            contexts,
            new_tokens=new_tokens,
            max_rows=min(self.batch_size, max(1, LOGITS_IN_FLIGHT // (keep * vocabulary))),
            max_tokens=TOKENS_IN_FLIGHT.get(self.device.type, TOKENS_IN_FLIGHT["cpu"]),
            num_samples=num_samples,
        )

    def _check(self, contexts: Sequence[Ids], new: int = 0, keys: Sequence[str] = ()) -> None:
        """Refuse what the model cannot hold; `keys` are the names of the prompts, if any."""
        check_contexts(contexts, self.limit, new, keys)


class Reading(NamedTuple):
    """One given response: log p of its tokens and of its end, and what each step reads of c.

    `end` is log p of its end in a model without the tokens that are read.
    """

    logprobs: list[float]
    end_logprob: float
    end: float
    readings: list[float]


@torch.inference_mode()
def score(
    logits_KV: Tensor,
    response: Sequence[int],
    end_ids: Sequence[int],
    readout: Readout | None,
    *,
    silent: bool,
) -> Reading:
    """Read one response from the logits of its steps, its end, and `<CNF>` if that was fed.

    With `silent` the probabilities are those of a model without the tokens that are read.
    """
    num_tokens, readings = len(response), list[float]()
    last_V = logits_KV[num_tokens]
    if readout is None:
        end = float(end_log_prob(last_V, end_ids))
    else:
        read_KE = logits_KV[:, list(readout.ids)]
        readings = readout.reading(read_KE, logits_KV.logsumexp(-1)).tolist()
        end = float(unread_end(last_V, end_ids, readout))
        if silent:
            logits_KV = without(logits_KV, readout)
    end_logprob = float(end_log_prob(logits_KV[num_tokens], end_ids))
    tokens_K = torch.tensor(response, dtype=torch.long, device=logits_KV.device)
    steps_KV = logits_KV[:num_tokens]
    chosen_K = steps_KV.gather(1, tokens_K[:, None])[:, 0] - steps_KV.logsumexp(-1)
    return Reading(chosen_K.tolist(), end_logprob, end, readings)


@torch.inference_mode()
def pool(
    forward: Forward, given: Unread, counts: Sequence[int], places: Sequence[Sequence[int]] = ()
) -> list[np.ndarray]:
    """Return states of each sequence, (3, D), or with B places of each (3 + 2 B, D).

    They are the mean over the last `count` positions, the last one, and the one before those; then
    those at the places, counted from that one, and the means from it to each of them.
    """
    states_BCD = forward.states(given.ids_BC, given.mask_BL, given.positions_BC, given.cache)
    pooled = []
    for row, (states_CD, n) in enumerate(zip(states_BCD.float(), counts, strict=True)):
        kept = [states_CD[-max(n, 1) :].mean(0), states_CD[-1], states_CD[-n - 1]]
        steps_KD = states_CD[len(states_CD) - n - 1 :]
        at = places[row] if places else ()
        kept += [steps_KD[k] for k in at] + [steps_KD[: k + 1].mean(0) for k in at]
        pooled.append(torch.stack(kept).cpu().numpy())
    return pooled
