"""Registries of everything that is chosen by name: schedules, methods, samplers and so on."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from inspect import Parameter
from types import MappingProxyType, NoneType
from typing import Any, Generic, TypeVar

from partita.errors import InputError, described, fits, suggestion

T = TypeVar("T")
FROM_ELSEWHERE = ("schedule", "base")  # arguments that are not options
_NAMED = (Parameter.POSITIONAL_OR_KEYWORD,)
_PLAIN: dict[str, Any] = {
    "int": int,
    "float": float,
    "str": str,
    "bool": bool,
    "None": NoneType,
    "dict[str, float]": dict[str, float],
    "dict[str, int]": dict[str, int],
}


@dataclass(frozen=True)
class Option:
    """One option of a registered entry."""

    default: object
    """Its default; `Parameter.empty` if it must be given."""
    kind: Any
    """Its type, if it is a plain one; otherwise None."""


def options_of(
    entry: Callable[..., object], besides: Iterable[str] = (), *, keywords: bool = False
) -> dict[str, Option]:
    """The options of an entry: the fields of a dataclass, or the parameters of a function.

    Those named in `besides` are left out; with `keywords`, so are those before the `*`.
    """
    kinds = (Parameter.KEYWORD_ONLY,) if keywords else (*_NAMED, Parameter.KEYWORD_ONLY)
    return {
        parameter.name: Option(parameter.default, plain_type(parameter.annotation))
        for parameter in inspect.signature(entry).parameters.values()
        if parameter.kind in kinds and parameter.name not in besides
    }


def plain_type(annotation: object) -> Any:  # noqa: ANN401 - a type, or a union of some
    """The type that an annotation's text names, if it is a plain one.

    The text is looked up and never evaluated: recipes are not trusted.
    """
    parts = str(annotation).split(" | ")
    if not all(part in _PLAIN for part in parts):
        return None
    return functools.reduce(operator.or_, [_PLAIN[part] for part in parts])


def checked_options(
    argument: str,
    name: str,
    known: Mapping[str, Option],
    given: Mapping[str, Any],
    others: Mapping[str, Mapping[str, Option]] = MappingProxyType({}),
) -> dict[str, Any]:
    """The given options, after a check of their names and types.

    `others` are the options of other things like this one, which an error may point to.
    """
    takes = f"it takes: {', '.join(known) or 'none'}"
    for key, value in given.items():
        if key not in known:
            having = " and ".join(other for other in others if key in others[other])
            takes += f" ({key} is for {having})" if having else ""
            remedy = f"{suggestion(key, known)} {takes}".lstrip()
            raise InputError(f"{argument}.{key}", f"{name} has no such choice", remedy)
        kind = known[key].kind
        if kind is not None and not fits(value, kind):
            raise InputError(f"{argument}.{key}", f"must be {described(kind)}, got {value!r}")
    return dict(given)


def check_options(
    argument: str,
    name: str,
    entry: Callable[..., object],
    given: Iterable[str],
    besides: tuple[str, ...] = (),
) -> None:
    """Refuse options that a named thing does not take, and list those that it does."""
    known = options_of(entry, (*FROM_ELSEWHERE, *besides))
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

        def register(entry: T) -> T:
            self.add(name, entry)
            return entry

        return register

    def add(self, name: str, entry: T) -> None:
        """Register an entry under a name."""
        if name in self._entries:
            raise KeyError(f"{self.argument} {name!r} is registered twice")
        self._entries[name] = entry

    def __getitem__(self, name: str) -> T:
        if name not in self:
            near = suggestion(name, self, "{!r}")
            remedy = f"{near} known: {', '.join(self)}".lstrip()
            raise InputError(self.argument, f"unknown name {name!r}", remedy)
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))
