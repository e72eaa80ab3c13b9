"""Processes that cost milliseconds: children of one that has imported everything already.

The parent computes nothing and has a single thread, so that a child is as good as a new process.
Every child dies with its parent. Linux alone: limits and peaks of memory are read from /proc.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import resource
import select
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from partita.commands import VERBS, main, module_of

_DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_HELD_BACK = (signal.SIGINT, signal.SIGTERM)
# What commands import on their way.
_LATER = (
    "matplotlib.pyplot",
    "PIL.Image",
    "PIL.ImageOps",
    "sklearn.datasets",
    "pyarrow.parquet",
    "zstandard",
    "partita.data.images.pictures",
    "partita.data.saved_tokenizers",
)


def preload() -> None:
    """Import what commands need, before the first fork."""
    torch.set_num_threads(1)
    for name in _LATER:
        importlib.import_module(name)
    for verb in VERBS:
        module_of(verb)


def die_with_parent() -> None:
    """Let the system kill this process when the one that started it is gone, however it went."""
    ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL)


@dataclass(frozen=True)
class Child:
    """A process that was started here."""

    pid: int
    handle: int

    def wait(self, seconds: float) -> int | None:
        """Its exit code (negative for the signal that ended it), or None if it still runs."""
        if not select.select([self.handle], [], [], max(seconds, 0.0))[0]:
            return None
        _, status = os.waitpid(self.pid, 0)
        os.close(self.handle)
        return os.waitstatus_to_exitcode(status)

    def send(self, number: signal.Signals) -> None:
        """Send a signal; a child that has ended but was not waited for takes no harm."""
        os.kill(self.pid, number)

    def end(self) -> None:
        """Kill it and wait."""
        self.send(signal.SIGKILL)
        self.wait(60.0)


def start(body: Callable[[], int]) -> Child:
    """A child that does something, whose result is its exit code.

    It hears neither Ctrl-C nor SIGTERM until it asks for them.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD_BACK)
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return Child(pid, os.pidfd_open(pid))
    code = 1
    try:
        die_with_parent()
        code = body()
    except BaseException:  # as Python itself does it at the end
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def start_command(
    words: Sequence[str],
    place: Path,
    log: Path,
    *,
    cold: bool = False,
    before: Callable[[], None] | None = None,
) -> Child:
    """A command of the library in a folder; `cold` starts a new interpreter for it, `before` is
    done before each change of files there, by a process that is not cold."""

    def body() -> int:
        os.chdir(place)
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD_BACK)
            if before is not None:
                before_changes(before)
            if cold:
                os.execv(sys.executable, [sys.executable, "-m", "partita", *words])
            return main(words)
        except KeyboardInterrupt as error:
            if _depth(error) > 2:
                raise
            return 128 + signal.SIGINT  # it came before the first line of the command

    return start(body)


def _depth(error: BaseException) -> int:
    """How many calls deep it was raised."""
    return len(traceback.extract_tb(error.__traceback__))


def run_command(words: Sequence[str], place: Path, log: Path, seconds: float) -> int | None:
    """The exit code of a command, None if it took too long."""
    child = start_command(words, place, log)
    code = child.wait(seconds)
    if code is None:
        child.end()
    return code


# Memory ------------------------------------------------------------------------------------------


def limit_memory(more: int) -> None:
    """From here on this process may map so many bytes more than it has, for what is asked for but
    never touched counts too."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class Peak:
    """The most memory that was in use since this was made."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")
        self.before = _status("VmRSS")

    def grown(self) -> int:
        """Bytes above what was in use before."""
        return _status("VmHWM") - self.before


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{key}:"))
    return int(line.split()[1]) << 10


# Files -------------------------------------------------------------------------------------------

_CHANGES = (
    "os.link",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.symlink",
    "os.truncate",
)
_TO_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def before_changes(act: Callable[[], None]) -> None:
    """From here on this process does something before each change of files in the working folder:
    one is opened to be written, made, renamed or removed. It cannot be undone."""
    place = f"{Path.cwd()}{os.sep}"

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _CHANGES and not (event == "open" and arguments[2] & _TO_WRITE):
            return
        if isinstance(arguments[0], str | bytes | os.PathLike):  # or else it is open already
            path = os.path.abspath(os.fsdecode(arguments[0]))  # noqa: PTH100 - links are not followed
            if path.startswith(place):
                act()

    sys.addaudithook(note)


# Code --------------------------------------------------------------------------------------------

RUN: list[str] = []
"""What was run since this was last cleared, of what a reader of files must not run."""
_NEVER = (
    "os.system",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "os.spawn",
    "pty.",
    "subprocess.",
    "socket.connect",
    "pickle.find_class",
)


def watch_code() -> None:
    """From here on this process notes what is run. It cannot be undone."""

    def note(event: str, arguments: tuple[object, ...]) -> None:
        if event.startswith(_NEVER):
            RUN.append(f"{event}{arguments!r:.500}")

    sys.addaudithook(note)
