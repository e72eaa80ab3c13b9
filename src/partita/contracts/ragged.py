"""Sequences of different lengths, one after the other: nothing is padded."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int64
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Ragged:
    """Packed tokens of B sequences."""

    tokens: Int64[Tensor, "N"]
    lengths: Int64[Tensor, "B"]

    @staticmethod
    def of(tokens: Int64[Tensor, "B L"], held: Bool[Tensor, "B L"]) -> Ragged:
        """The tokens of a rectangular batch that are held, in their order."""
        return Ragged(tokens[held], held.sum(-1))

    @property
    def rows(self) -> Int64[Tensor, "N"]:
        """The sequence that each token belongs to."""
        numbers = torch.arange(self.lengths.numel(), device=self.tokens.device)
        return torch.repeat_interleave(numbers, self.lengths)

    @property
    def positions(self) -> Int64[Tensor, "N"]:
        """Where each token stands in its sequence."""
        starts = F.pad(self.lengths.cumsum(0), (1, 0))[:-1]
        every = torch.arange(self.tokens.numel(), device=self.tokens.device)
        return every - starts[self.rows]

    def padded(self, fill: int, width: int | None = None) -> Int64[Tensor, "B L"]:
        """A rectangular batch, filled up on the right; as wide as the longest unless told."""
        if width is None:
            width = int(self.lengths.max()) if self.lengths.numel() else 0
        table = self.tokens.new_full((self.lengths.numel(), width), fill)
        table[self.rows, self.positions] = self.tokens
        return table

    def with_ends(self, end: int) -> tuple[Ragged, Int64[Tensor, "N"], Int64[Tensor, "B"]]:
        """One more token after each sequence; where the old tokens are now, and where the ends."""
        rows = self.rows
        places = torch.arange(self.tokens.numel(), device=self.tokens.device) + rows
        ends = (self.lengths + 1).cumsum(0) - 1
        tokens = self.tokens.new_full((self.tokens.numel() + self.lengths.numel(),), end)
        return Ragged(tokens.index_copy(0, places, self.tokens), self.lengths + 1), places, ends
