"""What other systems lack is not asked for; what they do otherwise is respected.

None of these tests runs on Windows: they keep out what is known to fail there.
"""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest
from filelock import FileLock

from partita.errors import InputError
from partita.files import atomic as files
from partita.files.atomic import whole_folder, write_whole
from partita.training.run_folder import LOCK, locked

SOURCES = sorted((Path(__file__).parents[2] / "src/partita").rglob("*.py"))
# Of the standard library, on Unix alone.
MODULES = {
    *("crypt", "curses", "fcntl", "grp", "nis", "posix", "pty", "pwd", "readline", "resource"),
    *("spwd", "syslog", "termios", "tty"),
}
NAMES = {
    "os": {
        *("O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_SYNC", "WNOHANG", "chown"),
        *("fchmod", "fchown", "fdatasync", "fork", "forkpty", "geteuid", "getgid", "getloadavg"),
        *("getpgid", "getuid", "killpg", "mkfifo", "nice", "posix_fadvise", "posix_fallocate"),
        *("register_at_fork", "sched_getaffinity", "setsid", "statvfs", "sync", "sysconf", "uname"),
        *("wait", "wait3", "wait4"),
    },
    "signal": {
        *("ITIMER_REAL", "SIGALRM", "SIGCHLD", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT"),
        *("SIGUSR1", "SIGUSR2", "SIGXCPU", "SIGXFSZ", "alarm", "pause", "setitimer", "sigwait"),
    },
}


def unguarded(tree):
    """The nodes of a program, but for branches that ask which system it runs on."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and "sys.platform" in ast.unparse(node.test)):
            yield node
            yield from unguarded(node)


def lacking(program):
    """What a program asks for that Windows does not have."""
    for node in unguarded(ast.parse(program)):
        if isinstance(node, ast.Import):
            yield from MODULES & {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = {name.name for name in node.names}
            yield from MODULES & {node.module}
            yield from NAMES.get(node.module, set()) & names
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield from NAMES.get(node.value.id, set()) & {node.attr}


def test_nothing_is_asked_for_that_windows_lacks():
    assert len(SOURCES) > 200
    found = {str(path): names for path in SOURCES if (names := [*lacking(path.read_text())])}
    assert found == {}


@pytest.mark.parametrize(
    "program",
    [
        "import fcntl",
        "def f():\n    from resource import getrusage",
        "import os\nos.sysconf('SC_PAGE_SIZE')",
        "from signal import SIGKILL",
    ],
)
def test_what_windows_lacks_is_seen(program):
    assert len([*lacking(program)]) == 1


def test_folders_are_not_waited_for_where_they_cannot_be(tmp_path, monkeypatch):
    """Windows opens no folder, and waits for a file only if it is open for writing."""
    monkeypatch.setattr(files, "WINDOWS", True)
    opened, plain = [], os.open

    def recorded(path, flags, *more):
        opened.append((Path(path), flags))
        return plain(path, flags, *more)

    monkeypatch.setattr(files.os, "open", recorded)
    with whole_folder(tmp_path / "new") as partial:
        (partial / "inside").mkdir()
        (partial / "inside/file").write_text("text")
    write_whole(tmp_path / "other", "more")
    waited = [(path, flags) for path, flags in opened if path.suffix != ".lock"]
    assert next(path.name for path, _ in waited) == "file"
    assert len(waited) == 2
    assert all(flags == os.O_RDWR for _, flags in waited)
    assert (tmp_path / "new/inside/file").read_text() == "text"


# Locks of runs -----------------------------------------------------------------------------------


def refusal(folder):
    """What another process is told that would train in a folder."""
    with pytest.raises(InputError) as error, locked(folder):
        pass
    return str(error.value)


def test_a_folder_is_locked_until_it_is_let_go(tmp_path):
    with locked(tmp_path):
        assert refusal(tmp_path) == f"out: another process is training in {tmp_path}"
        assert refusal(tmp_path) == f"out: another process is training in {tmp_path}"
    with locked(tmp_path):
        assert (tmp_path / LOCK).exists()


def test_a_run_that_failed_leaves_no_lock_behind(tmp_path):
    folder = tmp_path / "new/run"
    with pytest.raises(ZeroDivisionError), locked(folder):
        _ = 1 / 0
    assert list(tmp_path.iterdir()) == []


def test_where_files_cannot_be_locked_nobody_trains(tmp_path, monkeypatch):
    def cannot(*_, **__):
        raise NotImplementedError("flock")

    monkeypatch.setattr(FileLock, "acquire", cannot)
    folder = tmp_path / "run"
    assert refusal(folder) == (
        f"out: {folder} lies where files cannot be locked; choose another place"
    )
    assert list(tmp_path.iterdir()) == []
