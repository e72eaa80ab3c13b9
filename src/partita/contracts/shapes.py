"""The tensors of most signatures: B rows of L tokens, N queried positions, V known tokens."""

from __future__ import annotations

from jaxtyping import Bool, Float, Int64
from torch import Tensor

Tokens = Int64[Tensor, "B L"]
"""The id of every token."""
Marks = Bool[Tensor, "B L"]
"""True or false for every token: real, hidden, revealed, or in group 1."""
Labels = Int64[Tensor, "B"]
"""The class of every row."""
RowTimes = Float[Tensor, "B"]
"""The time of every row."""
RowSteps = Int64[Tensor, "B"]
"""The step of every row, in a chain of T steps."""
Indices = Int64[Tensor, "N"]
"""The row, or the position, of each queried token."""
LogProbs = Float[Tensor, "B L V"]
"""Log-probabilities of all tokens at every position."""
