"""Sums in several steps with five options, from the pocket world."""

from __future__ import annotations

from grace.tasks import pocket
from grace.tasks.forms import ChoiceTask

TASK = ChoiceTask("pocket_sums", pocket.source, pocket.parse)
