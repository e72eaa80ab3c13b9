"""Files that are complete or not there, and their checksums."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path

from partita.errors import InputError, require

PARTIAL = ".partial-"
_OS_ERROR = re.compile(r"\(os error (\d+)\)")


def sha256(path: Path) -> str:
    """The checksum of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def to_disk(path: Path) -> None:
    """Wait until a file's or folder's contents are on the disk, not only on their way."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_folder(path: Path, argument: str) -> None:
    """Refuse a place where no folder can be made or filled: below a file, or closed to writing."""
    with _naming(path):
        place = next(folder for folder in (path, *path.parents) if folder.exists())
        problem = f"{place} is no folder" + (f", so {path} cannot be made" if place != path else "")
        require(place.is_dir(), argument, problem, "choose another place")
        usable = os.access(place, os.W_OK | os.X_OK)
        require(usable, argument, f"{place} is closed to writing", "choose another place")


def check_file(path: Path, argument: str, kind: str | None = None) -> None:
    """Refuse a place where no file can be written, and a name that promises another kind."""
    require(bool(path.name) and not path.is_dir(), argument, f"{path} is a folder", "name a file")
    if kind is not None:
        problem = f"{path} would hold a {kind[1:].upper()}, and its name says otherwise"
        require(path.suffix.lower() == kind, argument, problem, f"end its name in {kind}")
    check_folder(path.parent, argument)


@contextmanager
def parents_made(path: Path) -> Iterator[None]:
    """The folders above a path are there inside; an error takes away those that were not."""
    missing = list(takewhile(lambda folder: not folder.exists(), path.parents))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for folder in missing:
            with suppress(OSError):  # not made, or not empty: somebody else's work is in it
                folder.rmdir()
        raise


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """What goes wrong while something is written names it, not a part of it."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise
    except Exception as error:
        # Libraries that are written in Rust say the number of the system's error and no more.
        found = None if isinstance(error, InputError) else _OS_ERROR.search(str(error))
        if found is None:
            raise
        number = int(found[1])
        raise OSError(number, os.strerror(number), str(path)) from error


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A file to write; it gets its name when all of it is on the disk.

    Who reads the file that had the name before, or has mapped it into memory, keeps it.
    """
    partial = _partial(path)
    try:
        with _naming(path):
            yield partial
            to_disk(partial)
            partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_whole(path: Path, data: str | bytes) -> None:
    """Write a file that holds all of the data, or is as it was."""
    with whole_file(path) as partial:
        partial.write_bytes(data.encode() if isinstance(data, str) else data)


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill; it gets its name when everything in it is on the disk.

    What was there under that name before gives way. An error leaves everything as it was, a power
    cut at most a folder with another name (see `remove_partial`).
    """
    partial = _partial(folder)
    with parents_made(folder), _naming(folder):
        _remove(partial)  # a process that died may have had this one's number
        try:
            partial.mkdir()
            yield partial
            for path in sorted(partial.rglob("*")):
                to_disk(path)
            to_disk(partial)
            before = _set_aside(folder)
            try:
                partial.rename(folder)
            except BaseException:
                if os.path.lexists(before):
                    before.rename(folder)
                raise
            to_disk(folder.parent)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        _remove(before)


def remove_folder(folder: Path) -> None:
    """Remove a folder so that at no moment half of it stands under its name."""
    _remove(_set_aside(folder))


def remove_partial(folder: Path) -> None:
    """Remove what interrupted writers left in a folder."""
    for path in folder.glob(f"*{PARTIAL}*"):
        _remove(path)


def _partial(path: Path) -> Path:
    return path.with_name(f"{path.name}{PARTIAL}{os.getpid()}")


def _set_aside(path: Path) -> Path:
    """Give what has a name, if anything does, another one."""
    aside = path.with_name(f"{_partial(path).name}-old")
    _remove(aside)
    if os.path.lexists(path):
        path.rename(aside)
    return aside


def _remove(path: Path) -> None:
    """Remove a file, a folder or a link (never what it leads to); nothing may be there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
