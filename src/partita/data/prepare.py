"""From files to tokens on disk, cached by contents, tokenizer and options.

A prepared corpus is a folder (see `prepared`) named after a hash of everything that went into it.
Whatever changes the tokens changes the name, so a changed input is never served stale, and a
folder that exists is complete (it is renamed into place as the last act).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from partita.data.documents import SEPARATORS, Corpus, Piece
from partita.data.hugging_face import fetch_tokenizer
from partita.data.manifest import FORMAT
from partita.data.prepared import TOKENIZER, PrepareCallback, Prepared, tokens_in
from partita.data.shards import ShardWriter
from partita.data.tokenizers import (
    LARGEST_VOCABULARY,
    BPETokenizer,
    ByteTokenizer,
    CharacterTokenizer,
    Tokenizer,
    from_description,
)
from partita.errors import InputError, require, require_int
from partita.files.names import ASK_THE_HUB, hosted, near
from partita.files.reading import content_hash, reading, refuse_changes, stamps

MADE_HERE = ("bpe", "bytes", "characters", "text8")
READING = 2  # version of how files are read: another one makes other tokens of the same file
SAMPLE = 50_000_000  # characters that a tokenizer is trained on at most
AT_ONCE = 1 << 21  # characters that are tokenized together


@dataclass(frozen=True)
class PrepareOptions:
    """The options that the tokens depend on, besides the files."""

    tokenizer: str = "bytes"
    """"bytes", "characters" (those that occur), "text8", "bpe" (trained on the corpus), the path
    of a `tokenizer.json`, or a name on the Hugging Face hub ("hf:owner/name", "owner/name")."""
    vocab_size: int = 4096
    """Size of a trained "bpe"."""
    valid: float = 0.05
    """Share of tokens that is set aside for validation, in whole documents spread evenly."""

    def __post_init__(self) -> None:
        require_int(self.vocab_size, "vocab_size", 256, LARGEST_VOCABULARY)
        require(0 <= self.valid < 1, "valid", f"is a share of the tokens, got {self.valid}")


def cache_key(
    corpus: Corpus,
    options: PrepareOptions,
    tokenizer: Tokenizer | None = None,
    file: Path | None = None,
) -> str:
    """A hash of file contents, tokenizer (a given one, or that of the options) and options.

    `file` holds the tokenizer of the options, if it has been fetched already.
    """
    if tokenizer is None and file is None:
        file = tokenizer_file(options.tokenizer)
    digest = hashlib.sha256()
    facts = [FORMAT, READING, corpus.field, corpus.documents, vars(options)]
    if corpus.label is not None:
        facts.append([corpus.label, *map(corpus.label_of, corpus.files())])
    digest.update(json.dumps(facts, sort_keys=True).encode())
    for name, content in corpus.identity():
        digest.update(os.fsencode(name) + b"\0" + content)
    if file is not None:
        digest.update(b"tokenizer\0" + content_hash(file, "tokenizer"))
    if tokenizer is not None:
        digest.update(b"given\0" + json.dumps(tokenizer.describe()).encode())
    return digest.hexdigest()[:20]


def tokenizer_file(name: str, flag: str = "--tokenizer.name") -> Path | None:
    """The file that holds a tokenizer, fetched from the hub if need be; None if it is made here.

    `flag` is where the name was given.
    """
    if name in MADE_HERE:
        return None
    with reading(Path(name), "tokenizer"):
        if Path(name).is_file():
            return Path(name)
    remote = hosted(name, "tokenizer", flag)
    if remote is not None:
        return fetch_tokenizer(name, remote, flag)
    what = "file" if "/" in name else "name"
    known = f"known: {', '.join(MADE_HERE)}, the path of a {TOKENIZER}, or {ASK_THE_HUB} on the hub"
    raise InputError("tokenizer", f"unknown {what} {name!r}{near(name)}", f"{known}, for {flag}")


def prepare(
    corpus: Corpus,
    cache: Path,
    options: PrepareOptions | None = None,
    tokenizer: Tokenizer | None = None,
    callback: PrepareCallback | None = None,
) -> Prepared:
    """The corpus as tokens: from the cache if nothing changed, made now otherwise.

    A given `tokenizer` replaces the one that the options name.
    """
    options, callback = options or PrepareOptions(), callback or PrepareCallback()
    before = stamps(corpus.files())
    # Fetched once, for the key and the tokens.
    file = tokenizer_file(options.tokenizer) if tokenizer is None else None
    folder = cache / cache_key(corpus, options, tokenizer, file)
    callback.on_name(folder.name)

    def make(partial: Path) -> None:
        made = tokenizer or make_tokenizer(corpus, options, file, callback)
        _write(corpus, made, partial, options, callback)
        (partial / TOKENIZER).write_text(json.dumps(made.describe()))
        refuse_changes(before, corpus.files())

    return tokens_in(folder, make, callback)


def make_tokenizer(
    corpus: Corpus, options: PrepareOptions, file: Path | None, callback: PrepareCallback
) -> Tokenizer:
    """The tokenizer in the file; without one, "bpe" and "characters" learn from the corpus."""
    if file is not None:
        return read_tokenizer(file)
    if options.tokenizer == "characters":
        everything = _counted(corpus, callback)
        return CharacterTokenizer.train([SEPARATORS[corpus.documents], *map(_distinct, everything)])
    if options.tokenizer == "bpe":
        return BPETokenizer.train(_sample(corpus, callback), options.vocab_size)
    if options.tokenizer == "text8":
        problem = f"{corpus.documents!r} ends documents with line breaks, which text8 does not have"
        separated = not SEPARATORS[corpus.documents]
        require(separated, "documents", problem, "give --data.documents file")
        return CharacterTokenizer()
    return ByteTokenizer()


def read_tokenizer(file: Path) -> Tokenizer:
    """A tokenizer from a file: one of ours, or any `tokenizer.json`."""
    with reading(file, "tokenizer"):
        data = file.read_bytes()
    try:
        text = data.decode()
        return _own(text) or BPETokenizer.from_json(text)
    except (InputError, UnicodeDecodeError) as error:
        why = error.problem if isinstance(error, InputError) else str(error)
        raise InputError("tokenizer", f"{file}: {why}") from error


def _own(text: str) -> Tokenizer | None:
    """The tokenizer of a model of ours, whose file holds a description."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    described = isinstance(content, dict) and "kind" in content
    return from_description(content) if described else None


