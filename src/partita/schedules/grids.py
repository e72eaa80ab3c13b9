"""Grids of times: where samplers step, and where T-step bounds stand."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float64
from torch import Tensor

from partita.errors import require_int
from partita.registry import Registry
from partita.schedules.base import Times
from partita.schedules.formulas import cos_quarter

GRIDS: Registry[Callable[[int], Tensor]] = Registry("grid")


@GRIDS.register("uniform")
def uniform_grid(steps: int) -> Float64[Tensor, "{steps}+1"]:
    """1 = t_0 > ... > t_steps = 0, equally spaced."""
    return torch.linspace(1, 0, steps + 1, dtype=torch.float64)


@GRIDS.register("cosine")
def cosine_grid(steps: int) -> Float64[Tensor, "{steps}+1"]:
    """t_i = cos(pi i / (2 steps)): with a linear schedule, the alphas of the cosine one."""
    return cos_quarter(torch.linspace(0, 1, steps + 1, dtype=torch.float64))


def sampling_grid(name: str, steps: int) -> Float64[Tensor, "{steps}+1"]:
    """The times that a sampler with `steps` steps visits, from exactly 1 to exactly 0."""
    require_int(steps, "steps")
    return GRIDS[name](steps)


def discretise(t: Times, steps: int) -> Times:
    """The end of the one of `steps` equal bins that holds t: (floor(t T) + 1) / T, at most 1."""
    return torch.clamp(torch.floor(t * steps) + 1, max=steps) / steps
