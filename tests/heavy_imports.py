"""Imported once by the server whose forks do the runs."""

import contextlib
import gc
import importlib
import os

from tqdm.std import TqdmDefaultWriteLock

import grace.report.figures
import made_up_figures

MODULES = (
    "PIL.JpegImagePlugin",
    "PIL.features",
    "grace.cli",
    "grace.engines.transformers",
    "grace.estimators.likelihood",
    "grace.pipeline",
    "grace.probe",
    "scipy.linalg",
    "grace.report.page",
    "grace.tasks.jsonl",
    "grace.methods.paper.trainer",
    "peft.utils.transformers_weight_conversion",
    "safetensors.numpy",
    "safetensors.torch",
    "sklearn.linear_model",
    "transformers.models.llama.modeling_llama",
)

for name in MODULES:
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
grace.report.figures.draw = made_up_figures.draw
os.fsync = lambda _: None
grace.report.page._template()  # what is compiled here once, no fork compiles again
with contextlib.suppress(ImportError):  # of transformers before 5
    mapping = importlib.import_module("transformers.conversion_mapping")
    mapping.get_checkpoint_conversion_mapping("llama")
TqdmDefaultWriteLock.create_mp_lock()  # else every fork makes one, and a killed one leaks it
gc.freeze()  # so that a fork's collections do not walk over all of this
