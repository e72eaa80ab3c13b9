"""Grids of times, for the steps of samplers and of T-step bounds."""

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
    """t_i = cos(pi i / (2 steps)): the linear schedule then has the cosine schedule's alphas."""
    return cos_quarter(torch.linspace(0, 1, steps + 1, dtype=torch.float64))


def sampling_grid(name: str, steps: int) -> Float64[Tensor, "{steps}+1"]:
    """The times of a sampler with `steps` steps, from exactly 1 to exactly 0."""
    require_int(steps, "steps")
    return GRIDS[name](steps)


def discretize(t: Times, steps: int) -> Times:
    """The upper end of t's bin among `steps` equal bins: (floor(t T) + 1) / T, at most 1."""
    return torch.clamp(torch.floor(t * steps) + 1, max=steps) / steps
