"""Capabilities that every class must declare for itself, without inheriting them."""

from __future__ import annotations

from typing import Any, ClassVar


class Recordable:
    """Whether a training step with this method, corruption or network can be a CUDA graph.

    A recorded step replays only its GPU kernels. Its Python code runs once, at step 0; afterwards
    only tokens, labels and noise change. A subclass may add code that breaks this, so every class
    declares `recordable` for itself, and it is not inherited.
    """

    recordable: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.recordable = bool(cls.__dict__.get("recordable", False))
