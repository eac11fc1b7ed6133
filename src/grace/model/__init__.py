"""The Python interface: `grace.load(...)`, then `.ask()`, `.vote()`, `.score()`, `.trace()`."""

from grace.model.answering import Model as Model
from grace.model.loading import described as described
from grace.model.loading import load as load
from grace.model.reply import Reply as Reply
