"""Closed-book questions about the pocket world's people."""

from __future__ import annotations

from grace.tasks import pocket
from grace.tasks.forms import OpenTask

TASK = OpenTask("pocket_people", pocket.source, pocket.parse)
