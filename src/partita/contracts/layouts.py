"""Which tokens read which: the only thing attention must know of how tokens lie in memory.

- `DenseLayout`: a rectangular batch, with an optional boolean mask or causal order;
- `PackedLayout`: sequences one after the other; the queries of sequence i read the keys of
  sequence i. Queries and keys have offsets of their own, so a sequence may read other tokens than
  its own. A rectangular batch may be cut into sequences too (documents that share a row): offsets
  then count over its B*L tokens.

The names are those of flash-attention; `contracts/packed.py` has a worked example.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn import functional as F

from partita.devices import readable
from partita.errors import require
from partita.moved import name_of_before


@dataclass(frozen=True)
class DenseLayout:
    """A rectangular batch. `mask` is true where a query may read a key."""

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
    """For rectangular batches: a sequence reads its own tokens, and none crosses a row's end."""

    @staticmethod
    def of_lengths(lengths: Int[Tensor, "S"], causal: bool = False) -> PackedLayout:
        """Self-attention inside consecutive sequences of the given lengths."""
        offsets = F.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
        longest = int(lengths.max()) if lengths.numel() else 0
        return PackedLayout(offsets, offsets, longest, longest, causal)

    @staticmethod
    def of_documents(ends: Bool[Tensor, "B L"], longest: int | None = None) -> PackedLayout:
        """Documents that share the rows of a batch; `ends` is true at the last token of each.

        The end of a row always ends a document. What follows the last real token of a row is
        padding, a document of its own that no other one reads.

        On a GPU this waits for the documents to be counted, and once more for the length of the
        longest one unless an upper bound is given (the length of a row is one). A data loader
        avoids both: it builds the layout on the CPU and moves it with `to`.
        """
        ends = ends.clone()
        ends[:, -1:] = True
        stops = ends.flatten().nonzero()[:, 0] + 1
        offsets = F.pad(stops, (1, 0)).to(torch.int32)
        if longest is None or readable(ends):
            actual = int(offsets.diff().max()) if stops.numel() else 0
            longest = actual if longest is None else longest
            require(
                longest >= actual,
                "longest",
                f"is {longest}, but a document has {actual} tokens",
                "leave it out, or give the length of a row",
            )
        return PackedLayout(offsets, offsets, longest, longest, within_rows=True)

    @property
    def count(self) -> int:
        """How many sequences there are."""
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
        require(
            held == tokens.numel(),
            "layout",
            f"its sequences hold {held} tokens, but there are {tokens.numel()}",
        )

    def sequence_ids(self) -> Int[Tensor, "N"]:
        """The sequence that each packed query belongs to."""
        lengths = self.cu_seqlens_q.diff()
        return torch.repeat_interleave(
            torch.arange(lengths.numel(), device=lengths.device), lengths
        )

    def position_ids(self) -> Int[Tensor, "N"]:
        """Where each packed query stands inside its sequence."""
        starts = self.cu_seqlens_q[:-1][self.sequence_ids()]
        return torch.arange(starts.numel(), device=starts.device) - starts


def sequence_at(cu_seqlens: Int[Tensor, "offsets"], slots: int) -> Int[Tensor, "N"]:
    """The sequence of each of so many packed slots; the number after the last one for the rest.

    All offsets are searched, and none is left out before: compiled for a GPU, a search in
    `cu_seqlens[1:]` begins at the first one.
    """
    slot = torch.arange(slots, device=cu_seqlens.device, dtype=cu_seqlens.dtype)
    return torch.bucketize(slot, cu_seqlens, right=True) - 1


class Queries(NamedTuple):
    """Positions of a rectangular batch as (row, position) pairs, such as those to be predicted."""

    rows: Int[Tensor, "N"]
    positions: Int[Tensor, "N"]


Layout = DenseLayout | PackedLayout
DENSE = DenseLayout()

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        return name_of_before(__name__, name)
