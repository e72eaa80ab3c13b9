"""The signals by which other programs ask for an end, as far as this system has them."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from partita.errors import Stopped

_SOON = 0.05  # seconds, after which a destructor has ended

ENDING: tuple[signal.Signals, ...]
"""What asks for an end beside Ctrl-C: other programs, and a terminal whose window is closed."""

if sys.platform == "win32":  # whose terminals send none
    ENDING = (signal.SIGTERM,)
else:
    ENDING = (signal.SIGTERM, signal.SIGHUP)


_received: list[int] = []


def stop(number: int, _frame: FrameType | None) -> None:
    """A handler that ends what is going on by raising `Stopped`."""
    _received.append(number)
    raise Stopped(number)


@contextmanager
def stopping() -> Iterator[None]:
    """What fails inside because a signal came in the middle of it was stopped, whatever it says.

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
    """Inside, a signal that meets a destructor, or a weak reference's end, is sent once more.

    Python prints and forgets the exceptions of those.
    """
    before = sys.unraisablehook

    def hook(forgotten: sys.UnraisableHookArgs) -> None:
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
