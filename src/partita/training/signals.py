"""Handling of the signals that stop a run; previous handlers are restored."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from partita.signals import ENDING, not_forgotten, stop


class Signals:
    """SIGTERM, SIGHUP and Ctrl-C make a run save a checkpoint and stop; a second one stops at once.

    Outside of `awaited` there is nothing to save, and the first one stops at once too.
    """

    WATCHED = (*ENDING, signal.SIGINT)

    def __init__(self, heard: Callable[[int], None] = lambda _number: None) -> None:
        """`heard` is called from the signal handler when a signal is noted."""
        self.received, self._heard, self._awaited = 0, heard, False

    def __enter__(self) -> Signals:
        handlers = {number: signal.getsignal(number) for number in self.WATCHED}
        # Ignored signals stay ignored: nohup lets a run outlive its terminal.
        self._before = {n: handler for n, handler in handlers.items() if handler != signal.SIG_IGN}
        for number in self._before:
            signal.signal(number, self._note)
        self._hearing = not_forgotten()
        self._hearing.__enter__()
        return self

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """Inside the block, the caller checks `received` between any two steps."""
        self._awaited = True
        try:
            yield
        finally:
            self._awaited = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received or not self._awaited:
            stop(number, frame)
            return
        self.received = number
        self._heard(number)

    def __exit__(self, *_: object) -> None:
        self._hearing.__exit__(None, None, None)
        for number, handler in self._before.items():
            signal.signal(number, handler)
