"""Masking schedules: alpha(t), the probability that a token is still visible at time t in [0, 1].

Every schedule falls exactly from alpha(0) = 1 to alpha(1) = 0. Each gives two formulas, one for
1 - alpha that is accurate while 1 - alpha is small (t near 0) and one for alpha that is accurate
while alpha is small (t near 1); the base class takes the better one everywhere, so that both
numbers keep full relative precision in float32 on all of [0, 1] and no epsilon is needed.

    name            alpha(t)                                     weight -alpha'/(1 - alpha)
    linear          1 - t                                        1 / t
    log-linear      the same function; the literature's name for sigma(t) = -log(1 - t)
    polynomial      1 - t^k                                      k / t
    cosine          1 - cos(pi/2 (1 - t))                        pi/2 cot(pi t/2)
    half-cosine     cos(pi t/2)                                  pi/2 cot(pi t/4)
    cosine-squared  cos(pi t/2)^2                                pi cot(pi t/2)
    exponential     e^(-r t), shifted and scaled to [0, 1]       r / (e^(r t) - 1)
    geometric       e^(-sigma(t)), likewise, sigma geometric     sigma' / (e^(sigma - sigma_0) - 1)

The reference implementations use other functions under the same names and stop short of 0 and 1.
They exist here as `mdlm:cosine`, `md4:linear`, `md4:poly3` and so on, for parity alone.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from partita.errors import InputError, require
from partita.registry import Registry

Times = Float[Tensor, "*shape"]

SCHEDULES: Registry[Callable[..., Schedule]] = Registry("schedule")
GRIDS: Registry[Callable[[int], Tensor]] = Registry("grid")


class Schedule(ABC):
    """alpha(t), 1 - alpha(t), alpha'(t), the loss weight and both inverses."""

    # What a schedule supplies -------------------------------------------------------------------

    @abstractmethod
    def _head(self, t: Times) -> Times:
        """1 - alpha(t), accurate while it is small; exactly 0 at t = 0."""

    @abstractmethod
    def _tail(self, t: Times) -> Times:
        """alpha(t), accurate while it is small; exactly 0 at t = 1."""

    @abstractmethod
    def _inverse_head(self, hidden: Times) -> Times:
        """The time at which 1 - alpha equals `hidden`, accurate while `hidden` is small."""

    @abstractmethod
    def _inverse_tail(self, alpha: Times) -> Times:
        """The time at which alpha equals `alpha`, accurate while `alpha` is small."""

    @abstractmethod
    def derivative(self, t: Times) -> Times:
        """alpha'(t), which is never positive."""

    @abstractmethod
    def weight(self, t: Times) -> Times:
        """-alpha'(t) / (1 - alpha(t)), the weight of the continuous-time bound (MDLM eq. 10)."""

    # What everybody calls -----------------------------------------------------------------------

    def alpha(self, t: Times) -> Times:
        """The probability that a token is visible at time t."""
        head = self._head(t)
        return torch.where(head < 0.5, 1 - head, self._tail(t))

    def one_minus_alpha(self, t: Times) -> Times:
        """The probability that a token is masked at time t, without cancellation."""
        head = self._head(t)
        return torch.where(head < 0.5, head, 1 - self._tail(t))

    def inverse(self, alpha: Times) -> Times:
        """The time t with alpha(t) = alpha."""
        time = torch.where(alpha > 0.5, self._inverse_head(1 - alpha), self._inverse_tail(alpha))
        return time.clamp(0, 1)

    def inverse_one_minus(self, hidden: Times) -> Times:
        """The time t with 1 - alpha(t) = hidden."""
        time = torch.where(hidden < 0.5, self._inverse_head(hidden), self._inverse_tail(1 - hidden))
        return time.clamp(0, 1)

    def decrease(self, s: Times, t: Times) -> Times:
        """alpha(s) - alpha(t) for s <= t, taken from whichever of alpha, 1 - alpha is small."""
        hidden_t, alpha_s = self.one_minus_alpha(t), self.alpha(s)
        return torch.where(
            alpha_s < 0.5, alpha_s - self.alpha(t), hidden_t - self.one_minus_alpha(s)
        )

    def reveal_probability(self, s: Times, t: Times) -> Times:
        """(alpha_s - alpha_t) / (1 - alpha_t): a masked token is revealed between t and s < t."""
        return self.decrease(s, t) / self.one_minus_alpha(t)


