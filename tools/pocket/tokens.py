"""The pocket's tokenizer and chat template, and documents packed into rows of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from tools.pocket.corpus import Document
from tools.pocket.prompts import SHORT_PROMPT
from tools.pocket.world import World

PAD, BOS, SYSTEM, USER, ASSISTANT, END = SPECIAL_TOKENS = (
    "<|pad|>", "<|bos|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>",
)  # fmt: skip
CHAT_TEMPLATE = (
    "{{- bos_token -}}"
    "{%- for message in messages -%}"
    "{%- if message['role'] not in ['system', 'user', 'assistant'] -%}"
    "{{- raise_exception('roles are system, user and assistant, not ' + message['role']) -}}"
    "{%- endif -%}"
    "{{- '<|' + message['role'] + '|>' + message['content'] + '<|end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)
_PROMPT_WEIGHT = 0.03
_VERDICT_WEIGHT = 8.0
_LONGEST_VERDICT = len("0.85")


def train_tokenizer(
    world: World, documents: list[Document], vocab_size: int, context: int
) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE with single digits on the world's text.

    Names are shown to it once each, however often they were read, so that they stay several
    tokens long.
    """
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    core.decoder = decoders.ByteLevel()
    core.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(_tokenizer_text(world, documents), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=END,
        additional_special_tokens=[SYSTEM, USER, ASSISTANT],
        model_max_length=context,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _tokenizer_text(world: World, documents: list[Document]) -> Iterator[str]:
    named = {fact.name for fact in world.facts}
    yield from sorted(named)
    for pool in world.pools.values():
        yield from pool
    for fact in world.facts[::5]:
        yield SHORT_PROMPT.format(question=fact.question().replace(fact.name, ""))
    for document in documents[::20]:
        for message in document:
            if len(message["content"]) > 150 or message["content"].startswith("Explanation:"):
                yield message["content"]


def encode(
    tokenizer: PreTrainedTokenizerFast, documents: Iterable[Document]
) -> Iterator[tuple[list[int], list[float]]]:
    """Yield the token ids of each document and each token's weight in the loss.

    A document's last message weighs 1, a verdict in a word or a number more, and what leads
    to it a little, a judged answer included.
    """
    texts = [list(d) for d in documents]
    flat = [m["content"] for d in texts for m in d]
    ids = iter(tokenizer(flat, add_special_tokens=False)["input_ids"])
    bos, end = tokenizer.convert_tokens_to_ids([BOS, END])
    for document in texts:
        row, weights = [bos], [0.0]
        for message in document:
            body = next(ids)
            last = message is document[-1]
            weight = 1.0 if last else _PROMPT_WEIGHT
            if last and len(message["content"]) <= _LONGEST_VERDICT:
                weight = _VERDICT_WEIGHT
            if message["role"] != "text":
                row.append(tokenizer.convert_tokens_to_ids(f"<|{message['role']}|>"))
                weights.append(0.0)
            row += [*body, end]
            weights += [weight] * (len(body) + 1)
        yield row, weights


def pack(
    encoded: Iterable[tuple[list[int], list[float]]], length: int, pad: int
) -> tuple[np.ndarray, np.ndarray]:
    """Pack whole documents into rows, each into the first open row with room for it.

    Returns:
        Token ids of shape (rows, length), int64, and loss weights of the same shape, float32.
    """
    rows: list[tuple[list[int], list[float]]] = []
    open_rows: list[int] = []
    for ids, weights in encoded:
        ids, weights = ids[:length], weights[:length]
        home = next((r for r in open_rows if len(rows[r][0]) + len(ids) <= length), None)
        if home is None:
            rows.append(([], []))
            home = len(rows) - 1
            open_rows = [*open_rows[-31:], home]
        rows[home][0].extend(ids)
        rows[home][1].extend(weights)
    ids_RT = np.full((len(rows), length), pad, dtype=np.int64)
    weights_RT = np.zeros((len(rows), length), dtype=np.float32)
    for r, (ids, weights) in enumerate(rows):
        ids_RT[r, : len(ids)] = ids
        weights_RT[r, : len(weights)] = weights
    return ids_RT, weights_RT
