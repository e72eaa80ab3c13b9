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
        require(
            isinstance(self.tokens, Tensor) and isinstance(self.known, Tensor),
            "prompt",
            "tokens and known must be tensors, "
            f"got {type(self.tokens).__name__} and {type(self.known).__name__}",
        )
        require(
            self.tokens.ndim == 2 and self.tokens.shape == self.known.shape,
            "prompt",
            "tokens and known must both be [samples, length], "
            f"got {list(self.tokens.shape)} and {list(self.known.shape)}",
        )
        gaps = (self.tokens.shape[0], self.tokens.shape[1] + 1)
        require(
            self.open is None or (self.open.shape == gaps and self.open.dtype == torch.bool),
            "prompt",
            "open must be bool and [samples, length + 1], one for each gap",
        )
        require(
            self.tokens.dtype == torch.int64 and self.known.dtype == torch.bool,
            "prompt",
            f"tokens must be int64 and known bool, got {self.tokens.dtype} and {self.known.dtype}",
        )

    def to(self, device: torch.device) -> Prompt:
        """The same on another device."""
        opened = None if self.open is None else self.open.to(device)
        return Prompt(self.tokens.to(device), self.known.to(device), opened)

    def expand(self, count: int) -> Prompt:
        """Repeat a prompt of one row `count` times."""
        opened = None if self.open is None else self.open.expand(count, -1)
        return Prompt(self.tokens.expand(count, -1), self.known.expand(count, -1), opened)
