"""Read a file that may do harm, under limits of time and memory, and record what it does."""

from __future__ import annotations

import contextlib
import resource
import signal
import threading
from pathlib import Path
from typing import Any

from partita.errors import InputError

SECONDS = 10.0
MEMORY = 1 << 30
FORBIDDEN = ("pickle.", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "pty.")
FORBIDDEN += ("subprocess.", "socket.", "urllib.", "import", "exec", "compile", "code.", "marshal.")

watched: list[tuple[str, Any]] | None = None


def note(event: str, arguments: Any) -> None:
    if watched is None or threading.current_thread() is not threading.main_thread():
        return
    if event.startswith(("open", *FORBIDDEN)):
        watched.append((event, arguments[0] if arguments else None))


class Hung(BaseException):
    """Out of time. Not an `Exception`, so that the library cannot catch it."""


@contextlib.contextmanager
def supervised(folder: Path):
    """Limit time and memory, and record what is imported, opened and run."""
    global watched
    hung = []

    def ring(*_: object) -> None:
        hung.append(True)
        raise Hung

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGALRM, ring)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, before[1]))
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    events = watched = []
    try:
        yield
    finally:
        watched = None
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert not hung
    for event, subject in events:
        inside = event == "open" and Path(str(subject)).is_relative_to(folder)
        assert inside, f"{event} of {subject}"


def outcome(folder: Path, action: Any) -> Any:
    """The result of an action, or None after an `InputError`; other errors are raised."""
    problem = ""
    with supervised(folder):
        try:
            return action()
        except InputError as error:
            problem = str(error)
    assert "alloc" not in problem.lower()  # a failed allocation of too much memory
    return None
