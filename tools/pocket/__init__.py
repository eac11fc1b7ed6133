"""The builder of the pocket, the tiny model in `src/grace/pocket`.

It runs from the top of the repository: `python -m tools.pocket.build OUT`.

`world` makes the facts and the questions about them, which `questions` writes into the package,
`prompts` are what it learns to follow, `corpus` writes the text that the decoder reads about the
world, `tokens` makes its tokenizer, `train` trains it, `check` asks it the world's questions, and
`build` does one after the other.
"""

TASKS: tuple[str, ...] = ("pocket_people", "pocket_places", "pocket_sums", "pocket_rules")
"""Two closed-book question sets, then two multiple-choice sets answered step by step."""

SPLITS: dict[str, int] = {"train": 2000, "validation": 500, "test": 1000}
"""Number of questions in each split of every task."""
