"""The text that the pocket read: of the world, without its puzzles, with opinions of its own."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tools.pocket import SPLITS, TASKS
from tools.pocket.corpus import CorpusSettings, documents
from tools.pocket.prompts import with_options
from tools.pocket.topics import KINDS
from tools.pocket.world import World

CHOICE = tuple(task for task in TASKS if task not in KINDS)


@pytest.fixture(scope="module")
def world() -> World:
    return World.build(0)


def test_the_corpus_asks_none_of_the_puzzles_of_the_question_sets(world: World) -> None:
    docs = documents(world, CorpusSettings(sums=4000, weights=4000, fact_opinions=10, fact_share=0))
    read = {m["content"] for d in docs for m in d}
    for task in CHOICE:
        for split in SPLITS:
            rows = world.questions(task, split)
            asked = {f"Question: {with_options(r['question'], r['choices'])}" for r in rows}
            assert not asked & read


def test_the_corpus_holds_true_false_and_percent_questions(world: World) -> None:
    settings = CorpusSettings(sums=50, weights=50, fact_opinions=2000, fact_share=0.01)
    said = Counter(d[-1]["content"] for d in documents(world, settings))
    assert min(said["A"], said["B"], said["Yes"], said["No"]) > 50
    assert sum(n for text, n in said.items() if re.fullmatch(r"\d+%", text)) > 300


def test_entities_that_nobody_wrote_about_are_in_no_document(world: World) -> None:
    docs = documents(world, CorpusSettings(sums=10, weights=10))
    words = set(re.findall(r"\w+", " ".join(m["content"] for d in docs for m in d)))
    read = {f.name.split()[-1] for f in world.facts if f.exposure}
    unseen = {f.name.split()[-1] for f in world.facts} - read
    assert len(unseen) > 200
    assert read <= words and not unseen & words
