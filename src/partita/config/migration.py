"""Recipes of earlier versions get today's keys when a file is read.

A file that holds a recipe says in which version's keys: `config.json` of models and checkpoints and
`recipe.json` of runs always do, a YAML file may. Reading one applies the steps from that version
on, one after the other. Recipes from Python never pass through here: `Recipe.from_dict` knows
today's keys and defaults alone.

A key that is renamed or moved gets a line in `renames.py`, which flags and dictionaries use too,
and a step at the end of `STEPS` that applies the lines of one version. So does a key whose values
are written in another way. A new key needs a step only if its default changes what older recipes
did.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partita.config.renames import with_todays_names
from partita.errors import InputError, require

KEY = "recipe_version"
OLDEST = 1  # of models and runs that do not state a version

Sections = dict[str, Any]


@dataclass(frozen=True)
class Step:
    """The conversion of a recipe from one version to the next."""

    change: Callable[[Sections], Sections]
    """The recipe in the keys of the next version, as a new dictionary. What is no recipe stays as
    it is: later checks say what is wrong with it."""
    complete: bool = False
    """Whether the step fills in a missing key. It is then for complete recipes alone, which
    programs write; people leave keys out, and mean today's defaults."""


def _attention_without_a_scale(recipe: Sections) -> Sections:
    """Networks scaled their attention by 1 before there was `network.qk_scale`."""
    network = recipe.get("network", {})
    if not isinstance(network, Mapping):
        return recipe
    return {**recipe, "network": {"qk_scale": 1.0, **network}}


def _names_of_version_3(recipe: Sections) -> Sections:
    """Options of one kind of network stood beside those of all kinds, and `transformer` meant the
    kind that the method has by default."""
    network = recipe.get("network")
    if isinstance(network, Mapping):
        unused = set() if network.get("levels_head") == "logistic" else {"logistics"}
        unused |= {"kind"} if network.get("kind") == "transformer" else set()
        recipe = {**recipe, "network": {k: v for k, v in network.items() if k not in unused}}
    return with_todays_names(recipe)


STEPS: Mapping[int, Step] = {
    1: Step(_attention_without_a_scale, complete=True),
    2: Step(_names_of_version_3),
}
"""The step from each version to the next. A version has one step."""

VERSION = OLDEST + len(STEPS)


def stamped(recipe: Sections) -> Sections:
    """A recipe with its version, as files hold it."""
    return {KEY: VERSION, "recipe": recipe}


def saved_recipe(content: Mapping[str, Any], path: Path) -> object:
    """The recipe in the content of a file that a program wrote, in today's keys."""
    version = _version(content.get(KEY, OLDEST), path)
    recipe = content.get("recipe")
    return migrated(recipe, version) if isinstance(recipe, dict) else recipe


def written_recipe(content: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """The recipe in the content of a YAML file, in today's keys.

    A file with a version means what it meant then. Without one, old keys are understood, and
    missing keys have today's defaults.
    """
    recipe = {key: value for key, value in content.items() if key != KEY}
    if KEY in content:
        return migrated(recipe, _version(content[KEY], path))
    return migrated(recipe, OLDEST, complete=False)


def migrated(
    recipe: Sections, version: int, *, complete: bool = True, steps: Mapping[int, Step] = STEPS
) -> Sections:
    """A recipe of a version, after all later steps."""
    for number in range(version, OLDEST + len(steps)):
        if complete or not steps[number].complete:
            recipe = steps[number].change(recipe)
    return recipe


def _version(version: object, path: Path) -> int:
    """A version that a file states; one that is unknown is refused."""
    if not isinstance(version, int) or isinstance(version, bool) or version < OLDEST:
        problem = f"{path}: {KEY} must be a whole number from {OLDEST} to {VERSION}"
        raise InputError("model", f"{problem}, got {version!r:.200}")
    newer = f"{path} has {KEY} {version!r:.200}, this version of partita reads up to {VERSION}"
    require(version <= VERSION, "model", newer, "update partita")
    return version
