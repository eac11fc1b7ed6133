"""Settings of a run: the tree, its fields, and the recipes that change it.

Order of precedence: defaults, then the recipe (TOML), then `section.key=value` overrides.
`config.json` of a run holds the resolved tree.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grace.config.fields import assignment as assignment
from grace.config.fields import describe as describe
from grace.config.fields import differences as differences
from grace.config.fields import flatten as flatten
from grace.config.fields import from_dict as from_dict
from grace.config.fields import key_values as key_values
from grace.config.fields import parse_value as parse_value
from grace.config.fields import sections as sections
from grace.config.fields import setting as setting
from grace.config.fields import to_dict as to_dict
from grace.config.settings import FREE_IN_TRAINING as FREE_IN_TRAINING
from grace.config.settings import DataSettings as DataSettings
from grace.config.settings import GraceSettings as GraceSettings
from grace.config.settings import GradeSettings as GradeSettings
from grace.config.settings import ModelSettings as ModelSettings
from grace.config.settings import PaperSettings as PaperSettings
from grace.config.settings import RunSettings as RunSettings
from grace.config.settings import SampleSettings as SampleSettings
from grace.config.settings import refuse_earlier as refuse_earlier
from grace.errors import ConfigError

RECIPES = Path(__file__).parents[1] / "recipes"


def override_settings(
    tree: dict[str, Any], overrides: Sequence[str], where: str = "settings"
) -> RunSettings:
    """Return the settings of a nested dict, changed by `section.key=value` overrides."""
    for override in overrides:
        _assign(tree, override)
    return from_dict(RunSettings, tree, where=where)


def shipped_recipes() -> dict[str, Path]:
    """Return the files of the recipes that come with GrACE, by name."""
    files = sorted(RECIPES.glob("**/*.toml"))
    return {file.relative_to(RECIPES).with_suffix("").as_posix(): file for file in files}


def read_recipe(path: Path) -> dict[str, Any]:
    """Return the nested sections of a TOML recipe: a file, or a name of `grace list recipes`."""
    if not path.is_file():
        path = shipped_recipes().get(path.as_posix(), path)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(
            f"recipe {path} does not exist; give a file, or a name of `grace list recipes`"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"recipe {path} cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"recipe {path} is not valid TOML: {error}") from None


def is_missing(model: str | Path) -> bool:
    """Return whether a model is named by a path that does not exist, and is no Hub id."""
    if Path(model).exists() or model == "pocket":
        return False
    owner, slash, name = str(model).partition("/")
    inside = slash != "" and (name == "" or "/" in name or Path(owner).exists())
    return inside or isinstance(model, Path) or model.startswith((".", "~", "/"))


def merged(tree: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return nested sections with changes on top; the arguments stay as they are."""
    both = tree | changes
    for key in tree.keys() & changes.keys():
        if isinstance(tree[key], dict) and isinstance(changes[key], dict):
            both[key] = merged(tree[key], changes[key])
    return both


def _assign(tree: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals:
        raise ConfigError(f"setting {key!r} has no value; write {key.strip()}=VALUE")
    *sections, name = key.strip().split(".")
    if sections[:1] == ["estimators"] and len(sections) > 1:
        sections = ["estimators", ".".join(sections[1:])]  # module:NAME, which may have dots
    for section in sections:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise ConfigError(
                f"setting {key!r}: {section!r} is a value, not a section; see grace list settings"
            )
    tree[name] = value = parse_value(text.strip())
    if value == text.strip() and "\\n" in value:  # not in quotes
        raise ConfigError(
            f"{key.strip()} has \\n outside of quotes, which is no newline; write --set "
            f"""'{key.strip()}="...\\n..."', with \\\\n for a backslash and an n"""
        )
