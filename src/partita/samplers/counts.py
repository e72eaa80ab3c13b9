"""How many positions each step reveals: counts that sum to the number of hidden positions."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from partita.errors import require
from partita.registry import Registry

HIDDEN_SHARE: Registry[Callable[[Tensor], Tensor]] = Registry("counts")
"""The share of positions still hidden after the fraction r of the steps, falling from 1 to 0."""

HIDDEN_SHARE.register("cosine")(lambda r: torch.cos(r * (math.pi / 2)))
HIDDEN_SHARE.register("arccos")(lambda r: torch.acos(r) * (2 / math.pi))
HIDDEN_SHARE.register("square")(lambda r: 1 - r**2)
HIDDEN_SHARE.register("cubic")(lambda r: 1 - r**3)
HIDDEN_SHARE.register("root")(lambda r: 1 - torch.sqrt(r))
HIDDEN_SHARE.register("linear")(lambda r: 1 - r)


def even_counts(hidden: Int64[Tensor, "B"], steps: int) -> Int64[Tensor, "B steps"]:
    """n // steps each, and one more for the first n % steps."""
    require(steps >= 1, "steps", f"must be at least 1, got {steps}")
    index = torch.arange(steps, device=hidden.device)
    base, extra = hidden[:, None] // steps, hidden[:, None] % steps
    return base + (index < extra).long()


def reveal_counts(hidden: Int64[Tensor, "B"], steps: int, rule: str) -> Int64[Tensor, "B steps"]:
    """The positions revealed by each step under a rule such as "cosine".

    After step i, floor(n * share) positions stay hidden, but each step reveals at least one
    while there are any, as MaskGIT does. "linear" spreads the remainder over the first steps.
    """
    share_after = HIDDEN_SHARE[rule]
    if rule == "linear":
        return even_counts(hidden, steps)
    require(steps >= 1, "steps", f"must be at least 1, got {steps}")
    fraction: Float64[Tensor, "steps"] = torch.arange(1, steps + 1, dtype=torch.float64) / steps
    left = torch.floor(hidden[:, None] * share_after(fraction).to(hidden.device)).long()
    at_most = (hidden[:, None] - torch.arange(1, steps + 1, device=hidden.device)).clamp(min=0)
    left = torch.minimum(left, at_most)
    left[:, -1] = 0  # cos(pi/2) is not exactly 0
    before = torch.cat([hidden[:, None], left[:, :-1]], dim=1)
    return before - left
