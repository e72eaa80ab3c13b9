"""Does a container's own check notice that a file is damaged? Readers that are not the library's.

They see what could be seen, so that a result that differs all the same is called silent.
"""

from __future__ import annotations

import gzip
import io
import lzma
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet
import zstandard

_BLOCK = 512
_PNG = b"\x89PNG\r\n\x1a\n"
_ZIP = (".npz", ".ckpt")


class NoticedError(Exception):
    """A check failed."""


def notices(path: Path) -> bool:
    """Whether checks in the file tell that it is damaged; a file without checks tells nothing."""
    data = path.read_bytes()
    names = path.name.lower().split(".")[1:]
    try:
        for suffix in reversed(names):
            unpack = _UNPACK.get(f".{suffix}")
            data = data if unpack is None else unpack(data)
    except Exception:  # whatever a damaged file raises
        return True
    return False


def _gzip(data: bytes) -> bytes:
    """Sums and sizes; an empty file is no gzip file."""
    if not data:
        raise NoticedError
    return gzip.decompress(data)


def _zstd(data: bytes) -> bytes:
    """Frames one after the other, each with its sum, and nothing else."""
    found = []
    while data:
        frame = zstandard.ZstdDecompressor().decompressobj()
        found.append(frame.decompress(data))
        if not frame.eof:
            raise NoticedError
        data = frame.unused_data
    return b"".join(found)


def _zip(data: bytes) -> bytes:
    """The sum of every entry."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if archive.testzip() is not None:
            raise NoticedError
    return data


def _tar(data: bytes) -> bytes:
    """The sum of every head, an end, and the pictures inside."""
    at = 0
    while any(head := data[at : at + _BLOCK]):
        held = sum(head[:148]) + sum(head[156:]) + 8 * 32
        if len(head) < _BLOCK or int(head[148:156].split(b"\0")[0], 8) != held:
            raise NoticedError
        size, begin = int(head[124:136].rstrip(b"\0 "), 8), at + _BLOCK
        inside = data[begin : begin + size]
        if len(inside) < size:
            raise NoticedError
        if head[:100].rstrip(b"\0").endswith(b".png"):
            _png(inside)
        at = begin + -(-size // _BLOCK) * _BLOCK
    if len(data) < at + 2 * _BLOCK or any(data[at:]):
        raise NoticedError
    return data


def _png(data: bytes) -> bytes:
    """The sum of every part, up to the last."""
    if data[:8] != _PNG:
        raise NoticedError
    at, kind = 8, b""
    while kind != b"IEND":
        size, kind = struct.unpack(">I4s", data[at : at + 8])
        inside = data[at + 4 : at + 8 + size]
        (held,) = struct.unpack(">I", data[at + 8 + size : at + 12 + size])
        if zlib.crc32(inside) != held:
            raise NoticedError
        at += 12 + size
    return data


def _parquet(data: bytes) -> bytes:
    """The sums of pages, where they were written, of the column that commands read."""
    stream = io.BytesIO(data)
    pyarrow.parquet.read_table(stream, columns=["text"], page_checksum_verification=True)
    return data


_UNPACK: dict[str, Callable[[bytes], bytes]] = {
    ".gz": _gzip,
    ".xz": lzma.decompress,
    ".zst": _zstd,
    ".tar": _tar,
    ".png": _png,
    ".parquet": _parquet,
    **dict.fromkeys(_ZIP, _zip),
}
