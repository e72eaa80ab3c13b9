"""What packed tokens are told: a vector for each row of a batch, and the row of each token.

A layer of adaLN reads the vectors of rows, of which there are few, and its answers are handed to
the tokens: the same numbers as if every token had a vector of its own, for a fraction of the work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Told:
    """The vectors of rows, and which of them each token has."""

    vectors: Float[Tensor, "R C"]
    rows: Int[Tensor, "N"]

    def __getitem__(self, places: Int[Tensor, "M"]) -> Told:
        """What some of the tokens are told."""
        return Told(self.vectors, self.rows[places])


Condition = Tensor | Told
"""One vector for each token, vectors that broadcast over the tokens, or those of their rows."""


def through(layer: Callable[[Tensor], Tensor], condition: Condition) -> Tensor:
    """What a layer makes of each token's condition."""
    if isinstance(condition, Told):
        return layer(condition.vectors)[condition.rows]
    return layer(condition)
