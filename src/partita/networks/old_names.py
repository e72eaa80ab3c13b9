"""Keywords of `TransformerOptions` in version 0.1: they work for one more version, with a warning.

Options of a single kind of network have moved to its `options`.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

MOVED: Mapping[str, str] = {
    "channels": "channels",
    "patch": "patch",
    "levels_head": "levels_head",
    "logistics": "logistics",
    "positions": "positions",
    "decoder.depth": "decoder_depth",
    "decoder.width": "decoder_width",
    "decoder.heads": "decoder_heads",
    "decoder.queries": "queries",
    "decoder.process": "process",
}
"""Old keys to keys of `options`."""

T = TypeVar("T")
_LEVEL = 3  # stack level of the warning: the line that uses the old name


def DecoderOptions(**chosen: Any) -> dict[str, Any]:  # noqa: N802 - a class until now
    """Options of a partition network, as the dict for `options`."""
    new = {MOVED[f"decoder.{name}"]: value for name, value in chosen.items()}
    said = f"partita.DecoderOptions is no longer needed: write options={new!r}"
    warnings.warn(said, DeprecationWarning, stacklevel=_LEVEL - 1)
    return new


def knows_old_keywords(cls: type[T]) -> type[T]:
    """Decorator for dataclasses of options: old keywords become `options`, with a warning."""
    init: Callable[..., None] = cls.__init__

    @functools.wraps(init)
    def renamed(self: T, *given: Any, **named: Any) -> None:
        old = {name for name in named if name in MOVED or name == "decoder"}
        if old:
            named = _in_todays_names(named, old)
        init(self, *given, **named)

    cls.__init__ = renamed  # type: ignore[assignment]
    return cls


def _in_todays_names(named: dict[str, Any], old: set[str]) -> dict[str, Any]:
    moved: dict[str, Any] = dict(named.get("options") or {})
    for name in sorted(old):
        moved |= (named[name] or {}) if name == "decoder" else {MOVED[name]: named[name]}
    said = f"{', '.join(sorted(old))}: write options={moved!r}"
    warnings.warn(said, DeprecationWarning, stacklevel=_LEVEL)
    rest = {name: value for name, value in named.items() if name not in old}
    return {**rest, "options": moved}
