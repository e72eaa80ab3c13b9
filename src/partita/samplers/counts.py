"""How many positions each step reveals: counts that sum to the number of hidden positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Int64
from torch import Tensor

from partita.errors import require, require_int
from partita.registry import Registry

HIDDEN_SHARE: Registry[Callable[[Tensor], Tensor]] = Registry("counts")
"""The share of positions that are still hidden after a fraction r of the steps, from 1 to 0."""

HIDDEN_SHARE.register("cosine")(lambda r: torch.cos(r * (math.pi / 2)))
HIDDEN_SHARE.register("arccos")(lambda r: torch.acos(r) * (2 / math.pi))
HIDDEN_SHARE.register("square")(lambda r: 1 - r**2)
HIDDEN_SHARE.register("cubic")(lambda r: 1 - r**3)
HIDDEN_SHARE.register("root")(lambda r: 1 - torch.sqrt(r))
HIDDEN_SHARE.register("linear")(lambda r: 1 - r)


def even_counts(hidden: Int64[Tensor, "B"], steps: int) -> Int64[Tensor, "B steps"]:
    """Split n positions evenly: n // steps each, and one more for the first n % steps."""
    require_int(steps, "steps")
    index = torch.arange(steps, device=hidden.device)
    base, extra = hidden[:, None] // steps, hidden[:, None] % steps
    return base + (index < extra).long()


def reveal_counts(
    hidden: Int64[Tensor, "B"], steps: int, rule: str | Sequence[int]
) -> Int64[Tensor, "B steps"]:
    """The number of positions that each step reveals: by a rule such as "cosine", or as listed.

    After step i about floor(n * share) positions stay hidden, but every step reveals at least
    one and leaves one for each later step, as long as there are enough. "linear" spreads the
    remainder over the first steps.
    """
    if not isinstance(rule, str):
        return _listed(hidden, steps, rule)
    share_after = HIDDEN_SHARE[rule]
    if rule == "linear":
        return even_counts(hidden, steps)
    require_int(steps, "steps")
    step = torch.arange(1, steps + 1, device=hidden.device)
    planned = hidden[:, None] * share_after(step.double() / steps)
    # left_i + i may not rise (one position per step at least), nor exceed n, nor fall below the
    # number of steps (one position for each step to come).
    left_plus_step = torch.floor(planned).long() + step
    left_plus_step = torch.cummin(left_plus_step, dim=1).values
    left_plus_step = left_plus_step.clamp(min=steps).minimum(hidden[:, None])
    left = (left_plus_step - step).clamp(min=0)
    left[:, -1] = 0
    before = torch.cat([hidden[:, None], left[:, :-1]], dim=1)
    return before - left


def _listed(hidden: Tensor, steps: int, counts: Sequence[int]) -> Tensor:
    """Check counts that the caller lists and repeat them for every row."""
    whole = isinstance(counts, list | tuple) and all(type(n) is int and n >= 0 for n in counts)
    require(whole, "counts", f"must be a rule or numbers of positions, got {counts!r}")
    need = f"has {len(counts)} numbers for {steps} steps"
    require(len(counts) == steps, "counts", need, "give one for each step")
    total, fits = sum(counts), bool((hidden == sum(counts)).all())
    problem = f"sum to {total}, but {sorted(set(hidden.tolist()))} positions are hidden"
    require(fits, "counts", problem)
    return torch.tensor(counts, device=hidden.device).expand(len(hidden), steps)
