"""Callbacks of preparing data, from functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from partita.data.prepared import PrepareCallback


def calling(**functions: Callable[..., Any]) -> PrepareCallback:
    """A callback that calls the functions of these names."""
    callback = PrepareCallback()
    for name, function in functions.items():
        assert hasattr(callback, name)
        setattr(callback, name, function)
    return callback
