"""The prompt of a sampler: tokens, and which of them are known."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from partita.errors import require


@dataclass(frozen=True)
class Prompt:
    """Tokens [B, L], and which of them are known. The ids of unknown ones do not matter.

    For models of flexible length, `open` [B, L + 1] says in which gaps tokens may be inserted: gap
    i is before token i, the last one at the end. By default in none.
    """

    tokens: Tensor
    known: Tensor
    open: Tensor | None = None

    def __post_init__(self) -> None:
        tokens, known = self.tokens, self.known
        tensors = isinstance(tokens, Tensor) and isinstance(known, Tensor)
        kinds = f"{type(tokens).__name__} and {type(known).__name__}"
        require(tensors, "prompt", f"tokens and known must be tensors, got {kinds}")
        problem = "tokens and known must both be [samples, length], "
        problem += f"got {list(tokens.shape)} and {list(known.shape)}"
        require(tokens.ndim == 2 and tokens.shape == known.shape, "prompt", problem)
        gaps = (tokens.shape[0], tokens.shape[1] + 1)
        fits = self.open is None or (self.open.shape == gaps and self.open.dtype == torch.bool)
        problem = "open must be bool and [samples, length + 1], one for each gap"
        require(fits, "prompt", problem)
        problem = f"tokens must be int64 and known bool, got {tokens.dtype} and {known.dtype}"
        require(tokens.dtype == torch.int64 and known.dtype == torch.bool, "prompt", problem)

    def to(self, device: torch.device) -> Prompt:
        """The same on another device."""
        opened = None if self.open is None else self.open.to(device)
        return Prompt(self.tokens.to(device), self.known.to(device), opened)

    def expand(self, count: int) -> Prompt:
        """Repeat a prompt of one row `count` times."""
        opened = None if self.open is None else self.open.expand(count, -1)
        return Prompt(self.tokens.expand(count, -1), self.known.expand(count, -1), opened)
