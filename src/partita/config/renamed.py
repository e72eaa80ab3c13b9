"""Keys of recipes that were renamed: files are migrated, everybody else hears the new name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from partita.errors import InputError

RENAMED = {
    "data.valid": "data.validation_fraction",
    "training.optimiser": "training.optimizer",
    "training.rate": "training.lr_schedule",
    "training.clip": "training.max_grad_norm",
    "training.ema": "training.ema_decay",
    "run.distribution": "run.parallel",
    "run.recompute": "run.activation_checkpointing",
    "run.capture": "run.cuda_graph",
    "run.keep": "run.keep_checkpoints",
}
"""Keys of recipes of version 2, and what they are called since; a section and a name each."""

T = TypeVar("T")


def in_new_keys(recipe: Mapping[Any, Any]) -> dict[Any, Any]:
    """A recipe as a new dictionary, with today's names in place of old ones."""
    return {name: _section(name, content) for name, content in recipe.items()}


def _section(name: object, content: object) -> object:
    if not isinstance(content, Mapping):
        return content
    return {_today(name, key, content): value for key, value in content.items()}


def _today(section: object, key: object, content: Mapping[Any, Any]) -> object:
    """A key of a section by its name of today; one that would stand there twice stays as it is."""
    new = RENAMED.get(f"{section}.{key}", "").removeprefix(f"{section}.")
    return new if new and new not in content else key


def refuse_old_name(key: str) -> None:
    """Refuse a key, or a flag, by its old name, and say the new one."""
    plain = key.removeprefix("--")
    if plain in RENAMED:
        dashes = key.removesuffix(plain)
        raise InputError(key, f"is {dashes}{RENAMED[plain]} now")


def renamed_keys(section: str) -> Callable[[type[T]], type[T]]:
    """A decorator for a section's dataclass: an old keyword is an error with the new name."""

    def decorated(options: type[T]) -> type[T]:
        build = options.__init__

        @functools.wraps(build)
        def init(self: T, *given: Any, **keywords: Any) -> None:
            for keyword in keywords:
                refuse_old_name(f"{section}.{keyword}")
            build(self, *given, **keywords)

        options.__init__ = init  # type: ignore[assignment,method-assign]
        return options

    return decorated
