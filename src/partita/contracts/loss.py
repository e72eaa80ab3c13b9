"""The result of a loss: the scalar to differentiate, and the nats of every token."""

from __future__ import annotations

from dataclasses import dataclass, replace

from jaxtyping import Bool, Float, Int64
from torch import Tensor


@dataclass(frozen=True)
class Loss:
    """The result of one loss evaluation, for training and evaluation."""

    objective: Float[Tensor, ""]
    """The scalar to differentiate: weighted nats per token of the batch."""
    per_token: Float[Tensor, "B L"]
    """Weight times cross-entropy of each token in nats; 0 where a token does not count."""
    cross_entropy: Float[Tensor, "B L"]
    """Cross-entropy of each token in nats, without the weight."""
    counted: Bool[Tensor, "B L"]
    """True for the tokens that were predicted."""
    tokens: Int64[Tensor, ""]
    """Number of real tokens in the batch: the divisor of the objective."""

    @property
    def per_sequence(self) -> Float[Tensor, "B"]:
        """Nats of each sequence; for the weights of a bound, an unbiased estimate of that bound."""
        return self.per_token.sum(-1)

    def of(self, predicted: Bool[Tensor, "B L"]) -> Loss:
        """The same with only the given tokens counted; others were queried with weight 0."""
        nats = self.cross_entropy.where(predicted, 0)
        return replace(self, cross_entropy=nats, counted=self.counted & predicted)
