"""Settings of a run: the tree, its fields, and the recipes that change it.

Order of precedence: defaults, then the recipe (TOML), then `section.key=value` overrides.
`config.json` of a run holds the resolved tree.
"""

from grace.config.fields import (
    describe,
    differences,
    from_dict,
    key_values,
    sections,
    setting,
    to_dict,
)
from grace.config.recipes import (
    is_missing,
    load_settings,
    override_settings,
    read_recipe,
    shipped_recipes,
)
from grace.config.settings import (
    DataSettings,
    GradeSettings,
    ModelSettings,
    ReportSettings,
    RunSettings,
    SampleSettings,
    TargetSettings,
    TrainSettings,
)

__all__ = [
    "DataSettings",
    "GradeSettings",
    "ModelSettings",
    "ReportSettings",
    "RunSettings",
    "SampleSettings",
    "TargetSettings",
    "TrainSettings",
    "describe",
    "differences",
    "from_dict",
    "is_missing",
    "key_values",
    "load_settings",
    "override_settings",
    "read_recipe",
    "sections",
    "setting",
    "shipped_recipes",
    "to_dict",
]
