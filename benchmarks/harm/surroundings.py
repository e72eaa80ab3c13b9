"""What is around a case: a folder of its own, and ears for what is said."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def copied(source: Path, to: Path) -> Iterator[Path]:
    """A copy of a folder as the working folder; it is gone afterwards."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(source, to, symlinks=True)
    before = Path.cwd()
    os.chdir(to)
    try:
        yield to
    finally:
        os.chdir(before)
        shutil.rmtree(to, ignore_errors=True)


class Ear:
    """What is written to one of the process' streams, by whatever part of it: libraries in C and
    Rust write too."""

    def __init__(self, stream: int) -> None:
        self.stream, self.before = stream, os.dup(stream)
        self.handle = os.memfd_create("said")
        _flush()
        os.dup2(self.handle, stream)

    def text(self) -> str:
        """All of it so far."""
        _flush()
        data = os.pread(self.handle, os.fstat(self.handle).st_size, 0)
        return data.decode(errors="backslashreplace")

    def close(self) -> None:
        """From here on the stream is as it was."""
        _flush()
        os.dup2(self.before, self.stream)
        os.close(self.before)
        os.close(self.handle)


@contextmanager
def listening() -> Iterator[tuple[Ear, Ear]]:
    """What is said inside on standard output and standard error."""
    ears = Ear(1), Ear(2)
    try:
        yield ears
    finally:
        for ear in ears:
            ear.close()


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
