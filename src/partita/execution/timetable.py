"""When each position is revealed, in a form that a captured step can read.

A plan is known before sampling starts. Sorted by the step at which they become visible, the
positions of a row that are visible at any step are the first of their row: what a step reads and
what it queries are two parts of one order, given by two rows of counts. So a step needs its
number alone, and everything else lies on the device from the beginning.
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
    """Positions in the order in which they become visible, and how many are when."""

    order: Int64[Tensor, "B L"]
    """Positions of each row: what is known, then what each step reveals, then what none does."""
    known: Int64[Tensor, "times B"]
    """How many positions are visible when a step begins, and after the last one."""
    shares: Float64[Tensor, "steps B"]
    """The share of revealed tokens at which a row is queried at each step; 0 where it is not."""
    read: list[int]
    """How many tokens each step reads, over all rows."""
    queried: list[int]
    """How many positions each step queries, over all rows."""
    steps: list[int]
    """The number that each step has in the plan; those that reveal nothing are left out."""

    @staticmethod
    def of(
        plan: Int64[Tensor, "B L"],
        revealed: Bool[Tensor, "B L"],
        visible: Float64[Tensor, "B L"],
        steps: int,
    ) -> Timetable:
        """`plan` names the step of each position, negative for those that none reveals."""
        planned = (plan >= 0) & ~revealed
        steps = max(1, steps)  # a plan without steps has nothing to reveal, but indices
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
    """A packed batch in a fixed number of slots: a part of each row's order, and empty slots.

    It is no `PackedBatch`: a graph has fixed sizes, so that there may be more slots than tokens,
    and nothing is sorted, as orders are known before sampling starts.
    """

    rows: Int64[Tensor, "N"]
    positions: Int64[Tensor, "N"]
    sequence_ids: Int64[Tensor, "N"]
    """The row, or the number after the last one for slots that hold nothing."""
    cu_seqlens: Int64[Tensor, "offsets"]
    row_of_sequence: Int64[Tensor, "S"]

    @staticmethod
    def of(
        order: Int64[Tensor, "B L"], first: Int64[Tensor, "B"], end: Int64[Tensor, "B"], slots: int
    ) -> PackedSlots:
        """Entries first..end of each row's order, one row after the other."""
        batch, length = order.shape
        cu_seqlens = F.pad((end - first).cumsum(0), (1, 0))
        slot = torch.arange(slots, device=order.device)
        sequences = sequence_at(cu_seqlens, slots)
        rows = sequences.clamp(max=batch - 1)
        place = (first[rows] + slot - cu_seqlens[rows]).clamp(0, length - 1)
        every = torch.arange(batch, device=order.device)
        return PackedSlots(rows, order[rows, place], sequences, cu_seqlens, every)

    def twice(self, batch: int) -> PackedSlots:
        """The same once more, of as many rows that follow.

        Slots of the first half that hold nothing become a sequence of their own between the two.
        """
        slots, nobody = self.rows.numel(), self.row_of_sequence.new_zeros(1)
        return PackedSlots(
            torch.cat([self.rows, self.rows + batch]),
            torch.cat([self.positions, self.positions]),
            torch.cat([self.sequence_ids, self.sequence_ids + batch + 1]),
            torch.cat([self.cu_seqlens, self.cu_seqlens + slots]),
            torch.cat([self.row_of_sequence, nobody, self.row_of_sequence + batch]),
        )

    def batch(self, longest: int) -> PackedBatch:
        """As a packed batch, whose rows have `longest` tokens at most; positions are the rows'."""
        indices, cu_seqlens = Queries(self.rows, self.positions), self.cu_seqlens.to(torch.int32)
        longest = min(longest, len(self.rows))
        return PackedBatch(cu_seqlens, longest, self.sequence_ids, self.positions, indices)

    @property
    def real(self) -> Bool[Tensor, "N"]:
        """The slots that hold something."""
        slot = torch.arange(self.rows.numel(), device=self.rows.device)
        return slot < self.cu_seqlens[-1]
