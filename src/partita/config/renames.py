"""Renamed keys of recipes: one table for files, flags and dictionaries.

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
"""Options of one kind of network."""

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
"""The field's usual names."""

METHOD: Mapping[str, str] = {
    "method.law": "method.corruption",
    "method.law_options": "method.corruption_options",
}
"""What a method does to tokens was called its law."""

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
"""Values that programs saved for every network, used or not; they are dropped."""

_NOTHING = object()


def name_of_today(key: str) -> str | None:
    """The current name of an old key or an old section; None if it has not changed."""
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
    """A recipe with new names for old keys; where it has both, they stay as they are."""
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
    """The content without a key, and without a section that is empty then."""
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
