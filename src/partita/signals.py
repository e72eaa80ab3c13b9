"""Signals that end the program, such as SIGTERM."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from partita.errors import Stopped

_SOON = 0.05  # seconds, after which a destructor has ended

# Windows has no SIGHUP.
ENDING = tuple(one for one in signal.Signals if one.name in ("SIGTERM", "SIGHUP"))
"""The signals besides Ctrl-C: of other programs, and of a terminal whose window is closed."""

_received: list[int] = []


def stop(number: int, _frame: FrameType | None) -> None:
    """A signal handler that raises `Stopped`."""
    _received.append(number)
    raise Stopped(number)


@contextmanager
def stopping() -> Iterator[None]:
    """An error inside is `Stopped` if a signal came in the meantime.

    Compiled code may turn an exception that a handler raises in it into one of its own.
    """
    before = len(_received)
    try:
        yield
    except Stopped:
        raise
    except Exception as error:
        if len(_received) == before:
            raise
        raise Stopped(_received[-1]) from error


@contextmanager
def not_forgotten() -> Iterator[None]:
    """Inside, a signal that comes during a destructor or a weak reference's callback is sent again.

    Python prints and drops the exceptions of those.
    """
    before = sys.unraisablehook

    def hook(forgotten: Any) -> None:  # noqa: ANN401 - of a type that `sys` has for type checkers alone
        if not isinstance(forgotten.exc_value, Stopped):
            before(forgotten)
            return
        again = threading.Timer(_SOON, os.kill, (os.getpid(), forgotten.exc_value.number))
        again.daemon = True
        again.start()

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before
