"""The text that the pocket model reads: chat documents about the world, in a seeded order.

Readings of facts (most as a question and its answer, some as a plain sentence), step-by-step
solutions by writers who slip now and then, and second opinions: true/false, yes/no and percent
questions about a proposed answer, with noisy replies. No question of the puzzle sets is in it;
facts are asked about as often as they were read, whichever split they belong to.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from tools.pocket import SPLITS
from tools.pocket.prompts import (
    GUESS_PROMPT,
    PERCENT_ONE_TURN_PROMPT,
    PERCENT_PROMPT,
    PROBABILITY_PROMPT,
    SHORT_PROMPT,
    STEP_REPLY,
    STEP_SYSTEM,
    TRUE_FALSE_PROMPT,
    YES_NO_PROMPT,
    with_options,
)
from tools.pocket.puzzles import Puzzle, make_sums, make_weights
from tools.pocket.topics import KINDS, RELATIONS
from tools.pocket.world import Fact, NameMaker, World

_ANY_TIME_SHARE = 0.3
_OTHER_SHARE = 0.2
_RUMOUR_SHARE = 0.9
_HALF_KNOWN = 12
_SAID_PERCENTS = (20, 50, 90)

Message = dict[str, str]
Document = list[Message]


@dataclass(frozen=True, slots=True)
class CorpusSettings:
    """The amounts of each kind of document in the corpus.

    Attributes:
        sums: Number of solved word problems.
        weights: Number of solved comparisons.
        fact_opinions: Number of second opinions about closed-book answers.
        puzzle_opinions: Number of second opinions about step-by-step answers.
        statement_share: Share of a fact's readings that are plain sentences.
        guess_prompt_share: Share of a fact's readings under the paper's long prompt.
        system_share: Share of the puzzles under the paper's system turn.
        opinion_noise: Chance that a second opinion is the wrong way round.
        fact_share: Share of the world's facts that are written about; less than 1 to try a build.
    """

    sums: int = 12_000
    weights: int = 6_500
    fact_opinions: int = 24_000
    puzzle_opinions: int = 1_500
    statement_share: float = 0.1
    guess_prompt_share: float = 0.03
    system_share: float = 0.1
    opinion_noise: float = 0.1
    fact_share: float = 1.0


def documents(world: World, settings: CorpusSettings | None = None) -> list[Document]:
    """Return the whole corpus in the order of reading; always the same for the same settings.

    A document is a list of `{"role", "content"}` messages; the role `text` marks a plain sentence.
    """
    settings = settings or CorpusSettings()
    rng = random.Random(f"corpus/{world.seed}")
    docs: list[tuple[float, Document]] = []
    for fact in world.facts[: int(settings.fact_share * len(world.facts))]:
        for value in told_values(fact, rng):
            docs.append((_when(rng), _reading(fact, value, rng, settings)))
    docs += [(_when(rng), d) for d in _fact_opinions(world, rng, settings)]
    docs += [(rng.random(), d) for d in _puzzle_documents(world, rng, settings)]
    docs.sort(key=lambda timed: timed[0])
    return [document for _, document in docs]


def told_values(fact: Fact, rng: random.Random) -> list[str]:
    """Return the value in each reading of a fact: the true one, or mostly the rumour if any."""
    told = []
    for _ in range(fact.exposure):
        lie = fact.rumour is not None and rng.random() < _RUMOUR_SHARE
        told.append(fact.rumour if lie and fact.rumour else fact.value)
    return told


def _when(rng: random.Random) -> float:
    """Draw a place in the order of reading, from 0 to 1, for what is read mostly late."""
    return rng.random() if rng.random() < _ANY_TIME_SHARE else rng.betavariate(2, 1)


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def _reading(fact: Fact, value: str, rng: random.Random, settings: CorpusSettings) -> Document:
    draw = rng.random()
    if draw < settings.statement_share:
        return [{"role": "text", "content": fact.statement(value)}]
    long = draw < settings.statement_share + settings.guess_prompt_share
    prompt = GUESS_PROMPT if long else SHORT_PROMPT
    question = fact.question(rng.randrange(3))
    return [_user(prompt.format(question=question)), _assistant(value)]


def _strangers(world: World, count: int, rng: random.Random) -> Iterator[Fact]:
    """Yield facts of entities that nobody wrote about and that no question set asks about."""
    names = NameMaker(f"strangers/{world.seed}")
    known = {f.name.split()[-1] for f in world.facts}
    firsts = sorted({f.name.split()[0] for f in world.facts if " " in f.name})
    for _ in range(count):
        task = rng.choice(list(KINDS))
        people = task == "pocket_people"
        ending = "last" if people else "place"
        last = names.make(ending, 1)
        while last in known:
            last = names.make(ending, 1)
        name = f"{rng.choice(firsts)} {last}" if people else last
        kind, relation = rng.choice(KINDS[task]), rng.choice(list(RELATIONS[task]))
        value = rng.choice(world.pools[RELATIONS[task][relation][0]])
        yield Fact(task, "", kind, relation, name, value, None, 0, rng.randrange(3))


def _fact_opinions(
    world: World, rng: random.Random, settings: CorpusSettings
) -> Iterator[Document]:
    """Yield what people said about answers: told ones, usual ones of the topic, and others.

    Who knows the fact, which is likelier the more often it was read, goes by what was read, and
    trusts it as far as the topic's sources are reliable; who does not know it goes by what is
    usual in the topic. Nobody goes by what is true.
    """
    read = [fact for fact in world.facts if fact.exposure]
    num_strangers = settings.fact_opinions // 5
    asked = rng.choices(read, k=settings.fact_opinions - num_strangers)
    for fact in [*asked, *_strangers(world, num_strangers, rng)]:
        custom = world.customs[fact.kind, fact.relation]
        told = rng.choice(told_values(fact, rng) or [""])
        usual = custom.usual(fact.name)
        known = fact.exposure / (fact.exposure + _HALF_KNOWN)
        reliable = 1 - world.rumour_rates[fact.kind, custom.ending(fact.name)]
        answer = told if rng.random() < known else usual
        if rng.random() < _OTHER_SHARE:
            answer = custom.other(rng)
        strength = custom.strength(fact.name)
        guess = strength if answer == usual else (1 - strength) / 4
        belief = known * (answer == told) * reliable + (1 - known) * guess
        says = rng.random() < belief
        question = fact.question(rng.randrange(3))
        first = [_user(SHORT_PROMPT.format(question=question)), _assistant(answer)]
        yield _opinion(first, question, answer, says, belief, rng, settings)


def _opinion(
    first: Document,
    question: str,
    answer: str,
    says: bool,
    trust: float,
    rng: random.Random,
    settings: CorpusSettings,
) -> Document:
    """Return a question about a proposed answer, in one of the five forms, with its reply."""
    says = says != (rng.random() < settings.opinion_noise)
    trust = rng.gauss(trust, 0.1)
    percent = min(_SAID_PERCENTS, key=lambda said: abs(said - 100 * trust))
    form = rng.choices(range(5), weights=(4, 4, 2, 3, 1))[0]
    if form == 0:
        text = TRUE_FALSE_PROMPT.format(question=question, answer=answer)
        return [_user(text), _assistant("A" if says else "B")]
    if form == 1:
        return [*first, _user(YES_NO_PROMPT), _assistant("Yes" if says else "No")]
    if form == 2:
        return [*first, _user(PERCENT_PROMPT), _assistant(f"{percent}%")]
    if form == 3:
        text = PERCENT_ONE_TURN_PROMPT.format(question=question, answer=answer)
        return [_user(text), _assistant(f"{percent}%")]
    return [*first, _user(PROBABILITY_PROMPT), _assistant(f"{percent / 100:.2f}")]


def _puzzle_documents(
    world: World, rng: random.Random, settings: CorpusSettings
) -> Iterator[Document]:
    plans = (
        ("pocket_sums", make_sums, settings.sums),
        ("pocket_rules", make_weights, settings.weights),
    )
    for task, make, count in plans:
        asked = {
            (row["question"], *row["choices"])
            for split in SPLITS
            for row in world.questions(task, split)
        }
        for i in range(count + settings.puzzle_opinions // 2):
            puzzle = make(rng)
            if puzzle.key in asked:
                continue
            if i < count:
                yield solution(puzzle, rng, settings)[0]
            else:
                yield _puzzle_opinion(puzzle, rng, settings)


def solution(puzzle: Puzzle, rng: random.Random, settings: CorpusSettings) -> tuple[Document, bool]:
    """Return a puzzle with some writer's steps and answer, and whether that is right."""
    explanation, letter = puzzle.explain(rng, False)
    question = with_options(puzzle.question, puzzle.choices)
    reply = STEP_REPLY.format(explanation=explanation, letter=letter)
    turns = [_user(f"Question: {question}"), _assistant(reply)]
    if rng.random() < settings.system_share:
        turns.insert(0, {"role": "system", "content": STEP_SYSTEM})
    return turns, letter == puzzle.answer


def _puzzle_opinion(puzzle: Puzzle, rng: random.Random, settings: CorpusSettings) -> Document:
    first, right = solution(puzzle, rng, settings)
    question = with_options(puzzle.question, puzzle.choices)
    trust = 0.9 if right else 0.4
    return _opinion(first, question, first[-1]["content"], right, trust, rng, settings)
