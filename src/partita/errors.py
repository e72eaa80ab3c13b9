"""The one error that bad input raises: it names the argument, the problem and the remedy."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import NoneType
from typing import Any, get_args, get_origin

MOST = 1 << 48  # larger than any size, count or number of steps that a machine can do
MOST_SEEDS = (1 << 64) - 1
EXACT = 1 << 53  # the whole numbers that a float holds exactly; JSON knows larger ones
LEAST_TEMPERATURE, MOST_TEMPERATURE = 1e-30, 1e30  # 1 / temperature is a float32 on a GPU


class InputError(ValueError):
    """An argument, option or file of the caller cannot be used.

    The command line prints it as one line and exits with code 2; nothing has been written by then.
    """

    def __init__(self, argument: str, problem: str, remedy: str = "") -> None:
        self.argument = argument
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{argument}: {problem}" + (f"; {remedy}" if remedy else ""))


class Stopped(KeyboardInterrupt):
    """A signal ends the program, as Ctrl-C does."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__()


def leaves(error: KeyboardInterrupt, what: str) -> None:
    """Note on an interrupt what the stopped work leaves behind.

    (The notes of exceptions are not used for that: Python writes some of its own.)
    """
    error.__dict__.setdefault("left", []).append(what)


def left_by(error: KeyboardInterrupt) -> list[str]:
    """The notes of `leaves`."""
    return list(error.__dict__.get("left", []))


@contextmanager
def naming(names: Mapping[str, str]) -> Iterator[None]:
    """Errors inside name an argument as the user wrote it, such as `--count`."""
    try:
        yield
    except InputError as error:
        if error.argument not in names:
            raise
        raise InputError(names[error.argument], error.problem, error.remedy) from error


def require_int(value: object, argument: str, least: int = 1, most: int = MOST) -> None:
    """Refuse what is not a whole number from `least` to `most`."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    require(whole, argument, f"must be a whole number, got {value!r}")
    require(value >= least, argument, f"must be at least {least}, got {value}")  # type: ignore[operator]
    require(value <= most, argument, f"must be at most {most}, got {value}")  # type: ignore[operator]


def require_ints(options: object, section: str, **least: int) -> None:
    """Refuse fields of a dataclass that are not whole numbers from a least one, each by its name.

    None is fine where it is the default.
    """
    for name, low in least.items():
        value = getattr(options, name)
        if value is not None or getattr(type(options), name, 0) is not None:
            require_int(value, f"{section}{name}", low)


def require_seed(value: object, argument: str) -> None:
    """Refuse what is not a whole number of 64 bits."""
    require_int(value, argument, 0, MOST_SEEDS)


def require_positive(value: object, argument: str, *, finite: bool = True) -> None:
    """Refuse what is not a number above 0."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    fits = number and value > 0 and not (finite and value == math.inf)  # type: ignore[operator]
    kind = "a positive, finite number" if finite else "a positive number"
    require(fits, argument, f"must be {kind}, got {value!r}")


def require_number(value: object, argument: str, least: float = 0.0) -> None:
    """Refuse what is not a number, or too small a one (a NaN is)."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    require(number, argument, f"must be a number, got {value!r}")
    require(value >= least, argument, f"must be at least {least:g}, got {value}")  # type: ignore[operator]


def require_temperature(value: object, argument: str) -> None:
    """Refuse what is neither 0 nor a number by which float32 logits can be divided."""
    require_number(value, argument)
    fits = value == 0 or LEAST_TEMPERATURE <= value <= MOST_TEMPERATURE  # type: ignore[operator]
    kind = f"must be 0, or from {LEAST_TEMPERATURE:g} to {MOST_TEMPERATURE:g}"
    require(fits, argument, f"{kind}, got {value}", "0 takes the most probable token")


def require(condition: bool, argument: str, problem: str, remedy: str = "") -> None:
    """Raise an `InputError` unless the condition holds."""
    if not condition:
        raise InputError(argument, problem, remedy)


def require_known(value: object, argument: str, known: Collection[str]) -> None:
    """Refuse a name that is not among the known ones, which the error lists."""
    require(value in known, argument, f"unknown name {value!r}", f"known: {', '.join(known)}")


def require_once(values: Sequence[object], argument: str) -> None:
    """Refuse a list in which a value is there several times."""
    twice = next((value for value in values if values.count(value) > 1), None)
    require(twice is None, argument, f"{twice!r} is there twice", "give it once")


def suggestion(word: object, known: Iterable[str], shown: str = "{}") -> str:
    """A question after the known name that a word is most like; empty if it is like none."""
    near = difflib.get_close_matches(str(word), known, n=1)
    return f"did you mean {shown.format(near[0])}?" if near else ""


def described(kind: object) -> str:
    """A type in words."""
    known = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    if kind in known:
        return known[kind]
    if get_origin(kind) is dict:
        return "keys and values, such as {steps: 64}"
    if get_origin(kind) is list:
        numbers = get_args(kind) != (str,)
        return f"a list, such as {'[512,2048]' if numbers else '[first,second]'}"
    # What may be None may be left out.
    parts = [described(part) for part in get_args(kind) if part is not NoneType]
    return " or ".join(parts) or str(kind)


def fits(value: object, kind: object) -> bool:
    """Whether a value read from a recipe is of an annotated type.

    Whole numbers are numbers too, if a float holds them exactly.
    """
    if kind is Any:
        return True
    if kind in (None, NoneType):
        return value is None
    if get_origin(kind) is list:
        (inner,) = get_args(kind)
        return isinstance(value, list) and all(fits(held, inner) for held in value)
    if get_origin(kind) is dict:
        inner = get_args(kind)[1]
        return isinstance(value, dict) and all(fits(held, inner) for held in value.values())
    if kind is float and isinstance(value, int):
        return not isinstance(value, bool) and abs(value) <= EXACT
    if isinstance(kind, type):
        return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    return any(fits(value, part) for part in get_args(kind))
