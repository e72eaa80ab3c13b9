"""Documents in bounded memory: text, JSONL and Parquet, plain or compressed, and data sets.

A corpus may be larger than memory, and so may a single document, so documents come in pieces:
`Piece("...", ends=False)` means that the document goes on.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from partita.data.hugging_face import DataSet
from partita.data.row_files import Labelled, json_texts, parquet_texts
from partita.data.text_files import COMPRESSED, PIECE, decoded, is_marked
from partita.errors import require
from partita.files.names import PREFIX
from partita.files.reading import content_hash, files_under, reading

SEPARATORS = {"paragraph": "\n\n", "line": "\n", "file": ""}
"""Separators of documents in plain text, by what counts as a document."""

LABELS = ("file", "folder")
"""Where the class of a plain-text document can come from: the name of its file or folder."""


_ROWS = {".jsonl": json_texts, ".parquet": parquet_texts}


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
    """Where a document's class comes from: a field of rows, or, for plain text,
    "file" (the name, without suffixes) or "folder" (the name of the folder that holds the file)."""

    def __post_init__(self) -> None:
        problem, known = f"unknown name {self.documents!r}", f"known: {', '.join(SEPARATORS)}"
        require(self.documents in SEPARATORS, "documents", problem, known)
        if self.data_set is None:
            place = Path(self.path)
            with reading(place):
                require(place.exists(), "path", f"{place} does not exist", "check the name")
                usable = place.is_file() or place.is_dir()
                require(usable, "path", f"{place} is neither a file nor a folder")

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
            # Byte order marks were once taken for text: cached tokens with one are not used again.
            marked = _kind(path) != ".parquet" and is_marked(path)
            yield name, content_hash(path) + (codecs.BOM_UTF8 if marked else b"")

    def pieces(self) -> Iterator[Piece]:
        """All documents of all files, piece by piece. Empty documents are left out."""
        if (data_set := self.data_set) is not None:
            yield from _whole(data_set.load().texts(self.field, self.label))
        for path in self.files():
            name = self.label_of(path)
            field = self.label if name is None else None  # where the class of a row stands
            if rows := _ROWS.get(_kind(path)):
                found = _whole(rows(path, self.field, field))
            else:
                known = f"known for plain text: {', '.join(LABELS)}"
                problem = f"{path} is plain text, which has no field {field!r}"
                require(field is None, "label", problem, known)
                found = _split(decoded(path, PIECE), SEPARATORS[self.documents])
            yield from found if name is None else (piece._replace(label=name) for piece in found)

    def label_of(self, path: Path) -> str | None:
        """The class of all documents of a file, if its name or folder is the class."""
        if self.label not in LABELS:
            return None
        if self.label == "file":
            return path.name.split(".")[0]
        # The folder that it is in by name, wherever links to it lead.
        folder = path.parent
        return folder.resolve().name if folder.name in ("", "..") else folder.name


def _kind(path: Path) -> str:
    """The suffix that says what a file holds, with compression taken off."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


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


def _whole(texts: Iterator[Labelled]) -> Iterator[Piece]:
    return (Piece(text, True, label) for text, label in texts if text)
