"""The conditions of packed tokens: a vector for each row of a batch, and the row of each token.

A layer of adaLN reads the vectors of rows, of which there are few, and its answers are handed to
the tokens: the same numbers as if every token had a vector of its own, for a fraction of the work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class RowCondition:
    """The vectors of rows, and which of them each token has."""

    vectors: Float[Tensor, "R C"]
    rows: Int[Tensor, "N"]

    def __getitem__(self, places: Int[Tensor, "M"]) -> RowCondition:
        """The conditions of some of the tokens."""
        return RowCondition(self.vectors, self.rows[places])


Condition = Tensor | RowCondition
"""One vector for each token, vectors that broadcast over the tokens, or those of their rows."""


def through(layer: Callable[[Tensor], Tensor], condition: Condition) -> Tensor:
    """What a layer makes of each token's condition."""
    if isinstance(condition, RowCondition):
        return layer(condition.vectors)[condition.rows]
    return layer(condition)
