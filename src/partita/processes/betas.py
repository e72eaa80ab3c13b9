"""The betas of D3PM: how much noise each of the T steps adds (section 3.1, appendix A.2).

name                 beta_t
linear               from `start` to `end`, evenly spaced (used in the paper for the Gaussian)
cosine               1 - c_t / c_(t-1) with c_t = cos((t/T + offset) / (1 + offset) pi/2)
cosine-squared       the same with c^2, the continuous diffusion's cosine
mutual-information   1 / (T - t + 1), also named jsd: an absorbing process then loses the same
                     information in every step, and 1 - t/T of the tokens are visible after step t
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from partita.errors import InputError, require, require_int, require_number
from partita.registry import Registry, check_options
from partita.schedules import Schedule

Betas = Callable[[int], Tensor]
LARGEST = 0.999
BETAS: Registry[Callable[..., Betas]] = Registry("betas")


def _numbers(steps: int) -> Float64[Tensor, "T"]:
    """1..T, always on the CPU, even under another default device."""
    return torch.arange(1, steps + 1, dtype=torch.float64, device="cpu")


@BETAS.register("linear")
@dataclass(frozen=True)
class LinearBetas:
    """From `start` to `end`: 0.0001 and 0.02 for the paper's 1,000 steps.

    By default, fewer steps have proportionally larger betas, so that the total noise is the same.
    """

    start: float | None = None
    end: float | None = None

    def __post_init__(self) -> None:
        for name in ("start", "end"):
            if (value := getattr(self, name)) is not None:
                require_number(value, f"betas.{name}")

    def __call__(self, steps: int) -> Float64[Tensor, "T"]:
        scale = 1000 / steps
        start = min(1e-4 * scale, LARGEST) if self.start is None else self.start
        end = min(0.02 * scale, LARGEST) if self.end is None else self.end
        return torch.linspace(start, end, steps, dtype=torch.float64, device="cpu")


@BETAS.register("cosine")
@dataclass(frozen=True)
class CosineBetas:
    """1 - c_t / c_(t-1), at most `cap`."""

    offset: float = 0.008
    cap: float = LARGEST

    def __post_init__(self) -> None:
        require_number(self.offset, "betas.offset")
        require_number(self.cap, "betas.cap")

    def __call__(self, steps: int) -> Float64[Tensor, "T"]:
        return self._lost(steps).clamp(max=self.cap)

    def _lost(self, steps: int) -> Float64[Tensor, "T"]:
        """1 - cos b / cos a by cos a - cos b = 2 sin((a + b)/2) sin((b - a)/2), which is exact."""
        unit = math.pi / 2 / (1 + self.offset)
        before = ((_numbers(steps) - 1) / steps + self.offset) * unit
        half = unit / steps / 2
        return 2 * torch.sin(before + half) * math.sin(half) / torch.cos(before)


@BETAS.register("cosine-squared")
@dataclass(frozen=True)
class CosineSquaredBetas(CosineBetas):
    """1 - (c_t / c_(t-1))^2, at most `cap`."""

    def __call__(self, steps: int) -> Float64[Tensor, "T"]:
        lost = self._lost(steps)
        return (lost * (2 - lost)).clamp(max=self.cap)


@BETAS.register("mutual-information")
@dataclass(frozen=True)
class MutualInformationBetas:
    """1 / (T - t + 1)."""

    def __call__(self, steps: int) -> Float64[Tensor, "T"]:
        return 1 / _numbers(steps).flip(0)


BETAS.register("jsd")(MutualInformationBetas)


def betas_of(schedule: Schedule, steps: int) -> Float64[Tensor, "T"]:
    """The betas that keep alpha(t/T) of the tokens after step t: (alpha_s - alpha_t) / alpha_s."""
    end = _numbers(steps) / steps
    start = (_numbers(steps) - 1) / steps
    return schedule.decrease(start, end) / schedule.alpha(start)


def make_betas(
    betas: str | Schedule | Tensor, steps: int | None, default_steps: int, **options: Any
) -> Float64[Tensor, "T"]:
    """Betas by name, of a schedule, or as a tensor, which also defines the number of steps."""
    if steps is not None:
        require_int(steps, "steps")
    if isinstance(betas, str):
        check_options("betas", betas, BETAS[betas], options)
        return BETAS[betas](**options)(steps or default_steps)
    require(not options, "betas", f"only a name takes options such as {', '.join(options)}")
    if isinstance(betas, Schedule):
        return betas_of(betas, steps or default_steps)
    given = isinstance(betas, Tensor) and betas.ndim == 1 and betas.is_floating_point()
    if not given or betas.numel() == 0:
        raise InputError("betas", "must be a name, a schedule or a float tensor [T]")
    problem = f"is {steps}, but there are {len(betas)} betas"
    remedy = "leave it out"
    require(steps is None or steps == len(betas), "steps", problem, remedy)
    return betas.to("cpu", torch.float64)
