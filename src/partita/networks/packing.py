"""Places of a batch sorted into segments: what turns a partition into plain packed attention.

A partition is a permutation. Sorted by group, the tokens of a sequence become two consecutive
segments: attention inside a group is attention inside a segment, and attention across groups is
attention of one segment's queries to the other one's keys. No L x L mask is ever made.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn import functional as F

from partita.contracts.layouts import Layout, Queries, Segments
from partita.devices import readable


@dataclass(frozen=True)
class Documents:
    """Which document each token belongs to, and where it stands in it."""

    number: Int[Tensor, "B L"]
    position: Int[Tensor, "B L"]
    count: int

    @staticmethod
    def of(tokens: Int[Tensor, "B L"], layout: Layout) -> Documents:
        """Rows are documents, unless a layout cuts them."""
        shape = tokens.shape
        if not isinstance(layout, Segments):
            row, column = (torch.arange(size, device=tokens.device) for size in shape)
            return Documents(row[:, None].expand(shape), column.expand(shape), shape[0])
        layout.check(tokens)
        number, position = layout.segment_of_query(), layout.query_positions()
        count = layout.query_offsets.numel() - 1
        return Documents(number.view(shape), position.view(shape), count)

    def rows(self) -> Int[Tensor, "D"]:
        """The row that each document stands in."""
        row = torch.arange(self.number.shape[0], device=self.number.device)
        of_token = row[:, None].expand(self.number.shape).flatten()
        return of_token.new_zeros(self.count).scatter(0, self.number.flatten(), of_token)

    def slots(self) -> tuple[Int[Tensor, "B S"], Bool[Tensor, "B S"]]:
        """Both segments of every document of a row side by side, and which of them there are."""
        low, high = self.number.amin(1, keepdim=True), self.number.amax(1, keepdim=True)
        most = 2 * int((high - low).max() + 1)
        slots = 2 * low + torch.arange(most, device=low.device)
        return slots, slots <= 2 * high + 1


@dataclass(frozen=True)
class Owners:
    """The row and the group of each segment: a document, or one group of a document."""

    rows: Int[Tensor, "S"]
    groups: Int[Tensor, "S"]

    @staticmethod
    def of(documents: Documents, groups: int) -> Owners:
        """With one group, all segments are of group 0: what is visible."""
        rows = documents.rows().repeat_interleave(groups)
        return Owners(rows, torch.arange(len(rows), device=rows.device) % groups)


@dataclass(frozen=True)
class Packed:
    """Places of a batch in the order of their segments."""

    places: Queries
    positions: Int[Tensor, "N"]
    """Where each stands in its document."""
    segments: Int[Tensor, "N"]
    offsets: Int[Tensor, "offsets"]
    """Where each segment begins, and where the last one ends."""
    longest: int
    """No segment is longer."""
    order: Int[Tensor, "N"]
    """Which of the places that were given stands here."""

    @staticmethod
    def sort(
        places: Queries, segments: Int[Tensor, "N"], count: int, documents: Documents
    ) -> Packed:
        """Sort places by the segment that each belongs to, one of `count`."""
        order = segments.argsort(stable=True)
        lengths = segments.new_zeros(count).index_add(0, segments, torch.ones_like(segments))
        offsets = F.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
        # The exact length would have to be waited for on a GPU; that of a row will do.
        longest = int(lengths.max()) if readable(segments) else documents.number.shape[1]
        placed = Queries(places.rows[order], places.positions[order])
        positions = documents.position[placed.rows, placed.positions]
        return Packed(placed, positions, segments[order], offsets, longest, order)

    def restored(self, x: Tensor) -> Tensor:
        """What was computed for the sorted places, in the order in which they were given."""
        return torch.empty_like(x).index_copy(0, self.order, x)

    def reading(self, keys: Packed) -> Segments:
        """Our places as queries that read the keys of the segment with the same number."""
        return Segments(self.offsets, keys.offsets, self.longest, keys.longest)


def places_of(real: Bool[Tensor, "B L"] | None, like: Int[Tensor, "B L"]) -> Queries:
    """Row and position of every token, or of the real ones."""
    if real is not None:
        return Queries(*real.nonzero(as_tuple=True))
    flat = torch.arange(like.numel(), device=like.device)
    return Queries(flat // like.shape[1], flat % like.shape[1])
