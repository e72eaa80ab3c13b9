"""From files to tokens on disk, once: the cache knows the contents, the tokenizer and the options.

A prepared corpus is a folder named after a hash of everything that went into it:

    train/  valid/          shards of tokens
    tokenizer.json          the tokenizer that made them

Whatever changes the tokens changes the name, so a changed input is never served stale, and a
folder that exists is complete (it is renamed into place as the last act).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from partita.data import shards
from partita.data.documents import SEPARATORS, Corpus
from partita.data.shards import Shards, ShardWriter
from partita.data.tokenizers import (
    BPETokenizer,
    ByteTokenizer,
    CharacterTokenizer,
    Tokenizer,
    from_description,
)
from partita.errors import InputError, require, require_int

TOKENIZER = "tokenizer.json"
SAMPLE = 50_000_000  # characters that a tokenizer is trained on at most


@dataclass(frozen=True)
class PrepareOptions:
    """What the tokens depend on, beside the files."""

    tokenizer: str = "bytes"
    """"bytes", "characters" (those that occur), "text8", "bpe" (trained on the corpus), or the
    path of a `tokenizer.json`."""
    vocab_size: int = 4096
    """Size of a trained "bpe"."""
    valid: float = 0.05
    """Share of tokens that is set aside for validation, in whole documents spread evenly."""

    def __post_init__(self) -> None:
        require_int(self.vocab_size, "vocab_size", 256)
        require(0 <= self.valid < 1, "valid", f"is a share of the tokens, got {self.valid}")


@dataclass(frozen=True)
class Prepared:
    """A corpus as tokens."""

    folder: Path
    train: Shards
    valid: Shards
    tokenizer: Tokenizer
    fresh: bool
    """Whether the tokens were made just now; otherwise the cache had them."""

    @staticmethod
    def open(folder: Path, fresh: bool = False) -> Prepared:
        """A prepared corpus from its folder."""
        path = folder / TOKENIZER
        require(path.is_file(), "folder", f"{folder} holds no prepared corpus")
        tokenizer = from_description(json.loads(path.read_text()))
        train, valid = (Shards.open(folder / part) for part in ("train", "valid"))
        return Prepared(folder, train, valid, tokenizer, fresh)


def cache_key(corpus: Corpus, options: PrepareOptions) -> str:
    """A hash of file contents, tokenizer and options."""
    digest = hashlib.sha256()
    facts = [shards.FORMAT, corpus.field, corpus.documents, vars(options)]
    digest.update(json.dumps(facts, sort_keys=True).encode())
    files = corpus.files()
    if Path(options.tokenizer).is_file():
        files = [*files, Path(options.tokenizer)]
    for path in files:
        digest.update(path.name.encode() + b"\0")
        with path.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:20]


def prepare(
    corpus: Corpus,
    cache: Path,
    options: PrepareOptions | None = None,
    progress: Callable[[int], None] | None = None,
) -> Prepared:
    """The corpus as tokens: from the cache if nothing changed, made now otherwise.

    `progress` is told the number of characters read so far.
    """
    options = options or PrepareOptions()
    folder = cache / cache_key(corpus, options)
    if folder.exists():
        return Prepared.open(folder)
    tokenizer = make_tokenizer(corpus, options)
    partial = folder.with_name(f"{folder.name}.partial-{os.getpid()}")
    try:
        _write(corpus, tokenizer, partial, options, progress)
        (partial / TOKENIZER).write_text(json.dumps(tokenizer.describe()))
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return Prepared.open(folder, fresh=True)


def make_tokenizer(corpus: Corpus, options: PrepareOptions) -> Tokenizer:
    """The tokenizer that the options name; "bpe" and "characters" look at the corpus first."""
    name = options.tokenizer
    if name == "bytes":
        return ByteTokenizer()
    if name == "text8":
        return CharacterTokenizer()
    if name == "characters":
        everything = (piece.text for piece in corpus.pieces())
        return CharacterTokenizer.train([SEPARATORS[corpus.documents], *map(_distinct, everything)])
    if name == "bpe":
        return BPETokenizer.train(_sample(corpus), options.vocab_size)
    path = Path(name)
    require(
        path.is_file(),
        "tokenizer",
        f"unknown name {name!r}",
        "known: bpe, bytes, characters, text8, or the path of a tokenizer.json",
    )
    try:
        return BPETokenizer(tokenizers.Tokenizer.from_file(str(path)))
    except Exception as error:  # the library raises bare Exceptions
        raise InputError("tokenizer", f"{path} is no tokenizer.json: {error}") from error


def _distinct(text: str) -> str:
    return "".join(set(text))


def _sample(corpus: Corpus) -> Iterator[str]:
    """The beginning of the corpus, enough to learn a vocabulary from."""
    seen = 0
    for piece in corpus.pieces():
        yield piece.text
        seen += len(piece.text)
        if seen >= SAMPLE:
            return


def _write(
    corpus: Corpus,
    tokenizer: Tokenizer,
    folder: Path,
    options: PrepareOptions,
    progress: Callable[[int], None] | None,
) -> None:
    """Tokenise document by document into two writers."""
    facts: dict[str, Any] = {"path": str(corpus.path), **vars(options)}
    end = tokenizer.encode_array(SEPARATORS[corpus.documents])
    characters, begins = 0, True
    with (
        ShardWriter(folder / "train", tokenizer.vocab_size, facts) as train,
        ShardWriter(folder / "valid", tokenizer.vocab_size, facts) as valid,
    ):
        writer = train
        for piece in corpus.pieces():
            if begins:
                # Decided before the document is read, so that its size cannot matter.
                behind = valid.tokens < options.valid * (train.tokens + valid.tokens)
                writer = valid if behind else train
            writer.write(tokenizer.encode_array(piece.text))
            begins = piece.ends
            if piece.ends:
                writer.write(end)
                writer.end_document()
            characters += len(piece.text)
            if progress is not None:
                progress(characters)
        require(train.tokens > 0, "path", f"{corpus.path} holds no text")
