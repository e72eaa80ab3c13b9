"""Image files by class, in a folder or in a tar, from which nothing is ever extracted.

    CLASS/NAME.png          or, with a training and a test set,
    train/CLASS/NAME.png    test/CLASS/NAME.png

One more folder may lie around all of it, as in most archives.
"""

from __future__ import annotations

import gzip
import lzma
import os
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from io import BufferedIOBase
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from partita.data.images.decoding import LARGEST_FILE, SUFFIXES
from partita.errors import InputError, require
from partita.files.reading import DamagedError, reading, require_file

SPLITS = ("train", "test")
_DEEPEST = 5  # levels of folders that are looked at; a fifth is refused already
_BLOCK = 512
_END = 2 * _BLOCK  # a tar ends with so many zeros at least
_CUT = 90  # characters of a name that is cut in a header, at least
_SIMILAR = 3  # characters in which a damaged name differs from itself, at most
_IMAGES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")  # how PNG and JPEG begin
_OPENERS: dict[str, Callable[[Path], BufferedIOBase]] = {
    ".tar": lambda path: path.open("rb"),
    ".tar.gz": gzip.GzipFile,
    ".tgz": gzip.GzipFile,
    ".tar.xz": lzma.LZMAFile,
    ".txz": lzma.LZMAFile,
}

Read = Callable[[], bytes]


class Place(NamedTuple):
    """The data split and the class of an image, by its name."""

    root: str
    """The folder around everything, if there is one."""
    split: str
    """The part of the data; empty if it has no parts."""
    label: str
    name: str


def folder_files(folder: Path) -> Iterator[tuple[str, Read | None]]:
    """The names below a folder, and how to read each; a folder is a name that cannot be read."""
    with reading(folder):
        # Folders of classes are often links; those that lead in circles are not followed for ever.
        for base, folders, names in os.walk(folder, onerror=_raise, followlinks=True):
            here = Path(base)
            deep = len(here.relative_to(folder).parts) >= _DEEPEST
            folders[:] = sorted(name for name in folders if not (deep or name.startswith(".")))
            yield from ((_name(here / inner, folder), None) for inner in folders)
            for name in sorted(names):
                yield _name(here / name, folder), partial(_read_file, here / name)


def _name(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()


def _read_file(path: Path) -> bytes:
    require_file(path)
    with reading(path):
        problem = f"{path} is too large for an image"
        require(path.stat().st_size <= LARGEST_FILE, "path", problem)
        return path.read_bytes()


def _raise(error: OSError) -> None:
    raise error


def archive_files(path: Path) -> Iterator[tuple[str, Read | None]]:
    """The same for a tar, in one pass: a file has to be read before the next name."""
    require_file(path)
    with reading(path), _tar_errors(), _opened(path) as raw:
        stream = _Tail(raw)
        with tarfile.open(  # type: ignore[call-overload]
            fileobj=stream, mode="r|", tarinfo=_Member
        ) as archive:
            for member in archive:
                name = _safe(member.name, path)
                _check_long_name(archive, member)
                if member.isdir():
                    yield name, None
                elif member.isfile():
                    yield name, partial(_read_member, archive, member, path)
                elif is_image(name):
                    raise InputError("path", f"{path}: {name} is a link, not an image")
        while stream.read(1 << 20):  # what follows is checked too: packed streams end in checksums
            pass
        # Python's module takes a tar that ends between two files for a whole one, and a header
        # that it cannot read for the end.
        if stream.filled > archive.offset:
            problem = "a damaged header, or something behind the end"
            raise DamagedError(f"what begins at byte {archive.offset:,} of the tar is {problem}")
        if stream.tail != bytes(_END):
            raise DamagedError("it is cut short")


class _Member(tarfile.TarInfo):
    """A file in a tar that remembers the name in its header, where a long one is cut."""

    short = ""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Member:
        member = super().frombuf(buf, encoding, errors)
        member.short = member.name
        return member


def _check_long_name(archive: tarfile.TarFile, member: _Member) -> None:
    """Refuse a long name that looks damaged: no checksum in a tar covers it.

    Most programs also write how it begins into the header, which has one (what is not ASCII may
    stand there as something else). Beyond that, the contents say whether a file is an image.
    """
    if not member.pax_headers and len(member.short) < _CUT:
        return
    pairs = zip(member.short, member.name, strict=False)
    other = sum(a != b for a, b in pairs if a != "?" and a.isascii() and b.isascii())
    if len(member.short) >= _CUT and 0 < other <= _SIMILAR:
        raise DamagedError(f"the name {member.name} is not what its header says")
    if member.isfile() and not is_image(member.name):
        stream = archive.extractfile(member)
        if stream is not None and stream.read(8).startswith(_IMAGES):
            raise DamagedError(f"{member.name} is an image by its contents, but not by its name")


def is_archive(path: Path) -> bool:
    """Whether a name is that of a tar."""
    return path.name.lower().endswith(tuple(_OPENERS))


def _opened(path: Path) -> BufferedIOBase:
    name = path.name.lower()
    return next(opened for suffix, opened in _OPENERS.items() if name.endswith(suffix))(path)


@contextmanager
def _tar_errors() -> Iterator[None]:
    try:
        yield
    except tarfile.TarError as error:
        raise DamagedError(str(error)) from error


class _Tail:
    """A stream that remembers its last bytes, and up to where it holds more than zeros."""

    def __init__(self, raw: BufferedIOBase) -> None:
        self.raw, self.tail = raw, b""
        self.size = self.filled = 0

    def read(self, size: int) -> bytes:
        data = self.raw.read(size)
        self.tail = (self.tail + data)[-_END:]
        if held := data.rstrip(b"\0"):
            self.filled = self.size + len(held)
        self.size += len(data)
        return data


def _safe(name: str, path: Path) -> str:
    """A name inside a tar, which must not lead out of it, although nothing is written anywhere."""
    inside = PurePosixPath(name)
    leads_out = inside.is_absolute() or ".." in inside.parts or "\\" in name or "\0" in name
    require(not leads_out, "path", f"{path} holds a name that leads out of it: {name!r:.200}")
    return inside.as_posix()


def _read_member(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> bytes:
    problem = f"{path}: {member.name} is too large for an image"
    require(member.size <= LARGEST_FILE, "path", problem)
    with reading(path), _tar_errors():
        stream = archive.extractfile(member)
        data = b"" if stream is None else stream.read()
        if len(data) != member.size:
            raise DamagedError(f"it ends inside {member.name}")
    return data


def is_image(name: str) -> bool:
    """Whether a name is that of an image, and not of a hidden one."""
    parts = PurePosixPath(name).parts
    hidden = any(part.startswith(".") and part != "." for part in parts)
    return not hidden and name.lower().endswith(SUFFIXES)


def place_of(name: str, path: Path) -> Place:
    """The data split and the class of an image with this name."""
    *above, label, _ = ("", "", *PurePosixPath(name).parts)
    split = above.pop() if above[-1] in SPLITS else ""
    remedy = "put images into CLASS/NAME.png, or train/CLASS/NAME.png and test/CLASS/NAME.png"
    fits = bool(label) and len(above) <= 3
    require(fits, "path", f"{path}: {name} lies in no folder of a class", remedy)
    return Place("/".join(filter(None, above)), split, label, name)
