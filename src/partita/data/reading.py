"""Reading what others wrote: files that may be damaged, packages that may be missing."""

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
from partita.files import sha256


class DamagedError(Exception):
    """What a file holds is not what its name says."""


@contextmanager
def reading(path: Path, argument: str = "path", remedy: str = "") -> Iterator[None]:
    """What can go wrong with a file, as an error that names it."""
    try:
        yield
    except (DamagedError, lzma.LZMAError, zlib.error, gzip.BadGzipFile, EOFError) as error:
        problem = f"{path} is damaged or not what its name says: {error}"
        raise InputError(argument, problem) from error
    except OSError as error:
        problem = f"{path} cannot be read: {error.strerror or error}"
        raise InputError(argument, problem, remedy) from error


def require_file(path: Path, argument: str = "path") -> None:
    """Refuse what is no ordinary file: a pipe would be waited for, and a device has no end."""
    with reading(path, argument):
        ordinary = path.is_file() or not os.path.lexists(path)  # who opens it says what is missing
        require(ordinary, argument, f"{path} is no file")


def files_under(folder: Path) -> list[Path]:
    """All files in a folder and below, by name, without hidden ones (and those in hidden folders).

    A folder that cannot be read is an error, not an empty one.
    """
    found: list[Path] = []
    with reading(folder):
        for place, folders, names in os.walk(folder, onerror=_raise):
            folders[:] = [name for name in folders if not name.startswith(".")]
            found += [Path(place, name) for name in names if not name.startswith(".")]
    return sorted(path for path in found if path.is_file())


def _raise(error: OSError) -> None:
    raise error


def content_hash(path: Path, argument: str = "path") -> bytes:
    """The SHA-256 of a file."""
    with reading(path, argument):
        return bytes.fromhex(sha256(path))


def package(name: str, path: str | Path, extra: str) -> ModuleType:
    """An optional package, or a word on how to get it."""
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
