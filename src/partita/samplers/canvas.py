"""What samplers work on: a canvas of revealed and hidden positions."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from partita.contracts.prompt import Prompt


@dataclass
class Canvas:
    """Sequences being filled in. `wanted` are the hidden positions that this run shall fill."""

    tokens: Int64[Tensor, "B L"]
    revealed: Bool[Tensor, "B L"]
    wanted: Bool[Tensor, "B L"]
    open: Bool[Tensor, "B G"] | None = None
    """Gaps in which texts of flexible length may grow."""
    lengths: Int64[Tensor, "B"] | None = None
    """Where rows end, if not all at the same place."""
    longest: int | None = None
    """What texts of flexible length may grow to."""
    settled: bool = True
    """Whether what is revealed stays; a chain whose tokens change until its end says no."""

    @staticmethod
    def blank(batch: int, length: int, mask_id: int, device: torch.device | str = "cpu") -> Canvas:
        """Nothing known, everything wanted."""
        tokens = torch.full((batch, length), mask_id, device=device)
        hidden = torch.ones(batch, length, dtype=torch.bool, device=device)
        return Canvas(tokens, ~hidden, hidden)

    @staticmethod
    def from_prompt(prompt: Prompt, mask_id: int) -> Canvas:
        """Known tokens in place, masks elsewhere."""
        tokens = torch.where(prompt.known, prompt.tokens, mask_id)
        return Canvas(tokens, prompt.known.clone(), ~prompt.known, prompt.open)

    @property
    def batch(self) -> int:
        return self.tokens.shape[0]

    @property
    def remaining(self) -> Bool[Tensor, "B L"]:
        """Wanted and still hidden."""
        return self.wanted & ~self.revealed

    def copy(self) -> Canvas:
        """A canvas that stays as it is."""
        return replace(
            self,
            tokens=self.tokens.clone(),
            revealed=self.revealed.clone(),
            wanted=self.wanted.clone(),
        )

    def open_gaps(self) -> Bool[Tensor, "B G"]:
        """Where a text may grow: nowhere unless told."""
        if self.open is not None:
            return self.open.clone()
        shape = (self.tokens.shape[0], self.tokens.shape[1] + 1)
        return torch.zeros(shape, dtype=torch.bool, device=self.tokens.device)

    def part(self, rows: Int64[Tensor, "R"], low: int, high: int) -> Canvas:
        """A copy of some rows' positions low..high."""
        return Canvas(
            self.tokens[rows, low:high], self.revealed[rows, low:high], self.wanted[rows, low:high]
        )

    def write(
        self, rows: Int64[Tensor, "N"], positions: Int64[Tensor, "N"], tokens: Int64[Tensor, "N"]
    ) -> None:
        """Reveal tokens. What is revealed stays."""
        self.tokens[rows, positions] = tokens
        self.revealed[rows, positions] = True
