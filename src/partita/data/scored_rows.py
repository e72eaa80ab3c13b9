"""Texts as rows of tokens to score, every token once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Int64
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from partita.data.documents import SEPARATORS, Corpus
from partita.data.tokenizers import Tokenizer
from partita.errors import require

L = TypeVar("L")
Rows = tuple[Int64[Tensor, "N L"], Bool[Tensor, "N L"]]
_END_OF_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")


class ScoredRows(NamedTuple):
    """A corpus as rows to score."""

    tokens: Int64[Tensor, "N L"]
    real: Bool[Tensor, "N L"]
    characters: int
    bytes: int
    """Of the text in UTF-8."""
    labels: list[str | None]
    """The class of each row's document, if it has one and the row holds no other."""


def sentences(text: str) -> list[str]:
    """The sentences of a text, which end at a mark or a line break."""
    return [part.strip() for part in _END_OF_SENTENCE.split(text) if part.strip()]


def windows(ids: list[int], length: int) -> Rows:
    """Consecutive windows of a text, the last one padded; and which of their tokens are real."""
    rows = -(-len(ids) // length)
    tokens = torch.zeros(rows * length, dtype=torch.int64)
    tokens[: len(ids)] = torch.tensor(ids, dtype=torch.int64)
    real = torch.arange(tokens.numel()) < len(ids)
    return tokens.reshape(rows, length), real.reshape(rows, length)


def corpus_rows(
    corpus: Corpus, tokenizer: Tokenizer, length: int, *, apart: bool, limit: int | None = None
) -> ScoredRows:
    """A corpus as rows, and the number of its characters; `limit` stops after so many tokens.

    Document follows document as in packed training rows, or each has rows of its own (`apart`).
    """
    parts: list[Rows] = []
    stream: list[int] = []
    labels: list[str | None] = []
    characters = size = 0
    texts = whole_documents(corpus, SEPARATORS[corpus.documents])
    for text, ids, label in _first(limit, texts, tokenizer):
        characters, size = characters + len(text), size + len(text.encode())
        if apart:
            parts.append(windows(ids.tolist(), length))
            labels += [label] * len(parts[-1][0])
        else:
            stream += ids.tolist()
    if stream:
        parts.append(windows(stream, length))
        labels = [None] * len(parts[-1][0])
    require(bool(parts), "file", f"{corpus.path} holds no text")
    tokens, real = (torch.cat(pieces) for pieces in zip(*parts, strict=True))
    return ScoredRows(tokens, real, characters, size, labels)


def _first(
    limit: int | None, texts: Iterable[tuple[str, L]], tokenizer: Tokenizer
) -> Iterator[tuple[str, NDArray[Any], L]]:
    """Texts with their tokens, up to a number of tokens: the last text is cut there."""
    seen = 0
    for text, label in texts:
        ids = tokenizer.encode_array(text)
        if limit is not None and seen + len(ids) > limit:
            ids = ids[: limit - seen]
            text = tokenizer.decode(ids.tolist())
        seen += len(ids)
        yield text, ids, label
        if limit is not None and seen >= limit:
            return


def whole_rows(
    corpus: Corpus,
    tokenizer: Tokenizer,
    length: int,
    *,
    limit: int | None = None,
    skip: bool = False,
) -> ScoredRows:
    """The same for models that learn where texts end: each document as it is.

    Part of a text is another text, with an end that this one lacks: documents longer than the model
    are refused (left out, with `skip`), and `limit` stops after the document that reaches it.
    """
    rows: list[Tensor] = []
    labels: list[str | None] = []
    seen = characters = size = 0
    for text, label in whole_documents(corpus, ""):
        ids = torch.tensor(tokenizer.encode(text), dtype=torch.int64)
        if skip and len(ids) > length:
            continue
        rows.append(ids)
        labels.append(label)
        seen, characters, size = seen + len(ids), characters + len(text), size + len(text.encode())
        if limit is not None and seen >= limit:
            break
    require(bool(rows), "file", f"{corpus.path} holds no text that fits the model")
    sizes = torch.tensor([len(ids) for ids in rows])
    longest, many = int(sizes.max()), int((sizes > length).sum())
    problem = f"{many:,} of {len(rows):,} documents of {corpus.path} have more than the model's "
    problem += f"{length:,} tokens, the longest {longest:,}"
    require(many == 0, "file", problem, "cut texts end where they should not: leave them out")
    real = torch.arange(longest) < sizes[:, None]
    return ScoredRows(pad_sequence(rows, batch_first=True), real, characters, size, labels)


class Stream(NamedTuple):
    """A corpus as one row of tokens, and its size before it was one."""

    tokens: NDArray[Any]
    characters: int
    bytes: int


def token_stream(corpus: Corpus, tokenizer: Tokenizer, limit: int | None = None) -> Stream:
    """A corpus as one row, document after document; `limit` stops after so many tokens.

    Its pieces become tokens one by one, as they do for training.
    """
    arrays: list[NDArray[Any]] = []
    kind, characters, size = np.min_scalar_type(tokenizer.vocab_size), 0, 0
    end = SEPARATORS[corpus.documents]
    texts = ((piece.text + end if piece.ends else piece.text, None) for piece in corpus.pieces())
    for text, ids, _ in _first(limit, texts, tokenizer):
        arrays.append(ids.astype(kind))
        characters, size = characters + len(text), size + len(text.encode())
    require(any(map(len, arrays)), "path", f"{corpus.path} holds no text", "name another file")
    return Stream(np.concatenate(arrays), characters, size)


def whole_documents(corpus: Corpus, separator: str) -> Iterator[tuple[str, str | None]]:
    """Whole documents, each with what training puts behind it, and its class."""
    pieces: list[str] = []
    for piece in corpus.pieces():
        pieces.append(piece.text)
        if piece.ends:
            yield "".join(pieces) + separator, piece.label
            pieces = []
