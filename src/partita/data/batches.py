"""Batches of token rows, in an order that is a function of the seed and the step alone.

Row i of step s is row number g = s * batch_size + i of one endless sequence: epoch g // n of the
corpus' n rows, each epoch in an order of its own. Nothing has to be saved to resume, and several
processes that each take a part of every batch see together what a single one would.

    packed   windows of one long text in which document follows document. The text is taken as a
             ring, cut at a position that each epoch draws anew, so that no cut is learned
    padded   one document per row, filled up with padding; a long document takes several rows,
             unless it is left out
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Int64
from numpy.typing import NDArray
from torch import Tensor

from partita.contracts.batch import Batch
from partita.data.shards import TokenSource, labels_at
from partita.errors import require
from partita.randomness import Noise, Purpose, permuted
from partita.registry import Registry


@dataclass(frozen=True)
class InMemory(TokenSource):
    """One document in memory."""

    tokens: Int64[Tensor, "N"]

    @property
    def ends(self) -> NDArray[np.int64]:
        return np.array([len(self)])

    def __len__(self) -> int:
        return self.tokens.numel()

    def read(self, start: int, stop: int) -> Int64[Tensor, "N"]:
        return self.tokens[start:stop]


class Rows(ABC):
    """A corpus as numbered rows of a fixed length."""

    if TYPE_CHECKING:

        @property
        def length(self) -> int:
            """Tokens of a row, padding included."""

    @abstractmethod
    def __len__(self) -> int:
        """Rows of an epoch."""

    @abstractmethod
    def spans(
        self, index: Int64[Tensor, "N"], epoch: Int64[Tensor, "N"], seed: int
    ) -> list[tuple[int, int]]:
        """Where these rows begin and how many tokens they hold."""

    @abstractmethod
    def read(
        self, spans: list[tuple[int, int]]
    ) -> tuple[Int64[Tensor, "N L"], Bool[Tensor, "N L"] | None, Bool[Tensor, "N L"] | None]:
        """Tokens, which of them are real, and where documents end (as in `Batch`)."""


ROWS: Registry[type] = Registry("rows")


@ROWS.register("packed")
@dataclass(frozen=True)
class Packed(Rows):
    """Windows of one long text."""

    source: TokenSource
    length: int
    document_attention: bool = False

    def __post_init__(self) -> None:
        problem = f"{len(self.source)} tokens do not fill one row of {self.length}"
        remedy = "give more text, or a smaller network.length"
        require(len(self.source) >= self.length, "length", problem, remedy)

    def __len__(self) -> int:
        return len(self.source) // self.length

    def spans(self, index: Tensor, epoch: Tensor, seed: int) -> list[tuple[int, int]]:
        cut = Noise(seed, epoch).uniform(Purpose.DATA, 0, torch.zeros(1, 1, dtype=torch.int64))
        total = len(self.source)
        starts = ((cut[:, 0] * total).long() + index * self.length) % total
        return [(start, self.length) for start in starts.tolist()]

    def read(self, spans: list[tuple[int, int]]) -> tuple[Tensor, None, Tensor | None]:
        tokens = torch.stack([self._ring(start, size) for start, size in spans])
        return tokens, None, self._ends(spans) if self.document_attention else None

    def _ring(self, start: int, size: int) -> Tensor:
        total, stop = len(self.source), start + size
        if stop <= total:
            return self.source.read(start, stop)
        return torch.cat([self.source.read(start, total), self.source.read(0, stop - total)])

    def _ends(self, spans: list[tuple[int, int]]) -> Tensor:
        ends = torch.zeros(len(spans), self.length, dtype=torch.bool)
        document_ends, total = self.source.ends, len(self.source)
        for row, (start, size) in enumerate(spans):
            for shift in (0, total):  # a row that passes the end of the text goes on at its start
                first = start - shift + 1
                low, high = np.searchsorted(document_ends, (first, first + size))
                ends[row, torch.from_numpy(document_ends[low:high] - first)] = True
        return ends


@ROWS.register("padded")
@dataclass(frozen=True)
class Padded(Rows):
    """One document per row; padding neither counts nor is read by the document."""

    source: TokenSource
    length: int
    document_attention: bool = True
    skip: bool = False
    """Leave out documents that are longer than a row, rather than cut them."""
    separator: int | None = None
    """For models that learn where texts end: how many tokens at the end of each document only
    separate it from the next. They are left out, and padding is no segment of its own."""

    def __post_init__(self) -> None:
        problem = "padding is never read, so rows of one document have it always"
        remedy = "leave it out, or use packed rows"
        require(self.document_attention, "data.document_attention", problem, remedy)
        begins, sizes = documents_of(self.source, self.separator or 0)
        if self.skip:
            fits = sizes <= self.length
            begins, sizes = begins[fits], sizes[fits]
        object.__setattr__(self, "_begins", begins)
        object.__setattr__(self, "_ends", begins + sizes)
        object.__setattr__(self, "_last_piece", np.cumsum(-(-sizes // self.length)))

    _begins: NDArray[np.int64] = None  # type: ignore[assignment]
    _ends: NDArray[np.int64] = None  # type: ignore[assignment]
    _last_piece: NDArray[np.int64] = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return int(self._last_piece[-1]) if len(self._last_piece) else 0

    def spans(self, index: Tensor, epoch: Tensor, seed: int) -> list[tuple[int, int]]:  # noqa: ARG002 - documents are cut alike in every epoch
        numbers = index.numpy()
        document = np.searchsorted(self._last_piece, numbers, side="right")
        before = np.where(document > 0, self._last_piece[document - 1], 0)
        starts = self._begins[document] + (numbers - before) * self.length
        sizes = np.minimum(self._ends[document] - starts, self.length)
        return list(zip(starts.tolist(), sizes.tolist(), strict=True))

    def read(self, spans: list[tuple[int, int]]) -> tuple[Tensor, Tensor, Tensor | None]:
        tokens = torch.zeros(len(spans), self.length, dtype=torch.int64)
        sizes = torch.tensor([size for _, size in spans])
        for row, (start, size) in enumerate(spans):
            tokens[row, :size] = self.source.read(start, start + size)
        within = torch.arange(self.length)
        ends = within == sizes[:, None] - 1  # what follows, up to the row's end, is a segment too
        return tokens, within < sizes[:, None], ends if self.separator is None else None


def documents_of(
    source: TokenSource, separator: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where documents begin and how many tokens they have, without separators."""
    begins = np.concatenate([[0], source.ends[:-1]])
    return begins, source.ends - begins - separator


