"""One pattern for everything that is chosen by name: schedules, methods, samplers, grids, rules."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from partita.errors import InputError

T = TypeVar("T")


def check_options(
    argument: str,
    name: str,
    function: Callable[..., object],
    given: Iterable[str],
    besides: tuple[str, ...] = (),
) -> None:
    """Refuse options that a named thing does not take, and list those that it does.

    What it takes `besides` is given in another way.
    """
    known = [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name not in ("schedule", "base", *besides)
    ]
    for option in given:
        if option not in known:
            takes = ", ".join(known) or "no options"
            raise InputError(argument, f"{name!r} does not take {option!r}", f"it takes: {takes}")


class Registry(Generic[T]):
    """Names to things. An unknown name raises an error that lists the known ones."""

    def __init__(self, argument: str) -> None:
        self.argument = argument
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator: `@SCHEDULES.register("linear")`."""

        def add(entry: T) -> T:
            if name in self._entries:
                raise KeyError(f"{self.argument} {name!r} is registered twice")
            self._entries[name] = entry
            return entry

        return add

    def __getitem__(self, name: str) -> T:
        if name not in self:
            near = difflib.get_close_matches(str(name), self._entries, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise InputError(
                self.argument, f"unknown name {name!r}", f"{hint}known: {', '.join(self)}"
            )
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))
