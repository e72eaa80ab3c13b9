"""Signals that stop a verb: unfinished work is cleaned up, as after Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from partita.signals import ENDING, not_forgotten, stop

_ERRORS = 2  # the number of standard error


def announce(_number: int) -> None:
    """Print that a run is ending; from a signal handler, so directly to the file descriptor."""
    if os.environ.get("RANK", "0") == "0":
        with suppress(OSError):
            os.write(_ERRORS, b"\npartita: saving, then stopping; a second signal stops at once\n")


@contextmanager
def interruptible() -> Iterator[None]:
    """Inside the block, Ctrl-C and signals that would end the program at once raise `Stopped`.

    Ignored signals stay ignored: `nohup` lets a program outlive its terminal.
    """
    if threading.current_thread() is not threading.main_thread():  # only it may set handlers
        yield
        return
    usual = dict.fromkeys(ENDING, signal.SIG_DFL) | {signal.SIGINT: signal.default_int_handler}
    watched = {number: act for number, act in usual.items() if signal.getsignal(number) is act}
    for number in watched:
        signal.signal(number, stop)
    try:
        with not_forgotten():
            yield
    finally:
        for number, act in watched.items():
            signal.signal(number, act)
