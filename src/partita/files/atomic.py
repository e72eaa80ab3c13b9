"""Atomic writing of files and folders, and checksums."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path

from filelock import FileLock, Timeout

from partita.errors import InputError, require

PARTIAL = ".partial-"
_LOCK = ".lock"
WINDOWS = os.name == "nt"
_OURS = re.compile(rf"(.+){re.escape(PARTIAL)}[0-9]+-[0-9a-f]{{8}}")
_OS_ERROR = re.compile(r"\(os error (\d+)\)")


def sha256(path: Path) -> str:
    """The checksum of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def to_disk(path: Path) -> None:
    """Wait until a file's or folder's contents are on the disk, not only on their way.

    Windows waits for files alone, and for those that are open for writing.
    """
    if WINDOWS and path.is_dir():
        return
    handle = os.open(path, os.O_RDWR if WINDOWS else os.O_RDONLY)
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


def check_new(path: Path, argument: str) -> None:
    """Refuse a path that exists, or where no folder can be made."""
    there = os.path.lexists(path)
    require(not there, argument, f"{path} exists already", "choose another folder")
    _check_length(path, argument)
    check_folder(path.parent, argument)


def _check_length(path: Path, argument: str) -> None:
    """Refuse a name that is too long, also with what is added to it while it is written."""
    try:
        path.with_name(f"{path.name}{PARTIAL}{os.getpid()}-{'0' * 8}{_LOCK}").lstat()
    except OSError as error:
        fits = error.errno != errno.ENAMETOOLONG
        require(fits, argument, f"{path} is too long a name", "choose a shorter one")


def check_file(name: str | Path | None, argument: str, kind: str | None = None) -> None:
    """Refuse a place where no file can be written, and a name that promises another kind.

    None, for no file, is fine.
    """
    if name is None:
        return
    path = Path(name)
    require(bool(path.name) and not path.is_dir(), argument, f"{path} is a folder", "name a file")
    if kind is not None:
        problem = f"{path} would hold a {kind[1:].upper()}, and its name says otherwise"
        require(path.suffix.lower() == kind, argument, problem, f"end its name in {kind}")
    _check_length(path, argument)
    check_folder(path.parent, argument)


@contextmanager
def parents_made(path: Path) -> Iterator[None]:
    """Make the folders above a path; an error inside removes those that were made."""
    missing = list(takewhile(lambda folder: not folder.exists(), path.parents))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for folder in missing:
            with suppress(OSError):  # not made, or not empty: other files are in it
                folder.rmdir()
        raise


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Errors of writing name the path, not a temporary one."""
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
    """A temporary file to write; it is renamed to `path` when all of it is on the disk.

    Processes that read the file before it, or have mapped it into memory, keep that one.
    """
    with _naming(path), _reserved(path) as partial:
        try:
            yield partial
            to_disk(partial)
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def write_whole(path: Path, data: str | bytes) -> None:
    """Write a file atomically."""
    with whole_file(path) as partial:
        partial.write_bytes(data.encode() if isinstance(data, str) else data)


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder to fill; it is renamed to `folder` when all of it is on the disk.

    It replaces what had the name before. An error leaves everything as it was; a killed process or
    a power cut leaves at most what the next writer there removes (`clear_leftovers`).
    """
    with parents_made(folder), _naming(folder), _reserved(folder) as partial:
        try:
            partial.mkdir()
            yield partial
            for path in sorted(partial.rglob("*")):
                to_disk(path)
            to_disk(partial)
            before = _before(partial)
            if os.path.lexists(folder):
                folder.rename(before)
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
    """Remove a folder atomically: it is renamed before it is emptied."""
    if os.path.lexists(folder):
        with _reserved(folder) as aside:
            folder.rename(aside)
            _remove(aside)


# What killed writers leave -----------------------------------------------------------------------


def clear_leftovers(folder: Path) -> None:
    """Remove what killed writers left in a folder, and nothing else.

    A writer holds a lock beside what it writes, which the system frees when its process ends: a
    lock that can be taken is a dead writer's. Where files cannot be locked, nothing is removed.
    """
    try:
        names = [path.name for path in folder.iterdir() if path.name.endswith(_LOCK)]
    except OSError:
        return
    for ours in filter(None, (_OURS.fullmatch(name.removesuffix(_LOCK)) for name in names)):
        lock = FileLock(folder / f"{ours[0]}{_LOCK}")
        try:
            lock.acquire(timeout=0)
        except (OSError, NotImplementedError):
            continue  # its writer is alive, or it is not ours to touch
        with _unlocking(lock, folder / ours[0]), suppress(OSError):
            _settle(folder / ours[0], folder / ours[1])


def remove_partial(folder: Path) -> None:
    """The same for a folder of which this process is the only owner: what has no lock goes too."""
    clear_leftovers(folder)
    held = {path.name.removesuffix(_LOCK) for path in folder.glob(f"*{PARTIAL}*{_LOCK}")}
    for path in folder.glob(f"*{PARTIAL}*"):
        if not path.name.startswith(tuple(held)):
            _remove(path)


@contextmanager
def _reserved(path: Path) -> Iterator[Path]:
    """A temporary name beside a path that no other process uses, by a lock."""
    clear_leftovers(path.parent)
    own = path.with_name(f"{path.name}{PARTIAL}{os.getpid()}")
    for left in (own, _before(own)):  # had no locks once: of a dead process with this number
        _remove(left)
    partial, lock = _locked_name(own)
    with _unlocking(lock, partial):
        yield partial


def _locked_name(own: Path) -> tuple[Path, FileLock]:
    """A name that was never used before, with its lock."""
    while True:
        partial = own.with_name(f"{own.name}-{secrets.token_hex(4)}")
        lock = FileLock(f"{partial}{_LOCK}")
        try:
            lock.acquire(timeout=0)
        except Timeout:  # another process that clears leftovers has it, and removes it
            continue
        except (OSError, NotImplementedError):  # where files cannot be locked, they are written
            pass
        return partial, lock


@contextmanager
def _unlocking(lock: FileLock, partial: Path) -> Iterator[None]:
    """Let go of a lock in the end; its file stays as long as there is something to clear away."""
    try:
        yield
    finally:
        lock.release()
        if not any(map(os.path.lexists, (partial, _before(partial)))):
            with suppress(OSError):
                Path(lock.lock_file).unlink()


def _settle(partial: Path, path: Path) -> None:
    """Finish or undo what a dead writer began."""
    before = _before(partial)
    if os.path.lexists(before) and not os.path.lexists(path):
        # It died between two renames. What gives way does so only when all the rest is complete.
        (partial if os.path.lexists(partial) else before).rename(path)
    for left in (partial, before):
        _remove(left)


def _before(partial: Path) -> Path:
    """The name for the folder that is replaced."""
    return partial.with_name(f"{partial.name}-old")


def _remove(path: Path) -> None:
    """Remove a file, a folder or a link (never what it leads to); nothing may be there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
