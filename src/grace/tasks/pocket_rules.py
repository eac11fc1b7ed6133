"""Which of four creatures is the heaviest or the lightest, from the pocket world."""

from __future__ import annotations

from grace.tasks import _pocket
from grace.tasks.forms import ChoiceTask

TASK = ChoiceTask("pocket_rules", _pocket.source, _pocket.parse)
