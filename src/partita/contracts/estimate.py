"""A likelihood with its error, in every unit that is printed."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """Nats per token, with the standard error of the Monte Carlo integral (not of the data)."""

    nats: float
    nats_error: float
    tokens: int
    """Number of tokens that the mean is over."""

    @property
    def bits(self) -> float:
        """Bits per token (per character for a character model)."""
        return self.nats / math.log(2)

    @property
    def bits_error(self) -> float:
        return self.nats_error / math.log(2)

    @property
    def perplexity(self) -> float:
        """exp of the nats per token; infinite on overflow."""
        try:
            return math.exp(self.nats)
        except OverflowError:
            return math.inf

    @property
    def perplexity_error(self) -> float:
        """The standard error of the perplexity, to first order."""
        return self.perplexity * self.nats_error if self.nats_error else 0.0

    def __str__(self) -> str:
        return (
            f"{self.nats:.4f} ± {self.nats_error:.4f} nats per token, "
            f"{self.bits:.4f} ± {self.bits_error:.4f} bits, "
            f"perplexity {self.perplexity:.3f} ± {self.perplexity_error:.3f}"
        )