def _sin(t: Times) -> Times:
    """sin(pi t / 2), accurate near t = 0."""
    return torch.sin(t * (math.pi / 2))


def _cos(t: Times) -> Times:
    """cos(pi t / 2) on [0, 1] with full relative precision near t = 1, where 1 - t is exact."""
    return torch.where(t < 0.5, torch.cos(t * (math.pi / 2)), _sin(1 - t))


@SCHEDULES.register("linear")
@dataclass(frozen=True)
class Linear(Schedule):
    """alpha = 1 - t."""

    def _head(self, t: Times) -> Times:
        return t

    def _tail(self, t: Times) -> Times:
        return 1 - t

    def _inverse_head(self, hidden: Times) -> Times:
        return hidden

    def _inverse_tail(self, alpha: Times) -> Times:
        return 1 - alpha

    def derivative(self, t: Times) -> Times:
        return -torch.ones_like(t)

    def weight(self, t: Times) -> Times:
        return 1 / t


SCHEDULES.register("log-linear")(Linear)


@SCHEDULES.register("polynomial")
@dataclass(frozen=True)
class Polynomial(Schedule):
    """alpha = 1 - t^exponent (GenMD4's schedule of one token)."""

    exponent: float = 2.0

    def __post_init__(self) -> None:
        require(self.exponent > 0, "schedule.exponent", f"must be positive, got {self.exponent}")

    def _head(self, t: Times) -> Times:
        return t**self.exponent

    def _tail(self, t: Times) -> Times:
        return -torch.expm1(self.exponent * torch.log(t))

    def _inverse_head(self, hidden: Times) -> Times:
        return hidden ** (1 / self.exponent)

    def _inverse_tail(self, alpha: Times) -> Times:
        return torch.exp(torch.log1p(-alpha) / self.exponent)

    def derivative(self, t: Times) -> Times:
        return -self.exponent * t ** (self.exponent - 1)

    def weight(self, t: Times) -> Times:
        return self.exponent / t


@SCHEDULES.register("cosine")
@dataclass(frozen=True)
class Cosine(Schedule):
    """alpha = 1 - cos(pi/2 (1 - t)) = 1 - sin(pi t/2): few tokens first, many last."""

    def _head(self, t: Times) -> Times:
        return _sin(t)

    def _tail(self, t: Times) -> Times:
        return 2 * _sin((1 - t) / 2) ** 2

    def _inverse_head(self, hidden: Times) -> Times:
        return torch.asin(hidden) * (2 / math.pi)

    def _inverse_tail(self, alpha: Times) -> Times:
        return 1 - torch.asin(torch.sqrt(alpha / 2)) * (4 / math.pi)

    def derivative(self, t: Times) -> Times:
        return _cos(t) * (-math.pi / 2)

    def weight(self, t: Times) -> Times:
        return (math.pi / 2) * _cos(t) / _sin(t)


@SCHEDULES.register("half-cosine")
@dataclass(frozen=True)
class HalfCosine(Schedule):
    """alpha = cos(pi t/2)."""

    def _head(self, t: Times) -> Times:
        return 2 * _sin(t / 2) ** 2

    def _tail(self, t: Times) -> Times:
        return _cos(t)

    def _inverse_head(self, hidden: Times) -> Times:
        return torch.asin(torch.sqrt(hidden / 2)) * (4 / math.pi)

    def _inverse_tail(self, alpha: Times) -> Times:
        return 1 - torch.asin(alpha) * (2 / math.pi)

    def derivative(self, t: Times) -> Times:
        return _sin(t) * (-math.pi / 2)

    def weight(self, t: Times) -> Times:
        return (math.pi / 2) * _cos(t / 2) / _sin(t / 2)


@SCHEDULES.register("cosine-squared")
@dataclass(frozen=True)
class CosineSquared(Schedule):
    """alpha = cos(pi t/2)^2."""

    def _head(self, t: Times) -> Times:
        return _sin(t) ** 2

    def _tail(self, t: Times) -> Times:
        return _cos(t) ** 2

    def _inverse_head(self, hidden: Times) -> Times:
        return torch.asin(torch.sqrt(hidden)) * (2 / math.pi)

    def _inverse_tail(self, alpha: Times) -> Times:
        return 1 - torch.asin(torch.sqrt(alpha)) * (2 / math.pi)

    def derivative(self, t: Times) -> Times:
        return -math.pi * _sin(t) * _cos(t)

    def weight(self, t: Times) -> Times:
        return math.pi * _cos(t) / _sin(t)


