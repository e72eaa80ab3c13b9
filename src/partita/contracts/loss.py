"""What every loss gives: the scalar to differentiate, and the nats of every token."""

from __future__ import annotations

from dataclasses import dataclass, replace

from jaxtyping import Bool, Float, Int64
from torch import Tensor


@dataclass(frozen=True)
class Loss:
    """One loss evaluation. Training, evaluation and tests all read this object."""

    objective: Float[Tensor, ""]
    """The scalar to differentiate: weighted nats per token of the batch."""
    per_token: Float[Tensor, "B L"]
    """Weight times cross-entropy of each token in nats; 0 where a token does not count."""
    cross_entropy: Float[Tensor, "B L"]
    """The same without the weight."""
    counted: Bool[Tensor, "B L"]
    """The tokens that were predicted."""
    tokens: Int64[Tensor, ""]
    """How many real tokens the batch has: the divisor of the objective."""

    @property
    def per_sequence(self) -> Float[Tensor, "B"]:
        """Nats of each sequence; for the weights of a bound, an unbiased estimate of that bound."""
        return self.per_token.sum(-1)

    def of(self, predicted: Bool[Tensor, "B L"]) -> Loss:
        """The same, where other tokens were asked for too, at weight 0."""
        nats = self.cross_entropy.where(predicted, 0)
        return replace(self, cross_entropy=nats, counted=self.counted & predicted)