@dataclass(frozen=True)
class Order:
    """The endless sequence of a corpus' rows, read as global batches."""

    rows: Rows
    batch_size: int
    seed: int

    def batch(self, step: int, part: slice = slice(None)) -> Batch:
        """The rows `part` of the global batch of a step."""
        numbers = torch.arange(self.batch_size)
        ranks = step * self.batch_size + numbers
        epoch = ranks // len(self.rows)
        index = permuted(ranks % len(self.rows), len(self.rows), self.seed, epoch)
        spans = self.rows.spans(index, epoch, self.seed)
        return self._read(spans, numbers, part)

    def first(self, count: int, part: slice = slice(None)) -> Batch:
        """The first rows of the corpus in its order, for validation."""
        numbers = torch.arange(count)
        spans = self.rows.spans(numbers, torch.zeros_like(numbers), 0)
        return self._read(spans, numbers, part)

    def _read(self, spans: list[tuple[int, int]], numbers: Tensor, part: slice) -> Batch:
        own, every = spans[part], sum(size for _, size in spans)
        starts = [start for start, _ in own]
        labels = labels_at(getattr(self.rows, "source", None), starts)
        return Batch(*self.rows.read(own), numbers[part], len(spans), every, starts, labels)

    def epoch(self, step: int) -> float:
        """How often the corpus has been seen before a step."""
        return step * self.batch_size / len(self.rows)
