"""Exponential schedules (see `formulas.py`), shifted and scaled to fall from 1 to 0."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch

from partita.errors import require
from partita.schedules.base import SCHEDULES, Schedule, Times


class _Survival(Schedule):
    """alpha = e^(-x(t)) shifted and scaled to fall from 1 to 0, for a rising x with x(0) = 0.

    An exponential multiplies the relative rounding error of x by x, which may be 20 or more, so the
    arithmetic is in float64 for every dtype of t.
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
        rising = 0 < self.sigma_min < self.sigma_max
        problem = f"must rise from above 0, got {self.sigma_min} and {self.sigma_max}"
        require(rising, "schedule.sigma_min, schedule.sigma_max", problem)

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
