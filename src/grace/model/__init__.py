"""The Python interface: `grace.load(...)`, then `.ask()`, `.vote()`, `.score()`, `.trace()`."""

from grace.model.answering import Model as Model
from grace.model.answering import Reply as Reply
from grace.model.loading import described as described
from grace.model.loading import load as load
