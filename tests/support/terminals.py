"""Outputs of commands: terminals, pipes without a reader, and full disks."""

from __future__ import annotations

import os
import pty
import sys
import threading
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class Screen:
    """What was written to a terminal."""

    def __init__(self) -> None:
        self.master, self.number = pty.openpty()
        tty.setraw(self.number)  # line ends are not translated
        self._parts: list[bytes] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                part = os.read(self.master, 1 << 16)
            except OSError:  # the writer has closed it
                return
            if not part:
                return
            self._parts.append(part)

    def close(self) -> str:
        """Everything, as text."""
        self._reader.join(timeout=60)
        os.close(self.master)
        return b"".join(self._parts).decode()


@contextmanager
def printing_to(number: int) -> Iterator[None]:
    """Standard output and standard error lead to a file by its number, which is closed after."""
    with pytest.MonkeyPatch.context() as patch, os.fdopen(number, "w", encoding="utf-8") as stream:
        patch.setattr(sys, "stdout", stream)
        patch.setattr(sys, "stderr", stream)
        yield


def on_screen(work, columns: int = 250, **environment: str) -> str:
    """The text that some work writes to a terminal."""
    screen = Screen()
    with pytest.MonkeyPatch.context() as patch, printing_to(screen.number):
        for name in ("NO_COLOR", "FORCE_COLOR", "TTY_INTERACTIVE", "TTY_COMPATIBLE"):
            patch.delenv(name, raising=False)
        for name, value in {"TERM": "xterm", "COLUMNS": str(columns), **environment}.items():
            patch.setenv(name, value)
        work()
    return screen.close()


@contextmanager
def without_a_reader() -> Iterator[None]:
    """Standard output and standard error are a pipe without a reader."""
    reading, writing = os.pipe()
    os.close(reading)
    with printing_to(writing):
        yield


@contextmanager
def on_a_full_disk() -> Iterator[None]:
    """Standard output is on a full disk."""
    with pytest.MonkeyPatch.context() as patch, Path("/dev/full").open("w") as stream:
        patch.setattr(sys, "stdout", stream)
        yield
