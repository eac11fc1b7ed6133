"""The reference engine: any causal language model that transformers can run.

Shapes: B sequences in a batch, K kept positions, V vocabulary, D hidden size, N responses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from grace.cnf import find_readout
from grace.engines import Features, Sampling
from grace.engines.batching import attempt, group, out_of_memory, run_batches
from grace.engines.checks import check_contexts
from grace.engines.decoding import Ends, decode
from grace.engines.drawing import Drawing
from grace.engines.draws import Part
from grace.engines.forward import Forward
from grace.engines.loading import eos_ids, load
from grace.engines.prefix import begin
from grace.engines.rows import Rows, generations
from grace.engines.scoring import Reading, pool, score
from grace.engines.stops import stop_ids
from grace.engines.streaming import Stream
from grace.errors import ModelError
from grace.evidence import Evidence, confidence
from grace.records import Generation

Ids = Sequence[int]

ROWS_IN_FLIGHT = {"cpu": 64, "cuda": 128}
TOKENS_IN_FLIGHT = {"cpu": 16_384, "cuda": 65_536}
LOGITS_IN_FLIGHT = 2**27  # entries of a float32 logits tensor: 512 MB


class TransformersEngine:
    """Samples from, and reads, a model that sits in this process.

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

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        batch_size: int | None = None,
        stop: Sequence[str] = (),
        **options: Any,
    ) -> TransformersEngine:
        """Load a model directory or Hub id; `options` are those of `grace.engines.loading.load`.

        `stop` are texts that end a response, besides those that the model was trained with.
        """
        loaded = load(path, **options)
        return cls(
            loaded.model,
            loaded.tokenizer,
            loaded.read_at,
            evidence=loaded.evidence,
            batch_size=batch_size,
            stops=(*loaded.stops, *stop_ids(loaded.tokenizer, stop)),
        )

    def plan(
        self, prompts: Sequence[Ids], num_samples: int = 1, max_new_tokens: int = 64
    ) -> list[list[int]]:
        """Return batches of prompt indices: longest first, within the row and token budgets.

        The plan depends on the arguments alone; a batch is a unit of work whose result does not
        depend on the batches before it.
        """
        return self._group(prompts, num_samples, new_tokens=max_new_tokens)

    def generate(
        self,
        prompts: Sequence[Ids],
        sampling: Sampling,
        *,
        keys: Sequence[str] | None = None,
    ) -> Iterator[tuple[int, list[Generation]]]:
        """Yield (prompt index, its samples) batch by batch, in the order of `plan`.

        `keys` name the prompts for the random numbers; by default a prompt's position does.

        Raises:
            DataError: an empty prompt.
            ModelError: a prompt and its response could exceed the model's context.
        """
        keys = keys if keys is not None else [str(i) for i in range(len(prompts))]
        self._check(prompts, sampling.max_new_tokens, keys)
        for batch in self.plan(prompts, sampling.num_samples, sampling.max_new_tokens):
            batch_keys = [keys[i] for i in batch]
            results = self.generate_batch([prompts[i] for i in batch], sampling, keys=batch_keys)
            yield from zip(batch, results, strict=True)

    def generate_batch(
        self, prompts: Sequence[Ids], sampling: Sampling, *, keys: Sequence[str]
    ) -> list[list[Generation]]:
        """Return the samples of each prompt of one unit of `plan`."""
        self._check(prompts, sampling.max_new_tokens, keys)
        if len(prompts) * sampling.num_samples <= self.batch_size:
            result = attempt(lambda: self._decode(prompts, sampling, keys))
            if result is not None:
                return result
        elif len(prompts) == 1 and self.batch_size < sampling.num_samples:
            return self._split_samples(prompts, sampling, keys, self.batch_size)
        if len(prompts) > 1:
            half = len(prompts) // 2
            first = self.generate_batch(prompts[:half], sampling, keys=keys[:half])
            return first + self.generate_batch(prompts[half:], sampling, keys=keys[half:])
        if sampling.num_samples > 1:
            return self._split_samples(prompts, sampling, keys, sampling.num_samples // 2)
        raise out_of_memory(len(prompts[0]) + sampling.max_new_tokens)

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

    def logprobs(
        self, prompts: Sequence[Ids], responses: Sequence[Ids]
    ) -> list[tuple[list[float], float]]:
        """Return each response's token log-probabilities and the log-probability of its end."""
        return [(one.logprobs, one.end_logprob) for one in self._read(prompts, responses)]

    def features(self, prompts: Sequence[Ids], responses: Sequence[Ids]) -> Features:
        """Return the pooled hidden states of given responses."""
        contexts = [[*p, *r] for p, r in zip(prompts, responses, strict=True)]
        self._check(contexts)

        def run(batch: list[int]) -> list[np.ndarray]:
            counts = [len(responses[i]) for i in batch]
            given = begin(self._forward, [contexts[i] for i in batch], self.device, max(counts) + 1)
            return pool(self._forward, given, counts)

        pooled = run_batches(self._group(contexts), run, contexts)
        size = self.model.config.get_text_config().hidden_size
        states_N3D = np.array(pooled, dtype=np.float32).reshape(len(contexts), 3, size)
        return Features(states_N3D[:, 0], states_N3D[:, 1], states_N3D[:, 2])

    def stream(self, prompt: Ids, sampling: Sampling, key: str = "0") -> Stream:
        """Return what starts samples of one prompt and yields each as it finishes (see `Stream`).

        Raises:
            DataError: an empty prompt.
            ModelError: the prompt and a response could exceed the model's context.
        """
        self._check([prompt], sampling.max_new_tokens, [key])
        return Stream(self._forward, prompt, sampling, key, self._ends(), self._generations)

    def draw(self, parts: Sequence[Part]) -> Drawing:
        """Return the samples of a batch to iterate over token by token (see `Drawing`).

        Raises:
            DataError: an empty prompt.
            ModelError: a prompt and its response could exceed the model's context.
        """
        for part in parts:
            self._check(part.prompts, part.sampling.max_new_tokens)
        return Drawing(self._forward, parts, self._ends(), self._generations)

    def _decode(
        self, prompts: Sequence[Ids], sampling: Sampling, keys: Sequence[str]
    ) -> list[list[Generation]]:
        rows = decode(self._forward, prompts, keys, sampling, self._ends(), self.device)
        made, n = self._generations(rows), sampling.num_samples
        return [made[i : i + n] for i in range(0, len(made), n)]

    def _ends(self) -> Ends:
        """Return what ends a response now, and how c is read."""
        read = self.readout.ids if self.readout else ()
        unread = [token for token in self.end_ids if token not in read]
        ids_E, unread_E = (torch.tensor(ids, device=self.device) for ids in (self.end_ids, unread))
        fed = self.cnf if self.read_at == "feed" else None
        return Ends(ids_E, unread_E, self.end_ids[0], self.readout, fed, self.silent)

    def _generations(self, rows: Rows) -> list[Generation]:
        reads = self.readout is not None
        return generations(rows, self.tokenizer, self.read_at, self.evidence, reads=reads)

    def _split_samples(
        self, prompts: Sequence[Ids], sampling: Sampling, keys: Sequence[str], first: int
    ) -> list[list[Generation]]:
        """Sample the first `first` samples, then the rest."""
        head = replace(sampling, num_samples=first)
        tail = replace(
            sampling,
            num_samples=sampling.num_samples - first,
            first_sample=sampling.first_sample + first,
        )
        parts = [self.generate_batch(prompts, part, keys=keys) for part in (head, tail)]
        return [before + after for before, after in zip(*parts, strict=True)]

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
