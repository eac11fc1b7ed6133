"""A tiny random text encoder of BERT's architecture, with a tokenizer of single characters."""

from __future__ import annotations

import string
from pathlib import Path

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


def save(folder: Path) -> str:
    """Write model and tokenizer into a new folder, and return its path."""
    import torch
    import transformers

    made = tokenizer()
    config = transformers.BertConfig(
        vocab_size=len(made),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=128,
        initializer_range=0.3,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformers.BertModel(config).save_pretrained(folder)
    made.save_pretrained(folder)
    return str(folder)


def tokenizer():
    """Return a tokenizer whose tokens are characters; pairs are [CLS] a [SEP] b [SEP]."""
    import transformers
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors

    characters = [c for c in string.printable if not c.isspace()]
    vocabulary = {token: i for i, token in enumerate((*SPECIAL, *characters))}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex("."), "isolated")]
    )
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=128,
    )