class _Survival(Schedule):
    """alpha = e^(-x(t)) shifted and scaled to run from 1 to 0, for a rising x with x(0) = 0.

    An exponential multiplies the rounding of its argument by x, which may be 20 or more, so the
    arithmetic is float64 whatever the dtype of t.
    """

    @abstractmethod
    def _rise(self, t: Times) -> Times:
        """x(t), accurate near t = 0."""

    @abstractmethod
    def _rest(self, t: Times) -> Times:
        """x(1) - x(t), accurate near t = 1."""

    @abstractmethod
    def _slope(self, t: Times) -> Times:
        """x'(t)."""

    @abstractmethod
    def _inverse_rise(self, x: Times) -> Times:
        """The time at which x(t) = x."""

    def _span(self, t: Times) -> Times:
        """1 - e^(-x(1)), the part of the unit interval that e^(-x) covers."""
        return -torch.expm1(-self._rise(torch.ones_like(t)))

    def _head(self, t: Times) -> Times:
        time = t.double()
        return (-torch.expm1(-self._rise(time)) / self._span(time)).to(t.dtype)

    def _tail(self, t: Times) -> Times:
        time = t.double()
        falling = -torch.expm1(-self._rest(time)) * torch.exp(-self._rise(time))
        return (falling / self._span(time)).to(t.dtype)

    def _inverse_head(self, hidden: Times) -> Times:
        part = hidden.double()
        return self._inverse_rise(-torch.log1p(-part * self._span(part))).to(hidden.dtype)

    def _inverse_tail(self, alpha: Times) -> Times:
        part = alpha.double()
        floor = torch.exp(-self._rise(torch.ones_like(part)))
        return self._inverse_rise(-torch.log(part * self._span(part) + floor)).to(alpha.dtype)

    def derivative(self, t: Times) -> Times:
        time = t.double()
        return (-self._slope(time) * torch.exp(-self._rise(time)) / self._span(time)).to(t.dtype)

    def weight(self, t: Times) -> Times:
        time = t.double()
        return (self._slope(time) / torch.expm1(self._rise(time))).to(t.dtype)


@SCHEDULES.register("exponential")
@dataclass(frozen=True)
class Exponential(_Survival):
    """log alpha linear in t: x(t) = rate t."""

    rate: float = 7.0

    def __post_init__(self) -> None:
        require(self.rate > 0, "schedule.rate", f"must be positive, got {self.rate}")

    def _rise(self, t: Times) -> Times:
        return self.rate * t

    def _rest(self, t: Times) -> Times:
        return self.rate * (1 - t)

    def _slope(self, t: Times) -> Times:
        return torch.full_like(t, self.rate)

    def _inverse_rise(self, x: Times) -> Times:
        return x / self.rate


@SCHEDULES.register("geometric")
@dataclass(frozen=True)
class Geometric(_Survival):
    """log alpha geometric in t: sigma(t) = sigma_min^(1-t) sigma_max^t, x = sigma - sigma_min."""

    sigma_min: float = 1e-3
    sigma_max: float = 20.0

    def __post_init__(self) -> None:
        require(
            0 < self.sigma_min < self.sigma_max,
            "schedule.sigma_min, schedule.sigma_max",
            f"must satisfy 0 < sigma_min < sigma_max, got {self.sigma_min} and {self.sigma_max}",
        )

    @property
    def _log_ratio(self) -> float:
        return math.log(self.sigma_max / self.sigma_min)

    def _rise(self, t: Times) -> Times:
        return self.sigma_min * torch.expm1(t * self._log_ratio)

    def _rest(self, t: Times) -> Times:
        return -self.sigma_max * torch.expm1((t - 1) * self._log_ratio)

    def _slope(self, t: Times) -> Times:
        return self.sigma_min * self._log_ratio * torch.exp(t * self._log_ratio)

    def _inverse_rise(self, x: Times) -> Times:
        return torch.log1p(x / self.sigma_min) / self._log_ratio


# The references' variants, for parity alone ------------------------------------------------------


