"""When each position is revealed, in a form that a captured step can read.

A plan is known before sampling starts. If the positions of a row are sorted by the step at which
they become visible, then each step reads a prefix of this order and queries the entries after it;
two rows of counts give both. So a step needs only its index, and everything else is on the device
from the start.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor
from torch.nn import functional as F

from partita.contracts.layouts import Queries, sequence_at
from partita.contracts.packed import PackedBatch


@dataclass(frozen=True)
class Timetable:
    """Positions in the order in which they become visible, and how many are at each step."""

    order: Int64[Tensor, "B L"]
    """Positions of each row: known ones, then those of each step, then those never revealed."""
    known: Int64[Tensor, "times B"]
    """How many positions are visible at the start of each step, and after the last one."""
    shares: Float64[Tensor, "steps B"]
    """The share of revealed tokens at which a row is queried in each step; 0 if it is not."""
    read: list[int]
    """How many tokens each step reads, over all rows."""
    queried: list[int]
    """How many positions each step queries, over all rows."""
    steps: list[int]
    """The index of each step in the plan; steps that reveal nothing are left out."""

    @staticmethod
    def of(
        plan: Int64[Tensor, "B L"],
        revealed: Bool[Tensor, "B L"],
        visible: Float64[Tensor, "B L"],
        steps: int,
    ) -> Timetable:
        """Build it from `plan`, the step of each position; negative for those never revealed."""
        planned = (plan >= 0) & ~revealed
        steps = max(1, steps)  # a plan without steps reveals nothing, but indexes below need one
        counts = plan.new_zeros(plan.shape[0], steps)
        counts.scatter_add_(1, plan.clamp(min=0), planned.long())
        busy = (counts.sum(0) > 0).nonzero()[:, 0]  # waits for the device, once
        counts = counts[:, busy]
        rank = plan.new_zeros(steps)
        rank[busy] = torch.arange(len(busy), device=plan.device)
        step = torch.where(planned, rank[plan.clamp(min=0)], len(busy))
        order = torch.where(revealed, -1, step).argsort(dim=-1, stable=True)
        known = F.pad(counts.cumsum(1), (1, 0)) + revealed.sum(-1, keepdim=True)
        shares = visible.new_zeros(plan.shape[0], len(busy) + 1)
        shares.scatter_(1, step, visible.double())
        known = known.T.contiguous()
        totals = known.sum(1).tolist()
        return Timetable(
            order,
            known,
            shares[:, :-1].T.contiguous(),
            totals[:-1],
            [after - before for before, after in itertools.pairwise(totals)],
            busy.tolist(),
        )


class PackedSlots(NamedTuple):
    """A packed batch in a fixed number of slots: a part of each row's order, then empty slots.

    Unlike a `PackedBatch` it may have more slots than tokens, since a graph has fixed sizes, and it
    needs no sorting, since orders are known before sampling starts.
    """

    rows: Int64[Tensor, "N"]
    positions: Int64[Tensor, "N"]
    sequence_ids: Int64[Tensor, "N"]
    """The row; for empty slots, the number after the last row."""
    cu_seqlens: Int64[Tensor, "offsets"]
    row_of_sequence: Int64[Tensor, "S"]

    @staticmethod
    def of(
        order: Int64[Tensor, "B L"], first: Int64[Tensor, "B"], end: Int64[Tensor, "B"], slots: int
    ) -> PackedSlots:
        """Pack entries [first, end) of each row's order, one row after the other."""
        batch, length = order.shape
        cu_seqlens = F.pad((end - first).cumsum(0), (1, 0))
        slot = torch.arange(slots, device=order.device)
        sequences = sequence_at(cu_seqlens, slots)
        rows = sequences.clamp(max=batch - 1)
        entry = (first[rows] + slot - cu_seqlens[rows]).clamp(0, length - 1)
        every = torch.arange(batch, device=order.device)
        return PackedSlots(rows, order[rows, entry], sequences, cu_seqlens, every)

    def twice(self, batch: int) -> PackedSlots:
        """The slots twice, the second time for `batch` further rows.

        The empty slots of the first half become a sequence of their own between the two.
        """
        slots, no_row = self.rows.numel(), self.row_of_sequence.new_zeros(1)
        return PackedSlots(
            torch.cat([self.rows, self.rows + batch]),
            torch.cat([self.positions, self.positions]),
            torch.cat([self.sequence_ids, self.sequence_ids + batch + 1]),
            torch.cat([self.cu_seqlens, self.cu_seqlens + slots]),
            torch.cat([self.row_of_sequence, no_row, self.row_of_sequence + batch]),
        )

    def batch(self, longest: int) -> PackedBatch:
        """As a packed batch whose rows have at most `longest` tokens, with positions in the row."""
        indices, cu_seqlens = Queries(self.rows, self.positions), self.cu_seqlens.to(torch.int32)
        longest = min(longest, len(self.rows))
        return PackedBatch(cu_seqlens, longest, self.sequence_ids, self.positions, indices)

    @property
    def real(self) -> Bool[Tensor, "N"]:
        """The slots that are not empty."""
        slot = torch.arange(self.rows.numel(), device=self.rows.device)
        return slot < self.cu_seqlens[-1]
