"""Documents in bounded memory: text, JSONL and Parquet, plain or compressed, and data sets.

A corpus may be larger than memory, and so may a single document, so documents come in pieces:
`Piece("...", ends=False)` means that the document goes on.
"""

from __future__ import annotations

import codecs
import gzip
import io
import json
import lzma
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BufferedIOBase, BufferedReader
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from partita.data.hugging_face import PREFIX, DataSet
from partita.data.reading import (
    DamagedError,
    as_label,
    content_hash,
    files_under,
    package,
    reading,
)
from partita.errors import InputError, require

PIECE = 1 << 20  # characters: what is held in memory at a time
_UNPACK: dict[str, Callable[[BufferedReader], BufferedIOBase]] = {
    ".xz": lzma.LZMAFile,
    ".gz": lambda raw: gzip.GzipFile(fileobj=raw),
}
_COMPRESSED = (*_UNPACK, ".zst")
ZST_INPUT = 1 << 15  # compressed bytes at a time; text is rarely more than ten times as long
SEPARATORS = {"paragraph": "\n\n", "line": "\n", "file": ""}
"""What stands between documents of plain text, by what counts as one."""


LABELS = ("file", "folder")
"""What a document of plain text can be labelled by: its file's name, or that of the folder."""


class Piece(NamedTuple):
    """Part of a document, whether the document ends here, and its class, if it has one."""

    text: str
    ends: bool
    label: str | None = None


@dataclass(frozen=True)
class Corpus:
    """Where text comes from and what counts as a document."""

    path: str | Path
    """A file, a folder whose files are all read, in the order of their names, or
    "hf:NAME?config=...&split=..." for a Hugging Face data set."""
    field: str = "text"
    """The field that holds the text, in JSONL, Parquet and data sets."""
    documents: str = "paragraph"
    """In plain text a document is a "paragraph" (up to a blank line), a "line" or the "file"."""
    label: str | None = None
    """What a document's class is: a field of JSONL, Parquet and data sets, or, for plain text,
    "file" (the name, without suffixes) or "folder" (the name of the folder that holds the file)."""

    def __post_init__(self) -> None:
        require(
            self.documents in SEPARATORS,
            "documents",
            f"unknown name {self.documents!r}",
            f"known: {', '.join(SEPARATORS)}",
        )
        if self.data_set is None:
            _check_place(Path(self.path))

    @property
    def data_set(self) -> DataSet | None:
        """The Hugging Face data set, if that is what the path names."""
        path = str(self.path)
        return DataSet.parse(path) if path.startswith(PREFIX) else None

    def files(self) -> list[Path]:
        """The files of the corpus; hidden ones are left out. A data set has none of its own."""
        if self.data_set is not None:
            return []
        place = Path(self.path)
        found = [place] if place.is_file() else files_under(place)
        require(bool(found), "path", f"the folder {place} holds no files", "name another one")
        return found

    def identity(self) -> Iterator[tuple[str, bytes]]:
        """Names and content hashes of everything that is read."""
        if (data_set := self.data_set) is not None:
            yield "", data_set.load().identity
        for path in self.files():
            # The name of a single file does not matter, only what it says of its kind.
            name = _kind(path) if path == self.path else path.name
            yield name, content_hash(path)

    def pieces(self) -> Iterator[Piece]:
        """All documents of all files, piece by piece. Empty documents are left out."""
        if (data_set := self.data_set) is not None:
            yield from _whole(data_set.load().texts(self.field, self.label))
        for path in self.files():
            name = self.label_of(path)
            field = self.label if name is None else None  # where the class of a row stands
            kind = _kind(path)
            if kind == ".jsonl":
                found = _whole(_json_texts(path, self.field, field))
            elif kind == ".parquet":
                found = _whole(_parquet_rows(path, self.field, field))
            else:
                known = f"known for plain text: {', '.join(LABELS)}"
                problem = f"{path} is plain text, which has no field {field!r}"
                require(field is None, "label", problem, known)
                found = _split(_text(path), SEPARATORS[self.documents])
            yield from found if name is None else (piece._replace(label=name) for piece in found)

    def label_of(self, path: Path) -> str | None:
        """The class of all documents of a file, if its name tells it."""
        if self.label not in LABELS:
            return None
        return path.name.split(".")[0] if self.label == "file" else path.resolve().parent.name


