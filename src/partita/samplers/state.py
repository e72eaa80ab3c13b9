"""The state of a sampler: which tokens are revealed and which positions are still hidden."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from partita.contracts.prompt import Prompt
from partita.contracts.shapes import Indices, Marks, Tokens
from partita.moved import offer_old_names


@dataclass
class SamplerState:
    """Sequences being filled in. `wanted` marks the hidden positions that this run fills."""

    tokens: Tokens
    revealed: Marks
    wanted: Marks
    open: Bool[Tensor, "B G"] | None = None
    """Gaps into which tokens may be inserted, for texts of flexible length."""
    lengths: Int64[Tensor, "B"] | None = None
    """The length of each row; None if all rows are full."""
    longest: int | None = None
    """The maximum length of texts of flexible length."""
    settled: bool = True
    """Whether revealed tokens stay; False for a chain whose tokens change until its last step."""

    @staticmethod
    def blank(
        batch: int, length: int, mask_id: int, device: torch.device | str = "cpu"
    ) -> SamplerState:
        """A state in which every position is hidden and wanted."""
        tokens = torch.full((batch, length), mask_id, device=device)
        hidden = torch.ones(batch, length, dtype=torch.bool, device=device)
        return SamplerState(tokens, ~hidden, hidden)

    @staticmethod
    def from_prompt(prompt: Prompt, mask_id: int) -> SamplerState:
        """The known tokens of a prompt, and masks at all other positions."""
        tokens = torch.where(prompt.known, prompt.tokens, mask_id)
        return SamplerState(tokens, prompt.known.clone(), ~prompt.known, prompt.open)

    @property
    def batch(self) -> int:
        return self.tokens.shape[0]

    @property
    def remaining(self) -> Marks:
        """The positions that are wanted and still hidden."""
        return self.wanted & ~self.revealed

    def copy(self) -> SamplerState:
        """A copy that later steps do not change."""
        return replace(
            self,
            tokens=self.tokens.clone(),
            revealed=self.revealed.clone(),
            wanted=self.wanted.clone(),
        )

    def open_gaps(self) -> Bool[Tensor, "B G"]:
        """The gaps that are open for insertion: none by default."""
        if self.open is not None:
            return self.open.clone()
        shape = (self.tokens.shape[0], self.tokens.shape[1] + 1)
        return torch.zeros(shape, dtype=torch.bool, device=self.tokens.device)

    def part(self, rows: Int64[Tensor, "R"], low: int, high: int) -> SamplerState:
        """A copy of positions low to high of some rows."""
        return SamplerState(
            self.tokens[rows, low:high], self.revealed[rows, low:high], self.wanted[rows, low:high]
        )

    def write(self, rows: Indices, positions: Indices, tokens: Int64[Tensor, "N"]) -> None:
        """Reveal tokens; later steps leave them alone."""
        self.tokens[rows, positions] = tokens
        self.revealed[rows, positions] = True


offer_old_names(__name__)
