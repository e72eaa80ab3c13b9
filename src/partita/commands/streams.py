"""Standard output and standard error that may be closed, full, or a pipe without a reader.

Long work goes on without a reader: its output is dropped, its files are written. A verb that only
prints ends with its reader, as programs in a pipeline do.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

Stream = Any  # a text stream: a file, or what replaces it
READER_LEFT = 128 + 13  # the exit code of a program that SIGPIPE ends; Windows lacks the name
OUTPUT = "standard output"
_NUMBERS = (0, 1, 2)
# Errors of a pipe whose reader has left, and of a terminal whose window was closed.
_LEFT = (errno.EPIPE, errno.EIO)


# Characters that control a terminal: control codes, and those that reverse the order of others.
_PICTURES = {code: chr(0x2400 + code) for code in range(32) if code not in (9, 10)}
_PICTURES |= {0x7F: chr(0x2421)} | dict.fromkeys(range(0x80, 0xA0), chr(0xFFFD))
_ORDER = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_PICTURES |= {code: f"\\u{code:04x}" for code in _ORDER}
UNSAFE = re.compile(f"[{re.escape(''.join(map(chr, _PICTURES)))}]")
"""Characters that must not be written to a terminal."""


def printable(text: str) -> str:
    """A text with terminal control characters replaced by visible symbols or their numbers."""
    return text.translate(_PICTURES)


class Outlet:
    """A text stream that survives errors: after the first one, what is written is dropped."""

    def __init__(self, stream: Stream, *, needed: bool) -> None:
        """A `needed` stream raises its error at once; SystemExit if its reader has left."""
        self.fault: OSError | None = None
        self._stream, self._needed = stream, needed

    def write(self, text: str) -> int:
        """Write a text, or drop it."""
        if self.fault is None:
            try:
                return int(self._stream.write(text))
            except OSError as error:
                self._give_up(error)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts, or drop them."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Flush the stream."""
        if self.fault is None:
            try:
                self._stream.flush()
            except OSError as error:
                self._give_up(error)

    def end(self) -> None:
        """Flush the stream without raising: at the end there is no work for an error to stop."""
        self._needed = False
        self.flush()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the stream has
        return getattr(self._stream, name)

    @property
    def left(self) -> bool:
        """Whether the error is a missing reader, as opposed to, say, a full disk."""
        return self.fault is not None and self.fault.errno in _LEFT

    def _give_up(self, error: OSError) -> None:
        self.fault = error
        error.filename = OUTPUT
        # Redirect the descriptor, so that the stream's buffer is dropped too when the interpreter
        # ends. (A stream without a descriptor has no such buffer.)
        with suppress(OSError, ValueError), Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), self._stream.fileno())
        if self._needed:
            raise SystemExit(READER_LEFT) if self.left else error


@contextmanager
def outlets(*, needed: bool) -> Iterator[Outlet]:
    """Wrap standard output, which is yielded, and standard error in outlets.

    The output is `needed` if printing is all the verb does. Closed streams become os.devnull.
    """
    _hold_numbers()
    before = sys.stdin, sys.stdout, sys.stderr
    with ExitStack() as opened:

        def there(stream: Stream, mode: str) -> Stream:
            return stream or opened.enter_context(Path(os.devnull).open(mode))

        out = Outlet(there(sys.stdout, "w"), needed=needed)
        error = Outlet(there(sys.stderr, "w"), needed=False)
        sys.stdin = there(sys.stdin, "r")
        sys.stdout, sys.stderr = out, error
        try:
            with _forgiving(out), _forgiving(error):
                yield out
        finally:
            sys.stdin, sys.stdout, sys.stderr = before
            out.end()
            error.end()


@contextmanager
def _forgiving(stream: Stream) -> Iterator[None]:
    """Inside the block, characters outside the encoding are written as numbers, such as \\u2592."""
    change, before = getattr(stream, "reconfigure", None), getattr(stream, "errors", None)
    if change is None:
        yield
        return
    change(errors="backslashreplace")
    try:
        yield
    finally:
        with suppress(OSError):  # it flushes
            change(errors=before)


def _hold_numbers() -> None:
    """Open the file descriptors 0, 1 and 2 if they are closed, as os.devnull.

    Otherwise the next opened file gets one of them, and output for the terminal, such as a warning
    of a library, is written into that file.
    """
    for number in _NUMBERS:
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
