"""Imported once by the server whose forks do the runs."""

import gc

import matplotlib.backends.backend_agg
import matplotlib.backends.backend_svg
import matplotlib.style
import peft.utils.transformers_weight_conversion
import PIL.features
import PIL.JpegImagePlugin
import safetensors.numpy
import safetensors.torch
import sklearn.linear_model
import transformers.models.llama.modeling_llama

import grace.cli
import grace.engines.transformers
import grace.estimators.platt
import grace.pipeline
import grace.probe
import grace.report.figures
import grace.report.page
import grace.tasks.jsonl
import grace.training.trainer  # noqa: F401

gc.freeze()  # so that a fork's collections do not walk over all of this
