"""Capabilities of a class that its subclasses have to declare anew."""

from __future__ import annotations

from typing import Any, ClassVar


class Recordable:
    """A method, corruption or network: may its work in a training step be recorded and replayed?

    A recording has the kernels of a step alone. Its Python runs once, at step 0; from then on only
    tokens, labels and noise differ. What a subclass adds may do otherwise, so every class says for
    itself that it is `recordable`.
    """

    recordable: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.recordable = bool(cls.__dict__.get("recordable", False))
