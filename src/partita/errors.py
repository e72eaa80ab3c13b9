"""The one error that bad input raises: it names the argument, the problem and the way out."""

from __future__ import annotations


class InputError(ValueError):
    """Something that the caller gave cannot be used.

    The command line prints it as one line and exits with code 2; nothing has been written by then.
    """

    def __init__(self, argument: str, problem: str, remedy: str = "") -> None:
        self.argument = argument
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{argument}: {problem}" + (f"; {remedy}" if remedy else ""))


def require_int(value: object, argument: str, least: int = 1) -> None:
    """Refuse what is not a whole number, or too small a one."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    require(whole, argument, f"must be a whole number, got {value!r}")
    require(value >= least, argument, f"must be at least {least}, got {value}")  # type: ignore[operator]


def require_number(value: object, argument: str, least: float = 0.0) -> None:
    """Refuse what is not a number, or too small a one (a NaN is)."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    require(number, argument, f"must be a number, got {value!r}")
    require(value >= least, argument, f"must be at least {least:g}, got {value}")  # type: ignore[operator]


def require(condition: bool, argument: str, problem: str, remedy: str = "") -> None:
    """Raise an `InputError` unless the condition holds."""
    if not condition:
        raise InputError(argument, problem, remedy)
