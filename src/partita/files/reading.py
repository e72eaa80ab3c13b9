"""Read files that may be damaged, and import packages that may be missing."""

from __future__ import annotations

import gzip
import importlib
import lzma
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from partita.errors import InputError, require
from partita.files.atomic import sha256


class DamagedError(Exception):
    """What a file holds is not what its name says."""


@contextmanager
def reading(path: Path, argument: str = "path", remedy: str = "") -> Iterator[None]:
    """Errors of reading a file become an `InputError` that names it."""
    try:
        yield
    except (DamagedError, lzma.LZMAError, zlib.error, gzip.BadGzipFile, EOFError) as error:
        problem = f"{path} is damaged or not what its name says: {error}"
        raise InputError(argument, problem) from error
    except OSError as error:
        problem = f"{path} cannot be read: {error.strerror or error}"
        raise InputError(argument, problem, remedy) from error


def require_file(path: Path, argument: str = "path") -> None:
    """Refuse what is no regular file: a pipe may block, and a device has no end."""
    with reading(path, argument):
        ordinary = path.is_file() or not os.path.lexists(path)  # to open it says what is missing
        require(ordinary, argument, f"{path} is no file")


def files_under(folder: Path) -> list[Path]:
    """All files in a folder and below, by name, without hidden ones (and those in hidden folders).

    Links are followed, but for those that lead back to a folder above them, whose files are there
    already. A folder that cannot be read, or a link to nothing, is an error, so that no file is
    left out unnoticed.
    """
    found: list[Path] = []
    with reading(folder):
        left = [(folder, frozenset([_same(folder)]))]
        while left:
            place, above = left.pop()
            with os.scandir(place) as entries:
                visible = [entry for entry in entries if not entry.name.startswith(".")]
            for entry in visible:
                path = Path(place, entry.name)
                if not entry.is_dir():
                    found.append(path)
                elif (same := _same(path)) not in above:
                    left.append((path, above | {same}))
        for path in found:
            problem = f"{path} is a link to nothing"
            require(path.exists(), "path", problem, "remove it, or bring back what it leads to")
    return sorted(path for path in found if path.is_file())


def _same(folder: Path) -> tuple[int, int]:
    """What identifies a folder, whatever its name: device and inode."""
    status = folder.stat()
    return status.st_dev, status.st_ino


Stamps = dict[Path, tuple[int, int, int]]
"""Inode, size and time of change of files: another value is another content."""


def stamps(files: list[Path]) -> Stamps:
    """The state of files, for `refuse_changes` after they have been read."""
    found = {}
    for path in files:
        with reading(path):
            status = path.stat()
            found[path] = status.st_ino, status.st_size, status.st_mtime_ns
    return found


def refuse_changes(before: Stamps, files: list[Path]) -> None:
    """Refuse files that are not what they were: they would be cached under their old content."""
    after = stamps(files)
    for path in sorted(before.keys() | after.keys()):
        same = before.get(path) == after.get(path)
        remedy = "give the same command again when nobody writes to it"
        require(same, "path", f"{path} changed while it was read", remedy)


def content_hash(path: Path, argument: str = "path") -> bytes:
    """The SHA-256 of a file."""
    with reading(path, argument):
        return bytes.fromhex(sha256(path))


def package(name: str, path: str | Path, extra: str) -> ModuleType:
    """Import an optional package; an error says how to install it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = name.split(".")[0]
        raise InputError(
            "path", f"{path} needs the package {missing}", f"pip install 'partita[{extra}]'"
        ) from error


def as_label(value: object, place: str, label: str) -> str:
    """A class as text; whole numbers are names too."""
    fits = isinstance(value, str | int) and value != ""
    require(fits, "label", f"{place} has no class under {label!r}", "name the field that has it")
    return str(value)
