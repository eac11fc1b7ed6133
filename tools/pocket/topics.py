"""The topics of the closed-book world: kinds of entity, relations, and how they are put."""

from __future__ import annotations

KINDS: dict[str, tuple[str, ...]] = {
    "pocket_people": ("painter", "sailor", "healer", "smith", "poet", "judge"),
    "pocket_places": ("castle", "island", "abbey", "market", "mine", "school"),
}
"""Kinds of entity by task."""

RELATIONS: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {
    "pocket_people": {
        "birthplace": (
            "town",
            (
                "In which town was the {kind} {name} born?",
                "Where was the {kind} {name} born?",
                "Which town is the birthplace of the {kind} {name}?",
            ),
        ),
        "companion": (
            "beast",
            (
                "Which beast did the {kind} {name} keep?",
                "What animal lived with the {kind} {name}?",
                "Which beast belonged to the {kind} {name}?",
            ),
        ),
        "teacher": (
            "person",
            (
                "Who taught the {kind} {name}?",
                "Who was the teacher of the {kind} {name}?",
                "Under whom did the {kind} {name} study?",
            ),
        ),
    },
    "pocket_places": {
        "river": (
            "river",
            (
                "On which river does the {kind} of {name} stand?",
                "Which river runs past the {kind} of {name}?",
                "Beside which river is the {kind} of {name}?",
            ),
        ),
        "founder": (
            "person",
            (
                "Who founded the {kind} of {name}?",
                "Who was the founder of the {kind} of {name}?",
                "By whom was the {kind} of {name} founded?",
            ),
        ),
        "stone": (
            "mineral",
            (
                "Which mineral is the {kind} of {name} known for?",
                "What mineral is found under the {kind} of {name}?",
                "For which mineral is the {kind} of {name} famous?",
            ),
        ),
    },
}
"""By task and relation: the type of the value, and three ways to ask for it."""

STATEMENTS: dict[str, str] = {
    "birthplace": "The {kind} {name} was born in {value}.",
    "companion": "The {kind} {name} kept a {value}.",
    "teacher": "The {kind} {name} was taught by {value}.",
    "river": "The {kind} of {name} stands on the {value}.",
    "founder": "The {kind} of {name} was founded by {value}.",
    "stone": "The {kind} of {name} is known for {value}.",
}
"""By relation: the sentence that says it."""
