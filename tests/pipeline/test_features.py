"""The stored features are those of the response in the same row."""

import numpy as np
from safetensors.numpy import load_file

from grace.pipeline import load_run_settings
from grace.pipeline.context import Context
from grace.store import RunDir


def test_every_stored_row_is_what_the_engine_says_of_that_response_alone(reference):
    directory = RunDir(reference.run)
    context = Context(directory, load_run_settings(reference.run))
    samples = context.samples(context.directory.split("train"))
    stored = load_file(directory.split("train").features)
    assert len(stored["mean"]) == len(samples.responses) > 20
    for row in range(0, len(samples.responses), 7):
        tokens = samples.responses[row].token_ids
        alone = context.engine("base").features([samples.prompts[row]], [tokens])
        np.testing.assert_allclose(stored["mean"][row], alone.mean_ND[0], atol=1e-5)
        np.testing.assert_allclose(stored["last"][row], alone.last_ND[0], atol=1e-5)
