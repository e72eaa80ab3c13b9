"""Layouts of tokens in memory: which tokens attend to which.

- `DenseLayout`: a rectangular batch, with an optional boolean mask or causal order;
- `PackedLayout`: concatenated sequences; the queries of sequence i attend to the keys of sequence
  i. Queries and keys have separate offsets, so a sequence may attend to other tokens than its own.
  A rectangular batch may also be cut into sequences (documents that share a row): offsets then
  count over its B*L tokens.

The names are those of flash-attention; `contracts/packed.py` has a worked example.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn import functional as F

from partita.devices import readable
from partita.errors import require
from partita.moved import offer_old_names


@dataclass(frozen=True)
class DenseLayout:
    """A rectangular batch. `mask` is true where a query may attend to a key."""

    mask: Bool[Tensor, "#B Lq Lk"] | None = None
    causal: bool = False


@dataclass(frozen=True)
class PackedLayout:
    """Packed sequences: number i holds queries [q_i, q_{i+1}) and keys [k_i, k_{i+1})."""

    cu_seqlens_q: Int[Tensor, "offsets"]
    cu_seqlens_k: Int[Tensor, "offsets"]
    max_seqlen_q: int
    max_seqlen_k: int
    causal: bool = False
    within_rows: bool = False
    """Sequences of a rectangular batch attend to their own tokens, and none crosses a row's end."""

    @staticmethod
    def of_lengths(lengths: Int[Tensor, "S"], causal: bool = False) -> PackedLayout:
        """Self-attention inside consecutive sequences of the given lengths."""
        offsets = F.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
        longest = int(lengths.max()) if lengths.numel() else 0
        return PackedLayout(offsets, offsets, longest, longest, causal)

    @staticmethod
    def of_documents(ends: Bool[Tensor, "B L"], longest: int | None = None) -> PackedLayout:
        """Documents that share the rows of a batch; `ends` is true at the last token of each.

        The end of a row always ends a document. The padding after the last real token of a row is
        a document of its own, which no other attends to.

        On a GPU this waits for the number of documents, and also for the length of the longest
        unless an upper bound is given (such as the length of a row). A data loader avoids both by
        building the layout on the CPU and moving it with `to`.
        """
        ends = ends.clone()
        ends[:, -1:] = True
        stops = ends.flatten().nonzero()[:, 0] + 1
        offsets = F.pad(stops, (1, 0)).to(torch.int32)
        if longest is None or readable(ends):
            actual = int(offsets.diff().max()) if stops.numel() else 0
            longest = actual if longest is None else longest
            problem = f"is {longest}, but a document has {actual} tokens"
            remedy = "leave it out, or give the length of a row"
            require(longest >= actual, "longest", problem, remedy)
        return PackedLayout(offsets, offsets, longest, longest, within_rows=True)

    @property
    def count(self) -> int:
        """Number of sequences."""
        return self.cu_seqlens_q.numel() - 1

    def to(self, device: torch.device | str, non_blocking: bool = False) -> PackedLayout:
        """The same layout on another device."""
        queries = self.cu_seqlens_q.to(device, non_blocking=non_blocking)
        keys = self.cu_seqlens_k.to(device, non_blocking=non_blocking)
        return replace(self, cu_seqlens_q=queries, cu_seqlens_k=keys)

    def check(self, tokens: Int[Tensor, "*tokens"]) -> None:
        """Refuse a layout that was made for other tokens."""
        if not readable(self.cu_seqlens_q):
            return
        held = int(self.cu_seqlens_q[-1])
        problem = f"its sequences hold {held} tokens, but there are {tokens.numel()}"
        require(held == tokens.numel(), "layout", problem)

    def sequence_ids(self) -> Int[Tensor, "N"]:
        """The index of each packed query's sequence."""
        lengths = self.cu_seqlens_q.diff()
        return torch.repeat_interleave(
            torch.arange(lengths.numel(), device=lengths.device), lengths
        )

    def position_ids(self) -> Int[Tensor, "N"]:
        """The position of each packed query in its sequence."""
        starts = self.cu_seqlens_q[:-1][self.sequence_ids()]
        return torch.arange(starts.numel(), device=starts.device) - starts


def sequence_at(cu_seqlens: Int[Tensor, "offsets"], slots: int) -> Int[Tensor, "N"]:
    """The sequence of each of the first `slots` packed indices; the sequence count past the end.

    This searches all offsets: when compiled for a GPU, a search in the view `cu_seqlens[1:]`
    wrongly begins at the first offset.
    """
    slot = torch.arange(slots, device=cu_seqlens.device, dtype=cu_seqlens.dtype)
    return torch.bucketize(slot, cu_seqlens, right=True) - 1


class Queries(NamedTuple):
    """Positions of a rectangular batch as (row, position) pairs, such as those to predict."""

    rows: Int[Tensor, "N"]
    positions: Int[Tensor, "N"]


Layout = DenseLayout | PackedLayout
DENSE = DenseLayout()

offer_old_names(__name__)