def _distinct(text: str) -> str:
    return "".join(set(text))


def _counted(corpus: Corpus, callback: PrepareCallback) -> Iterator[str]:
    """The text of a corpus; `callback` hears how much of it was read."""
    seen = 0
    for piece in corpus.pieces():
        yield piece.text
        seen += len(piece.text)
        callback.on_prepare(seen)


def _sample(corpus: Corpus, callback: PrepareCallback) -> Iterator[str]:
    """The beginning of the corpus, enough to learn a vocabulary from."""
    seen = 0
    for text in _counted(corpus, callback):
        yield text
        seen += len(text)
        if seen >= SAMPLE:
            return


def _encoded(corpus: Corpus, tokenizer: Tokenizer) -> Iterator[tuple[Piece, NDArray[Any]]]:
    """Pieces with their tokens, some millions of characters at a time."""
    together: list[Piece] = []
    size = 0
    for piece in corpus.pieces():
        together.append(piece)
        size += len(piece.text)
        if size >= AT_ONCE:
            yield from zip(together, _arrays(tokenizer, together), strict=True)
            together, size = [], 0
    yield from zip(together, _arrays(tokenizer, together), strict=True)


def _arrays(tokenizer: Tokenizer, pieces: list[Piece]) -> list[NDArray[Any]]:
    if isinstance(tokenizer, BPETokenizer):
        return tokenizer.encode_arrays([piece.text for piece in pieces])
    return [tokenizer.encode_array(piece.text) for piece in pieces]


def _write(
    corpus: Corpus,
    tokenizer: Tokenizer,
    folder: Path,
    options: PrepareOptions,
    callback: PrepareCallback,
) -> None:
    """Tokenize document by document into two writers."""
    facts: dict[str, Any] = {"path": str(corpus.path), **vars(options)}
    end = tokenizer.encode_array(SEPARATORS[corpus.documents])
    characters, begins, blank = 0, True, True
    classes: set[str] = set()
    with (
        ShardWriter(folder / "train", tokenizer.vocab_size, facts) as train,
        ShardWriter(folder / "valid", tokenizer.vocab_size, facts) as valid,
    ):
        writer = train
        for piece, ids in _encoded(corpus, tokenizer):
            if begins:
                # Decided before the document is read, so that its size cannot matter.
                behind = valid.tokens < options.valid * (train.tokens + valid.tokens)
                writer = valid if behind else train
            writer.write(ids)
            begins = piece.ends
            if piece.ends:
                writer.write(end)
                writer.end_document(piece.label)
                classes |= {piece.label} - {None}  # type: ignore[arg-type]
            characters += len(piece.text)
            blank = blank and not piece.text.strip()
            callback.on_prepare(characters)
        none = "no text" if characters == 0 else "nothing but white space"
        require(not blank, "path", f"{corpus.path} holds {none}", "name another file")
        require(
            train.tokens >= callback.least,
            "path",
            f"{corpus.path} has {train.tokens} tokens to train on, a row takes {callback.least}",
            "give more text, or a smaller network.length",
        )
        train.classes = valid.classes = in_order(classes)


def in_order(names: Iterable[str]) -> list[str]:
    """Names of classes: numbers by their size, then words by the alphabet."""
    return sorted(
        names, key=lambda name: (not name.isdecimal(), len(name) * name.isdecimal(), name)
    )
