"""When each position of a canvas is revealed, in a form that a captured step can read.

A plan is known before sampling starts. Sorted by the step at which they become visible, the
positions of a row that are visible at any step are the first of their row: what a step reads and
what it asks for are two stretches of one order, told by two rows of counts. So a step needs its
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

from partita.contracts.layouts import segment_at


@dataclass(frozen=True)
class Timetable:
    """Positions in the order in which they become visible, and how many are when."""

    order: Int64[Tensor, "B L"]
    """Positions of each row: what is known, then what each step reveals, then what none does."""
    known: Int64[Tensor, "times B"]
    """How many positions are visible when a step begins, and after the last one."""
    shares: Float64[Tensor, "steps B"]
    """The share of revealed tokens at which a row is asked at each step; 0 where it is not."""
    read: list[int]
    """How many tokens each step reads, over all rows."""
    asked: list[int]
    """How many positions each step asks for, over all rows."""
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


class Stretch(NamedTuple):
    """Packed places of a batch: one stretch of each row's order, in slots that may be too many."""

    rows: Int64[Tensor, "N"]
    positions: Int64[Tensor, "N"]
    segments: Int64[Tensor, "N"]
    """The row, or the number after the last one for slots that hold nothing."""
    offsets: Int64[Tensor, "offsets"]
    owners: Int64[Tensor, "segments"]
    """The row of each segment."""

    @staticmethod
    def of(
        order: Int64[Tensor, "B L"], first: Int64[Tensor, "B"], end: Int64[Tensor, "B"], slots: int
    ) -> Stretch:
        """Places first..end of each row's order, one row after the other."""
        batch, length = order.shape
        offsets = F.pad((end - first).cumsum(0), (1, 0))
        slot = torch.arange(slots, device=order.device)
        segments = segment_at(offsets, slots)
        rows = segments.clamp(max=batch - 1)
        place = (first[rows] + slot - offsets[rows]).clamp(0, length - 1)
        owners = torch.arange(batch, device=order.device)
        return Stretch(rows, order[rows, place], segments, offsets, owners)

    def twice(self, batch: int) -> Stretch:
        """The same places once more, of as many rows that follow.

        Slots of the first half that hold nothing become a segment of their own between the two.
        """
        slots, nobody = self.rows.numel(), self.owners.new_zeros(1)
        return Stretch(
            torch.cat([self.rows, self.rows + batch]),
            torch.cat([self.positions, self.positions]),
            torch.cat([self.segments, self.segments + batch + 1]),
            torch.cat([self.offsets, self.offsets + slots]),
            torch.cat([self.owners, nobody, self.owners + batch]),
        )

    @property
    def real(self) -> Bool[Tensor, "N"]:
        """The slots that hold something."""
        slot = torch.arange(self.rows.numel(), device=self.rows.device)
        return slot < self.offsets[-1]
