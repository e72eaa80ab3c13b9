"""What a method owes: a loss to train by, and answers for samplers to work with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int64
from torch import Tensor

from partita.registry import Registry

METHODS: Registry[type] = Registry("method")


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


@runtime_checkable
class Model(Protocol):
    """What `sample` needs to know of any model."""

    @property
    def family(self) -> str:
        """ "masked" or "causal": which samplers fit."""
        ...

    @property
    def length(self) -> int:
        """Longest sequence."""
        ...

    @property
    def mask_id(self) -> int:
        """An input id that no real token has; it stands for a hidden one."""
        ...


@runtime_checkable
class Denoiser(Model, Protocol):
    """A model that answers questions: given what is revealed, what stands at these positions?

    This is all that the samplers of the masked family know of a model.
    """

    @property
    def timed(self) -> bool:
        """Whether predictions depend on the time."""
        ...

    def predict(
        self,
        tokens: Int64[Tensor, "B L"],
        revealed: Bool[Tensor, "B L"],
        rows: Int64[Tensor, "N"],
        positions: Int64[Tensor, "N"],
        time: Float[Tensor, "B"] | None = None,
        label: Int64[Tensor, "B"] | None = None,
    ) -> Float[Tensor, "N V"]:
        """Log-probabilities of the tokens at the (row, position) pairs; the mask's is -inf."""
        ...
