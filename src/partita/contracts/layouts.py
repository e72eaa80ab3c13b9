"""How tokens lie in memory, and which of them read which: the only thing attention must be told.

- `Dense`: a rectangular batch, with an optional boolean mask or causal order;
- `Segments`: packed tokens; the queries of segment i read the keys of segment i. Queries and keys
  have offsets of their own, so a segment may read another one's keys. A rectangular batch may be
  cut into segments too (documents that share a row): offsets then count over its B*L tokens.
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


@dataclass(frozen=True)
class Dense:
    """A rectangular batch. `mask` is true where a query may read a key."""

    mask: Bool[Tensor, "#B Lq Lk"] | None = None
    causal: bool = False


@dataclass(frozen=True)
class Segments:
    """Packed tokens: segment i holds queries [q_i, q_{i+1}) and keys [k_i, k_{i+1})."""

    query_offsets: Int[Tensor, "offsets"]
    key_offsets: Int[Tensor, "offsets"]
    max_queries: int
    max_keys: int
    causal: bool = False
    within_rows: bool = False
    """For rectangular batches: each segment reads its own tokens, and none crosses a row's end."""

    @staticmethod
    def of_lengths(lengths: Int[Tensor, "S"], causal: bool = False) -> Segments:
        """Self-attention inside consecutive segments of the given lengths."""
        offsets = F.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
        longest = int(lengths.max()) if lengths.numel() else 0
        return Segments(offsets, offsets, longest, longest, causal)

    @staticmethod
    def of_documents(ends: Bool[Tensor, "B L"], longest: int | None = None) -> Segments:
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
        return Segments(offsets, offsets, longest, longest, within_rows=True)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Segments:
        """The same layout on another device."""
        queries = self.query_offsets.to(device, non_blocking=non_blocking)
        keys = self.key_offsets.to(device, non_blocking=non_blocking)
        return replace(self, query_offsets=queries, key_offsets=keys)

    def check(self, tokens: Int[Tensor, "*tokens"]) -> None:
        """Refuse a layout that was made for other tokens."""
        if not readable(self.query_offsets):
            return
        held = int(self.query_offsets[-1])
        require(
            held == tokens.numel(),
            "layout",
            f"its segments hold {held} tokens, but there are {tokens.numel()}",
        )

    def segment_of_query(self) -> Int[Tensor, "N"]:
        """The segment that each packed query belongs to."""
        lengths = self.query_offsets.diff()
        return torch.repeat_interleave(
            torch.arange(lengths.numel(), device=lengths.device), lengths
        )

    def query_positions(self) -> Int[Tensor, "N"]:
        """Where each packed query stands inside its segment."""
        starts = self.query_offsets[:-1][self.segment_of_query()]
        return torch.arange(starts.numel(), device=starts.device) - starts


def segment_at(offsets: Int[Tensor, "offsets"], places: int) -> Int[Tensor, "N"]:
    """The segment of each of so many packed places; the number after the last one for the rest.

    All offsets are searched, and none is left out before: compiled for a GPU, a search in
    `offsets[1:]` begins at the first one.
    """
    place = torch.arange(places, device=offsets.device, dtype=offsets.dtype)
    return torch.bucketize(place, offsets, right=True) - 1


class Queries(NamedTuple):
    """The positions whose logits are wanted, as (row, position) pairs."""

    rows: Int[Tensor, "N"]
    positions: Int[Tensor, "N"]


Layout = Dense | Segments
DENSE = Dense()
