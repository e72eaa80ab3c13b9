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


def require(condition: bool, argument: str, problem: str, remedy: str = "") -> None:
    """Raise an `InputError` unless the condition holds."""
    if not condition:
        raise InputError(argument, problem, remedy)
