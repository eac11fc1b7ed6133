"""ROUGE-L, the overlap of two texts. Source: Lin 2004, https://aclanthology.org/W04-1013/."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Sequence

# Scripts without spaces between words: Thai to Burmese, kana, Han.
_UNSPACED = r"\u0e00-\u0edf\u1000-\u109f\u1780-\u17df\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_MARKS = r"\u0591-\u05c7\u064b-\u065f\u0900-\u0963\u0966-\u0dff"  # Hebrew, Arabic, Indic
_ROUGE_TOKEN = re.compile(
    rf"[a-z0-9]+|([{_UNSPACED}]+)|(?:[{_MARKS}]|[^\W_\u0000-\u036f\u1e00-\u1eff{_UNSPACED}])+"
)


def rouge_l(reference: str, response: str) -> float:
    """Return the ROUGE-L F1 in [0, 1], as Google's `rouge_score` does without stemming.

    Tokens are the runs of [a-z0-9] in the lower-cased text and, beyond that package, the words of
    other scripts; pairs of adjacent characters where these have no spaces (as in Lucene's analyser
    of Chinese, Japanese and Korean). Without a common token it is 0.
    """
    expected, actual = tokens(reference), tokens(response)
    common = _common_subsequence(expected, actual)
    if not common:
        return 0.0
    precision, recall = common / len(actual), common / len(expected)
    return 2 * precision * recall / (precision + recall)


@functools.lru_cache(maxsize=65536)
def tokens(text: str) -> tuple[str, ...]:
    """Return the tokens of a text as `rouge_l` compares them."""
    found: list[str] = []
    for match in _ROUGE_TOKEN.finditer(text.lower()):
        run = match[0]
        pairs = match[1] and len(run) > 1
        found += map("".join, itertools.pairwise(run)) if pairs else [run]
    return tuple(found)


def _common_subsequence(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the longest common subsequence's length, bit-parallel (Hyyrö 2004)."""
    places: dict[str, int] = {}
    for place, token in enumerate(first):
        places[token] = places.get(token, 0) | 1 << place
    everywhere = (1 << len(first)) - 1
    row = everywhere
    for token in second:
        matches = row & places.get(token, 0)
        row = ((row + matches) | (row - matches)) & everywhere
    return len(first) - row.bit_count()
