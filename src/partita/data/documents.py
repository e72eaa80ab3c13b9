"""Documents from files, in bounded memory: text, JSONL and Parquet, plain or compressed.

A corpus may be larger than memory, and so may a single document, so documents come in pieces:
`Piece("...", ends=False)` means that the document goes on.
"""

from __future__ import annotations

import codecs
import gzip
import importlib
import json
import lzma
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedIOBase, BufferedReader
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from partita.errors import InputError, require

PIECE = 1 << 20  # characters: what is held in memory at a time
_COMPRESSED = {".xz": "xz", ".gz": "gz", ".zst": "zst"}
SEPARATORS = {"paragraph": "\n\n", "line": "\n", "file": ""}
"""What stands between documents of plain text, by what counts as one."""


class Piece(NamedTuple):
    """Part of a document, and whether the document ends here."""

    text: str
    ends: bool


@dataclass(frozen=True)
class Corpus:
    """Where text comes from and what counts as a document."""

    path: Path
    """A file, or a folder whose files are all read, in the order of their names."""
    field: str = "text"
    """The field that holds the text, in JSONL and Parquet."""
    documents: str = "paragraph"
    """In plain text a document is a "paragraph" (up to a blank line), a "line" or the "file"."""

    def __post_init__(self) -> None:
        require(
            self.documents in SEPARATORS,
            "documents",
            f"unknown name {self.documents!r}",
            f"known: {', '.join(SEPARATORS)}",
        )
        require(self.path.exists(), "path", f"{self.path} does not exist")

    def files(self) -> list[Path]:
        """The files of the corpus; hidden ones are left out."""
        if self.path.is_file():
            return [self.path]
        found = sorted(
            path
            for path in self.path.rglob("*")
            if path.is_file() and not any(p.startswith(".") for p in path.parts[-2:])
        )
        require(bool(found), "path", f"the folder {self.path} holds no files")
        return found

    def pieces(self) -> Iterator[Piece]:
        """All documents of all files, piece by piece. Empty documents are left out."""
        for path in self.files():
            kind = _kind(path)
            if kind == ".jsonl":
                yield from _whole(_json_lines(path, self.field))
            elif kind == ".parquet":
                yield from _whole(_parquet_rows(path, self.field))
            else:
                yield from _split(_text(path), SEPARATORS[self.documents])


def _kind(path: Path) -> str:
    """The suffix that says what a file holds, with compression taken off."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in _COMPRESSED:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def _package(name: str, path: Path, extra: str) -> ModuleType:
    """An optional package, or a word on how to get it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = name.split(".")[0]
        raise InputError(
            "path", f"{path} needs the package {package}", f"pip install 'partita[{extra}]'"
        ) from error


def _open(path: Path) -> BufferedIOBase:
    compression = _COMPRESSED.get(path.suffix.lower())
    if compression == "xz":
        return lzma.open(path)
    if compression == "gz":
        return gzip.open(path)
    if compression == "zst":
        zstandard = _package("zstandard", path, "zst")
        return BufferedReader(zstandard.open(path, "rb"))
    return path.open("rb")


def _text(path: Path) -> Iterator[str]:
    """Decoded chunks of a file. What is no text is refused with its place."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    consumed = 0
    try:
        with _open(path) as stream:
            while chunk := stream.read(PIECE):
                require(b"\0" not in chunk, "path", f"{path} is a binary file", "give text, UTF-8")
                yield decoder.decode(chunk)
                consumed += len(chunk)
            yield decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise InputError(
            "path", f"{path} is not UTF-8 near byte {consumed + error.start}", "convert it first"
        ) from error
    except (lzma.LZMAError, gzip.BadGzipFile, EOFError) as error:
        raise InputError("path", f"{path} is damaged or not what its name says: {error}") from error


def _split(chunks: Iterator[str], separator: str) -> Iterator[Piece]:
    """Chunks cut at a separator. A document longer than a chunk comes in several pieces.

    Newlines around a document are not part of it, except when the document is the whole file.
    """
    if not separator:
        inside = False
        for chunk in filter(None, chunks):
            yield Piece(chunk, ends=False)
            inside = True
        if inside:
            yield Piece("", ends=True)
        return
    carry, inside = "", False
    for chunk in chunks:
        *complete, carry = (carry + chunk).split(separator)
        for text in complete:
            text = text if inside else text.lstrip("\n")
            if text or inside:
                yield Piece(text, ends=True)
            inside = False
        carry = carry if inside else carry.lstrip("\n")
        if len(carry) > PIECE:
            # A separator may straddle two chunks: keep enough of the end to see it whole.
            cut = len(carry) - (len(separator) - 1)
            yield Piece(carry[:cut], ends=False)
            carry, inside = carry[cut:], True
    rest = carry.rstrip("\n")
    if rest or inside:
        yield Piece(rest, ends=True)


def _whole(texts: Iterator[str]) -> Iterator[Piece]:
    return (Piece(text, ends=True) for text in texts if text)


def _json_lines(path: Path, field: str) -> Iterator[str]:
    number, carry = 0, ""
    for chunk in _text(path):
        *complete, carry = (carry + chunk).split("\n")
        for line in complete:
            number += 1
            yield from _json_text(line, path, number, field)
    yield from _json_text(carry, path, number + 1, field)


def _json_text(line: str, path: Path, number: int, field: str) -> Iterator[str]:
    if not line.strip():
        return
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError("path", f"{path} line {number} is not JSON: {error.msg}") from error
    if not isinstance(row, dict) or not isinstance(row.get(field), str):
        has = ", ".join(map(str, row)) if isinstance(row, dict) else type(row).__name__
        raise InputError(
            "field", f"{path} line {number} has no text under {field!r}", f"it has: {has}"
        )
    yield row[field]


def _parquet_rows(path: Path, field: str) -> Iterator[str]:
    parquet = _package("pyarrow.parquet", path, "parquet")
    file = parquet.ParquetFile(path)
    names = file.schema_arrow.names
    require(field in names, "field", f"{path} has no column {field!r}", f"it has: {names}")
    for batch in file.iter_batches(batch_size=256, columns=[field]):
        yield from (value.as_py() for value in batch.column(0) if value.is_valid)
