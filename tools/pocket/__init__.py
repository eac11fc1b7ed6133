"""The builder of the pocket, the tiny model in `src/grace/pocket`.

It runs from the top of the repository: `python -m tools.pocket.build OUT`.

`corpus` writes the text that the decoder reads about the world, `tokens` makes its tokenizer,
`train` trains it, `check` asks it the world's questions, and `build` does one after the other.
"""