@dataclass(frozen=True)
class Truncated(Schedule):
    """Another schedule squeezed to run from 1 - cut_start down to cut_end.

    Such a process neither starts at the data nor ends in all masks; the bound then needs the
    reconstruction and prior terms that `methods.masked` computes.
    """

    base: Schedule
    cut_start: float
    cut_end: float

    @property
    def _scale(self) -> float:
        return 1 - self.cut_start - self.cut_end

    def _head(self, t: Times) -> Times:
        return self.cut_start + self._scale * self.base.one_minus_alpha(t)

    def _tail(self, t: Times) -> Times:
        return self.cut_end + self._scale * self.base.alpha(t)

    def _inverse_head(self, hidden: Times) -> Times:
        return self.base.inverse_one_minus(((hidden - self.cut_start) / self._scale).clamp(0, 1))

    def _inverse_tail(self, alpha: Times) -> Times:
        return self.base.inverse(((alpha - self.cut_end) / self._scale).clamp(0, 1))

    def derivative(self, t: Times) -> Times:
        return self._scale * self.base.derivative(t)

    def weight(self, t: Times) -> Times:
        return -self.derivative(t) / self.one_minus_alpha(t)


MDLM_EPS = 1e-3  # the MDLM code's smallest alpha
MD4_EPS = 1e-4  # the MD4 code's distance from both ends
_MD4_POLYNOMIAL = re.compile(r"md4:poly(\d+(?:\.\d+)?)$")


def _mdlm(base: Schedule) -> Callable[[], Schedule]:
    return lambda: Truncated(base, 0.0, MDLM_EPS)


def _md4(base: Schedule) -> Callable[[], Schedule]:
    return lambda: Truncated(base, MD4_EPS, MD4_EPS)


SCHEDULES.register("mdlm:loglinear")(_mdlm(Linear()))
SCHEDULES.register("mdlm:cosine")(_mdlm(HalfCosine()))
SCHEDULES.register("mdlm:cosinesqr")(_mdlm(CosineSquared()))
SCHEDULES.register("md4:linear")(_md4(Linear()))
SCHEDULES.register("md4:cosine")(_md4(Cosine()))


@SCHEDULES.register("mdlm:linear")
def _mdlm_linear(sigma_min: float = 1e-3, sigma_max: float = 7.0) -> Schedule:
    """alpha = e^(-sigma) with sigma linear between its ends."""
    return Truncated(
        Exponential(sigma_max - sigma_min), -math.expm1(-sigma_min), math.exp(-sigma_max)
    )


@SCHEDULES.register("mdlm:geometric")
def _mdlm_geometric(sigma_min: float = 1e-3, sigma_max: float = 20.0) -> Schedule:
    """alpha = e^(-sigma) with sigma geometric between its ends."""
    return Truncated(Geometric(sigma_min, sigma_max), -math.expm1(-sigma_min), math.exp(-sigma_max))


def make_schedule(name: str | Schedule, **options: Any) -> Schedule:
    """A schedule by name, for example `make_schedule("polynomial", exponent=3)`."""
    if isinstance(name, Schedule):
        return name
    match = _MD4_POLYNOMIAL.match(name)
    if match:
        return _md4(Polynomial(float(match.group(1))))()
    try:
        return SCHEDULES[name](**options)
    except TypeError as error:
        raise InputError("schedule", f"{name!r} does not take these options: {error}") from error


# Grids of times ----------------------------------------------------------------------------------


@GRIDS.register("uniform")
def uniform_grid(steps: int) -> Float64[Tensor, "{steps}+1"]:
    """1 = t_0 > ... > t_steps = 0, equally spaced."""
    return torch.linspace(1, 0, steps + 1, dtype=torch.float64)


@GRIDS.register("cosine")
def cosine_grid(steps: int) -> Float64[Tensor, "{steps}+1"]:
    """t_i = cos(pi i / (2 steps)): with a linear schedule, the alphas of the cosine one."""
    return _cos(torch.linspace(0, 1, steps + 1, dtype=torch.float64))


def sampling_grid(name: str, steps: int) -> Float64[Tensor, "{steps}+1"]:
    """The times that a sampler with `steps` steps visits, from exactly 1 to exactly 0."""
    require(steps >= 1, "steps", f"must be at least 1, got {steps}")
    return GRIDS[name](steps)


def discretise(t: Times, steps: int) -> Times:
    """The end of the one of `steps` equal bins that holds t: (floor(t T) + 1) / T, at most 1."""
    return torch.clamp(torch.floor(t * steps) + 1, max=steps) / steps
