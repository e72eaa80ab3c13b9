"""Read files of text in bounded memory: unpack, decode, and refuse what is no text.

A file that unpacks to a thousand times its size is read like any other: some of it at a time. The
ends of compressed files are checked here, since fsspec takes half a .zst file for a whole one.
"""

from __future__ import annotations

import codecs
import gzip
import io
import lzma
from collections.abc import Callable, Iterator
from io import BufferedIOBase, BufferedReader
from itertools import chain
from pathlib import Path

from partita.errors import InputError, require
from partita.files.reading import DamagedError, package, reading, require_file

PIECE = 1 << 20  # what is held in memory at a time
_UNPACK: dict[str, Callable[[BufferedReader], BufferedIOBase]] = {
    ".xz": lzma.LZMAFile,
    ".gz": lambda raw: gzip.GzipFile(fileobj=raw),
}
COMPRESSED = (*_UNPACK, ".zst")
# Compressed bytes that are unpacked at a time: four of them may hold 128 KiB, so this is 32 MiB.
_ZST_INPUT = 1 << 10
# How files of other encodings begin; the longer marks come first.
_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
_LOOKED_AT = 1 << 10  # bytes that tell UTF-16 without a mark from a binary file


def decoded(path: Path, size: int) -> Iterator[str]:
    """Pieces of a file of about `size` bytes each, whose line ends are all "\\n".

    The byte order mark, with which some programs begin a file, is no part of the text.
    """
    chunks = unpacked(path, size)
    head = _beginning(chunks)
    for mark, name in _MARKS.items():
        problem = f"{path} is {name}, and UTF-8 is read"
        require(not head.startswith(mark), "path", problem, _convert(name))
    read = len(codecs.BOM_UTF8) if head.startswith(codecs.BOM_UTF8) else 0
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")(), translate=True)
    for chunk in chain([head[read:]], chunks, [b""]):
        if b"\0" in chunk:
            raise _binary(path, chunk, read)
        read += len(chunk)
        try:
            yield decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            place = read - len(error.object) + error.start
            problem = f"{path} is not UTF-8 near byte {place:,} ({error.object[error.start]:#04x})"
            raise InputError("path", problem, _convert("LATIN1")) from error


def is_marked(path: Path) -> bool:
    """Whether a file begins with the byte order mark of UTF-8."""
    return _beginning(unpacked(path, len(codecs.BOM_UTF8))).startswith(codecs.BOM_UTF8)


def unpacked(path: Path, size: int) -> Iterator[bytes]:
    """What a file holds, with compression taken off, in chunks of about `size` bytes."""
    require_file(path)
    suffix = path.suffix.lower()
    with reading(path), path.open("rb") as raw:
        if suffix in COMPRESSED and not raw.peek(1):  # cut to nothing: packed nothing has a head
            raise DamagedError("it is empty")
        if suffix == ".zst":
            yield from _gathered(_zst_chunks(raw, path), size)
            return
        stream = _UNPACK[suffix](raw) if suffix in _UNPACK else raw
        while chunk := stream.read(size):
            yield chunk


def _beginning(chunks: Iterator[bytes]) -> bytes:
    """The first chunks, until there is enough to see a mark."""
    head = b""
    longest = max(map(len, _MARKS))
    while len(head) < longest and (chunk := next(chunks, b"")):
        head += chunk
    return head


def _convert(encoding: str) -> str:
    return f"convert it first, such as by iconv -f {encoding} -t UTF-8 OLD > NEW"


def _binary(path: Path, chunk: bytes, before: int) -> InputError:
    """What a chunk with zeros in it is; `before` is how many bytes come before it."""
    start = chunk[:_LOOKED_AT]
    zeros = [part.count(0) for part in (start[::2], start[1::2])]
    # In UTF-16 every letter of the Latin alphabet has a zero, always on the same side.
    if min(zeros) == 0 and max(zeros) > len(start) // 4:
        name = "UTF-16BE" if zeros[0] else "UTF-16LE"
        return InputError("path", f"{path} seems to be {name}, and UTF-8 is read", _convert(name))
    problem = f"{path} is a binary file: it has a zero at byte {before + chunk.index(0):,}"
    return InputError("path", problem, "give text, UTF-8")


def _gathered(chunks: Iterator[bytes], size: int) -> Iterator[bytes]:
    """The same bytes in chunks of at least `size`, but for the last one."""
    held: list[bytes] = []
    count = 0
    for chunk in filter(None, chunks):
        held.append(chunk)
        count += len(chunk)
        if count >= size:
            yield b"".join(held)
            held, count = [], 0
    if held:
        yield b"".join(held)


def _zst_chunks(raw: BufferedReader, path: Path) -> Iterator[bytes]:
    """Frame by frame: the package's own reader takes the end of a cut file for that of the text."""
    zstandard = package("zstandard", path, "zst")
    context = zstandard.ZstdDecompressor(max_window_size=1 << 31)  # some corpora use --long=31
    frame, inside = context.decompressobj(), False
    while data := raw.read(_ZST_INPUT):
        while data:
            try:
                yield frame.decompress(data)
            except zstandard.ZstdError as error:
                raise DamagedError(str(error)) from error
            data, inside = frame.unused_data, not frame.eof
            if frame.eof:
                frame = context.decompressobj()
    if inside:
        raise DamagedError("it ends inside a frame")
