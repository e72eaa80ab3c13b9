"""Keys of recipes that have another name today: one table for files, flags and dictionaries.

A file of an earlier version is read under the new names (`migration.py`). A flag or a key of a
dictionary that has an old name is refused, and the error says the new one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from partita.errors import InputError
from partita.networks.old_names import MOVED

T = TypeVar("T")
Sections = dict[str, Any]

NETWORK: Mapping[str, str] = {
    f"network.{old}": f"network.options.{new}" for old, new in MOVED.items()
}
"""What belongs to one kind of network."""

TRAINING: Mapping[str, str] = {
    "data.colour": "data.color",
    "data.valid": "data.validation_fraction",
    "run.capture": "run.cuda_graph",
    "run.distribution": "run.parallel",
    "run.keep": "run.keep_checkpoints",
    "run.recompute": "run.activation_checkpointing",
    "training.clip": "training.max_grad_norm",
    "training.ema": "training.ema_decay",
    "training.optimiser": "training.optimizer",
    "training.rate": "training.lr_schedule",
}
"""The field's names for what shapes a run."""

METHOD: Mapping[str, str] = {
    "method.law": "method.corruption",
    "method.law_options": "method.corruption_options",
}
"""Which tokens are hidden, and how much each counts, is called what it is."""

RENAMED: Mapping[str, str] = {**NETWORK, **TRAINING, **METHOD}
"""Old keys to new ones, each with the sections that it is in."""

USUAL: Mapping[str, object] = {
    "network.channels": 1,
    "network.patch": 2,
    "network.levels_head": "categorical",
    "network.logistics": 5,
    "network.positions": "rotary",
    "network.decoder.depth": None,
    "network.decoder.width": None,
    "network.decoder.heads": None,
    "network.decoder.queries": "positions",
    "network.decoder.process": "linear",
}
"""Values that programs wrote down of every network, whether it had a use for them or not."""

_NOTHING = object()


def name_of_today(key: str) -> str | None:
    """What an old key, or an old section of keys, is called now; None if it has no other name."""
    if key in RENAMED:
        return RENAMED[key]
    inside = (new for old, new in RENAMED.items() if old.startswith(f"{key}."))
    return next((new.rpartition(".")[0] for new in inside), None)


def renamed_keys(section: str) -> Callable[[type[T]], type[T]]:
    """A decorator for a section's dataclass: an old keyword is an error with the new name."""

    def decorated(options: type[T]) -> type[T]:
        build = options.__init__

        @functools.wraps(build)
        def init(self: T, *given: Any, **keywords: Any) -> None:
            for keyword in keywords:
                old = f"{section}.{keyword}"
                if old in RENAMED:
                    raise InputError(old, "has another name now", f"write {RENAMED[old]}")
            build(self, *given, **keywords)

        options.__init__ = init  # type: ignore[assignment,method-assign]
        return options

    return decorated


def with_todays_names(recipe: Sections, table: Mapping[str, str] = RENAMED) -> Sections:
    """A recipe whose old keys have their new names; one that states both keeps them as they are."""
    for old, new in table.items():
        value = _at(recipe, old.split("."))
        if value is _NOTHING or _at(recipe, new.split(".")) is not _NOTHING:
            continue
        recipe = _without(recipe, old.split("."))
        if old not in USUAL or value != USUAL[old]:
            recipe = _with(recipe, new.split("."), value)
    return recipe


def _at(content: object, path: list[str]) -> object:
    for key in path:
        if not isinstance(content, Mapping) or key not in content:
            return _NOTHING
        content = content[key]
    return content


def _without(content: Sections, path: list[str]) -> Sections:
    """Less one key, and less a section that holds nothing more."""
    key, *rest = path
    inner = _without(content[key], rest) if rest else {}
    others = {name: held for name, held in content.items() if name != key}
    return {**content, key: inner} if inner else others


def _with(content: Mapping[str, Any], path: list[str], value: object) -> Sections:
    key, *rest = path
    if not rest:
        return {**content, key: value}
    inner = content.get(key) or {}
    return {**content, key: _with(inner, rest, value) if isinstance(inner, Mapping) else inner}
