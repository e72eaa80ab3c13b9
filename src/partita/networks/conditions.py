"""Conditions of packed tokens: a vector for each row of a batch, and the row of each token.

An adaLN layer is computed once per row, and its outputs are copied to the row's tokens. The values
are the same as with a vector for every token, at a fraction of the cost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class RowCondition:
    """One condition vector for each row, and the row of each token."""

    vectors: Float[Tensor, "R C"]
    rows: Int[Tensor, "N"]

    def __getitem__(self, indices: Int[Tensor, "M"]) -> RowCondition:
        """The conditions of some of the tokens."""
        return RowCondition(self.vectors, self.rows[indices])


Condition = Tensor | RowCondition
"""Vectors for each token, vectors that broadcast over the tokens, or vectors of rows."""


def through(layer: Callable[[Tensor], Tensor], condition: Condition) -> Tensor:
    """Apply a layer to each token's condition."""
    if isinstance(condition, RowCondition):
        return layer(condition.vectors)[condition.rows]
    return layer(condition)
