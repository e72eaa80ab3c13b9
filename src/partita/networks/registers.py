"""Registers: learned tokens that others read and nobody predicts (Darcet et al., 2024).

They have no position: rotary attention does not turn them, as it does not turn position 0. Tokens
that read each other (of a row, of a document, of a group of a partition) have registers of their
own, which read just these tokens: no information crosses by way of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from partita.contracts.layouts import Segments

NOWHERE = 0
"""The position at which rotary attention turns nothing."""


@dataclass(frozen=True)
class Joined:
    """Packed tokens with so many registers after each segment."""

    order: Int[Tensor, "M"]
    """Which token or register stands here; registers are counted after the tokens."""
    segments: Int[Tensor, "M"]
    extra: Int[Tensor, "offsets"]
    """How many registers precede each segment, and how many there are."""
    each: int

    @staticmethod
    def of(segments: Int[Tensor, "N"], count: int, each: int) -> Joined:
        """`segments` are those of the tokens, in order; there are `count` of them."""
        numbers = torch.arange(count + 1, device=segments.device)
        everyone = torch.cat([segments, numbers[:count].repeat_interleave(each)])
        order = everyone.argsort(stable=True)
        return Joined(order, everyone[order], (each * numbers).to(torch.int32), each)

    def join(
        self, tokens: Shaped[Tensor, "N *w"], registers: Shaped[Tensor, "R *w"]
    ) -> Shaped[Tensor, "M *w"]:
        """What tokens and registers have, in the joint order."""
        return torch.cat([tokens, registers])[self.order]

    def split(self, x: Shaped[Tensor, "M *w"], count: int) -> Shaped[Tensor, "N *w"]:
        """What the `count` tokens alone have, as they were given."""
        return torch.empty_like(x).index_copy(0, self.order, x)[:count]

    def keys(self, layout: Segments) -> Segments:
        """The same queries, which read the registers of what they read as well."""
        offsets = layout.key_offsets + self.extra
        return replace(layout, key_offsets=offsets, max_keys=layout.max_keys + self.each)

    def layout(self, layout: Segments) -> Segments:
        """Self-attention of tokens and registers."""
        joint = self.keys(layout)
        return replace(
            joint,
            query_offsets=joint.key_offsets,
            max_queries=joint.max_keys,
            within_rows=False,  # a row's tokens and registers are packed, not rectangular
        )
