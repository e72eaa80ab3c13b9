"""The sections `data` and `tokenizer` of a recipe."""

from __future__ import annotations

from dataclasses import dataclass

from partita.config.renames import renamed_keys
from partita.data import image_data, text_data  # noqa: F401 - kinds of data, which register
from partita.data.batches import ROWS, Padded, Rows
from partita.data.documents import Corpus
from partita.data.kinds import DataKind, kind_named
from partita.data.prepare import PrepareOptions
from partita.data.shards import TokenSource
from partita.data.tokenizers import LARGEST_VOCABULARY
from partita.data.whole_rows import Whole
from partita.errors import naming, require, require_int, require_known

LONGER = ("cut", "skip", "refuse")

# Arguments in errors about a corpus or its tokens, as keys of the recipe.
NAMES = {
    "path": "data.path",
    "field": "data.field",
    "documents": "data.documents",
    "label": "data.label",
    "size": "data.size",
    "color": "data.color",
    "rows": "data.rows",
    "valid": "data.validation_fraction",
    "tokenizer": "tokenizer.name",
    "vocab_size": "tokenizer.vocab_size",
    "cache": "data.cache",
    "folder": "data.cache",
    "shards": "data.cache",
    "text": "tokenizer.name",  # a text with characters that a tokenizer does not have
}


@renamed_keys("data")
@dataclass(frozen=True)
class DataOptions:
    """Data: which text, and how it becomes rows."""

    path: str = ""
    """A text, JSONL or Parquet file (also .gz, .xz, .zst), a folder of them, or hf:NAME. Images:
    digits, MNIST's folder, a folder of images by class, or a tar of one."""
    field: str = "text"
    """Field of JSONL, Parquet and Hugging Face data that holds the text."""
    documents: str = "paragraph"
    """What is a document in plain text: paragraph (up to a blank line), line, or file."""
    label: str | None = None
    """Where a document's class comes from: a field of JSONL, Parquet and Hugging Face data, or, for
    plain text, file or folder (its name is the class). Set network.classes to the number of
    classes; rows are padded."""
    validation_fraction: float = 0.05
    """Share of tokens set aside for validation, in whole documents."""
    rows: str | None = None
    """packed (documents are joined, rows are windows of them), or padded (one document per row). By
    default padded for flexmdm and for documents with classes, packed otherwise."""
    longer: str | None = None
    """Padded rows: what to do with documents that are longer than a row. cut (into several rows),
    skip (leave them out), or refuse (stop with an error). By default refuse for flexmdm, cut for
    others."""
    document_attention: bool = False
    """Packed rows: tokens attend only to their own document."""
    size: int | None = None
    """Images: rows and columns. The shorter side is resized to it, the longer one cropped."""
    color: bool | None = None
    """Images: true for color (three channels), false for gray; by default as in the files."""
    cache: str = "prepared"
    """Folder where tokens are cached, under a hash of everything that they depend on."""

    def __post_init__(self) -> None:
        share, remedy = self.validation_fraction, "give a number from 0 up to, but without, 1"
        problem = f"is a share of the tokens, got {share}"
        require(0 <= share < 1, "data.validation_fraction", problem, remedy)
        require(bool(self.cache), "data.cache", "is empty", "name a folder")
        with naming(NAMES):
            _ = ROWS["packed" if self.rows is None else self.rows]
        if self.longer is not None:
            require_known(self.longer, "data.longer", LONGER)

    def corpus(self) -> Corpus:
        """Where the text comes from."""
        return text_data.corpus_of(self)

    def row_source(self, tokens: TokenSource, length: int, separator: int | None = None) -> Rows:
        """The tokens as rows; `separator` as in `Padded`."""
        kind = self.rows or "packed"
        if kind == "whole":
            return Whole(tokens, length)
        if kind == "padded":
            return Padded(tokens, length, skip=self.longer == "skip", separator=separator)
        rows: Rows = ROWS[kind](tokens, length, self.document_attention)
        return rows


@dataclass(frozen=True)
class TokenizerOptions:
    """Tokenizer: how text becomes tokens."""

    name: str = "bytes"
    """bytes, characters, text8, bpe (trained on the text), a tokenizer.json, or
    hf:OWNER/NAME on the hub. For images: pixels, or the folder of a trained VQ tokenizer."""
    vocab_size: int = 4096
    """Number of tokens of bpe."""
    levels: int | None = None
    """Number of values of a pixel (only for pixels); by default as many as the images have."""

    def __post_init__(self) -> None:
        require_int(self.vocab_size, "tokenizer.vocab_size", 256, LARGEST_VOCABULARY)
        if self.levels is not None:
            require_int(self.levels, "tokenizer.levels", 2, 256)

    @property
    def kind(self) -> DataKind:
        """The kind of data that the tokenizer is for."""
        return kind_named(self.name)

    def preparation(self, data: DataOptions) -> PrepareOptions:
        """The options that the tokens depend on, besides the files."""
        return PrepareOptions(self.name, self.vocab_size, data.validation_fraction)
