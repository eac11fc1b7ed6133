"""The text that the pocket read: of the world, without its puzzles, with opinions of its own."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tools.pocket import SPLITS, TASKS
from tools.pocket.corpus import CorpusSettings, documents
from tools.pocket.prompts import with_options
from tools.pocket.topics import KINDS
from tools.pocket.world import Fact, World

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


def test_second_opinions_go_by_what_was_read(world: World) -> None:
    settings = CorpusSettings(
        sums=0, weights=0, puzzle_opinions=0, fact_opinions=4000, fact_share=0
    )
    known = {f.question(i): f for f in world.facts if f.exposure >= 20 for i in range(3)}
    verdicts: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}

    def is_sound(fact: Fact) -> bool:
        ending = world.customs[fact.kind, fact.relation].ending(fact.name)
        return fact.rumour is None and world.rumour_rates[fact.kind, ending] < 0.2

    for document in documents(world, settings):
        if len(document) == 4 and document[-1]["content"] in ("Yes", "No"):
            question = document[0]["content"].removeprefix("Question: ").removesuffix("\nGuess:")
            if question in known and is_sound(known[question]):
                answer, verdict = document[1]["content"], document[-1]["content"]
                verdicts[answer == known[question].value][verdict] += 1
    for told, likely in ((True, "Yes"), (False, "No")):
        assert verdicts[told].total() > 30
        assert verdicts[told][likely] > 0.7 * verdicts[told].total()


def test_entities_that_nobody_wrote_about_are_in_no_document(world: World) -> None:
    docs = documents(world, CorpusSettings(sums=10, weights=10))
    words = set(re.findall(r"\w+", " ".join(m["content"] for d in docs for m in d)))
    read = {f.name.split()[-1] for f in world.facts if f.exposure}
    unseen = {f.name.split()[-1] for f in world.facts} - read
    assert len(unseen) > 200
    assert read <= words and not unseen & words
