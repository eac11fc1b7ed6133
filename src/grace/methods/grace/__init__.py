"""Our method, `method=grace`.

In the order in which to read it:

    fit.py       the convex fit of the rows and the token probabilities, and the choice of a layer
    prompts.py   how far a prompt is from those of the fit
    fields.py    one fit for whole answers and for the fields of structured ones
    trace.py     the same for c before the end of an answer
    rounding.py  rows as bfloat16 numbers, whose errors cancel

`grace.probe` has the regressions below it. `grace.pipeline.stages.fit` hands a run's answers to
this folder, `grace.config.GraceSettings` has its settings.
"""