def _check_place(place: Path) -> None:
    with reading(place):
        require(place.exists(), "path", f"{place} does not exist", "check the name")
        usable = place.is_file() or place.is_dir()
        require(usable, "path", f"{place} is neither a file nor a folder")


def _kind(path: Path) -> str:
    """The suffix that says what a file holds, with compression taken off."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in _COMPRESSED:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def _chunks(path: Path) -> Iterator[bytes]:
    """What a file holds, with compression taken off."""
    suffix = path.suffix.lower()
    with reading(path), path.open("rb") as raw:
        if suffix == ".zst":
            yield from _zst_chunks(raw, path)
            return
        stream = _UNPACK[suffix](raw) if suffix in _UNPACK else raw
        while chunk := stream.read(PIECE):
            yield chunk


def _zst_chunks(raw: BufferedReader, path: Path) -> Iterator[bytes]:
    """Frame by frame: the package's own reader takes the end of a cut file for that of the text."""
    zstandard = package("zstandard", path, "zst")
    context = zstandard.ZstdDecompressor(max_window_size=1 << 31)  # some corpora use --long=31
    frame, inside = context.decompressobj(), False
    while data := raw.read(ZST_INPUT):
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


def _text(path: Path) -> Iterator[str]:
    """Decoded chunks of a file, whose line ends are all "\\n". What is no text is refused."""
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")(), translate=True)
    consumed = 0
    try:
        for chunk in _chunks(path):
            require(b"\0" not in chunk, "path", f"{path} is a binary file", "give text, UTF-8")
            yield decoder.decode(chunk)
            consumed += len(chunk)
        yield decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise InputError(
            "path", f"{path} is not UTF-8 near byte {consumed + error.start}", "convert it first"
        ) from error


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


Labelled = tuple[str, str | None]


def _whole(texts: Iterator[Labelled]) -> Iterator[Piece]:
    return (Piece(text, True, label) for text, label in texts if text)


def json_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """What each line of a JSONL file holds, after words that say where it stands."""
    lines, carry = count(1), ""
    for chunk in _text(path):
        *complete, carry = (carry + chunk).split("\n")
        for line in complete:
            yield from _json_row(line, f"{path} line {next(lines)}")
    yield from _json_row(carry, f"{path} line {next(lines)}")


def _json_row(line: str, place: str) -> Iterator[tuple[str, Any]]:
    if not line.strip():
        return
    try:
        yield place, json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError("path", f"{place} is not JSON: {error}") from error


def _json_texts(path: Path, field: str, label: str | None) -> Iterator[Labelled]:
    for place, row in json_rows(path):
        if isinstance(row, dict) and field in row and row[field] is None:
            continue  # as in Parquet: a row without text
        text = row.get(field) if isinstance(row, dict) else None
        if not isinstance(text, str):
            has = ", ".join(map(str, row)) if isinstance(row, dict) else type(row).__name__
            raise InputError("field", f"{place} has no text under {field!r}", f"it has: {has}")
        require_unicode(text, place)
        yield text, None if label is None else as_label(row.get(label), place, label)


def require_unicode(text: str, place: str) -> None:
    """Refuse half of a surrogate pair, which JSON can spell."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError("path", f"{place} is no Unicode text: {error.reason}") from error


def _parquet_rows(path: Path, field: str, label: str | None) -> Iterator[Labelled]:
    parquet = package("pyarrow.parquet", path, "parquet")
    try:
        file = parquet.ParquetFile(path)
        names = file.schema_arrow.names
        for key, name in (("field", field), ("label", label)):
            there = name is None or name in names
            require(there, key, f"{path} has no column {name!r}", f"it has: {names}")
        columns = [field] if label is None else [field, label]
        for batch in file.iter_batches(batch_size=256, columns=columns):
            classes = [None] * len(batch) if label is None else batch.column(label).to_pylist()
            for text, found in zip(batch.column(field).to_pylist(), classes, strict=True):
                if text is not None:
                    require(isinstance(text, str), "field", f"{path}: {field!r} holds no text")
                    yield text, None if label is None else as_label(found, str(path), label)
    except InputError:
        raise
    except Exception as error:  # a damaged file raises nearly anything
        why = " ".join(str(error).split())
        raise InputError("path", f"{path} is damaged or no Parquet file: {why}") from error
