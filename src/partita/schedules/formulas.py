"""Schedules named by their formulas. Each falls from exactly alpha(0) = 1 to alpha(1) = 0.

name            alpha(t)                                     weight -alpha'/(1 - alpha)
linear          1 - t                                        1 / t
log-linear      the same function; the literature's name for sigma(t) = -log(1 - t)
polynomial      1 - t^k                                      k / t
power           (1 - t)^k                                    k (1 - t)^(k-1) / (1 - (1 - t)^k)
cosine          1 - cos(pi/2 (1 - t))                        pi/2 cot(pi t/2)
arccos          1 - arccos(1 - t) / (pi/2)                   1 / (sqrt(t (2 - t)) arccos(1 - t))
half-cosine     cos(pi t/2)                                  pi/2 cot(pi t/4)
cosine-squared  cos(pi t/2)^2                                pi cot(pi t/2)
exponential     e^(-r t), shifted and scaled to [0, 1]       r / (e^(r t) - 1)
geometric       e^(-sigma(t)), likewise, sigma geometric     sigma' / (e^(sigma - sigma_0) - 1)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from partita.errors import require, require_number
from partita.schedules.base import SCHEDULES, Schedule, Times


def sin_quarter(t: Times) -> Times:
    """sin(pi t / 2), accurate near t = 0."""
    return torch.sin(t * (math.pi / 2))


def cos_quarter(t: Times) -> Times:
    """cos(pi t / 2) on [0, 1] with full relative precision near t = 1, where 1 - t is exact."""
    return torch.where(t < 0.5, torch.cos(t * (math.pi / 2)), sin_quarter(1 - t))


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
        require_number(self.exponent, "schedule.exponent")
        require(self.exponent > 0, "schedule.exponent", "must be positive, got 0")

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


@SCHEDULES.register("power")
@dataclass(frozen=True)
class Power(Schedule):
    """alpha = (1 - t)^exponent, with exponent >= 1, so that alpha' is finite at t = 1."""

    exponent: float = 2.0

    def __post_init__(self) -> None:
        require_number(self.exponent, "schedule.exponent", 1)

    def _head(self, t: Times) -> Times:
        return -torch.expm1(self.exponent * torch.log1p(-t))

    def _tail(self, t: Times) -> Times:
        return (1 - t) ** self.exponent

    def _inverse_head(self, hidden: Times) -> Times:
        return -torch.expm1(torch.log1p(-hidden) / self.exponent)

    def _inverse_tail(self, alpha: Times) -> Times:
        return 1 - alpha ** (1 / self.exponent)

    def derivative(self, t: Times) -> Times:
        return -self.exponent * (1 - t) ** (self.exponent - 1)


@SCHEDULES.register("cosine")
@dataclass(frozen=True)
class Cosine(Schedule):
    """alpha = 1 - cos(pi/2 (1 - t)) = 1 - sin(pi t/2): sampling reveals few tokens at first."""

    def _head(self, t: Times) -> Times:
        return sin_quarter(t)

    def _tail(self, t: Times) -> Times:
        return 2 * sin_quarter((1 - t) / 2) ** 2

    def _inverse_head(self, hidden: Times) -> Times:
        return torch.asin(hidden) * (2 / math.pi)

    def _inverse_tail(self, alpha: Times) -> Times:
        return 1 - torch.asin(torch.sqrt(alpha / 2)) * (4 / math.pi)

    def derivative(self, t: Times) -> Times:
        return cos_quarter(t) * (-math.pi / 2)

    def weight(self, t: Times) -> Times:
        return (math.pi / 2) * cos_quarter(t) / sin_quarter(t)


@SCHEDULES.register("arccos")
@dataclass(frozen=True)
class Arccos(Schedule):
    """alpha = 1 - arccos(1 - t) / (pi/2) = arcsin(1 - t) / (pi/2): MaskGIT's in training.

    MaskGIT's r is 1 - t, and the share of hidden tokens is arccos(r) / (pi/2).
    """

    def _head(self, t: Times) -> Times:
        return _arccos_of_one_minus(t) * (2 / math.pi)

    def _tail(self, t: Times) -> Times:
        return torch.asin(1 - t) * (2 / math.pi)

    def _inverse_head(self, hidden: Times) -> Times:
        return 2 * sin_quarter(hidden / 2) ** 2

    def _inverse_tail(self, alpha: Times) -> Times:
        return 1 - sin_quarter(alpha)

    def derivative(self, t: Times) -> Times:
        return (-2 / math.pi) * torch.rsqrt(t * (2 - t))

    def weight(self, t: Times) -> Times:
        return torch.rsqrt(t * (2 - t)) / _arccos_of_one_minus(t)


def _arccos_of_one_minus(t: Times) -> Times:
    """arccos(1 - t), accurate near t = 0: 1 - cos(x) = 2 sin(x/2)^2."""
    return 2 * torch.asin(torch.sqrt(t / 2))


@SCHEDULES.register("half-cosine")
@dataclass(frozen=True)
class HalfCosine(Schedule):
    """alpha = cos(pi t/2)."""

    def _head(self, t: Times) -> Times:
        return 2 * sin_quarter(t / 2) ** 2

    def _tail(self, t: Times) -> Times:
        return cos_quarter(t)

    def _inverse_head(self, hidden: Times) -> Times:
        return torch.asin(torch.sqrt(hidden / 2)) * (4 / math.pi)

    def _inverse_tail(self, alpha: Times) -> Times:
        return 1 - torch.asin(alpha) * (2 / math.pi)

    def derivative(self, t: Times) -> Times:
        return sin_quarter(t) * (-math.pi / 2)

    def weight(self, t: Times) -> Times:
        return (math.pi / 2) * cos_quarter(t / 2) / sin_quarter(t / 2)


@SCHEDULES.register("cosine-squared")
@dataclass(frozen=True)
class CosineSquared(Schedule):
    """alpha = cos(pi t/2)^2."""

    def _head(self, t: Times) -> Times:
        return sin_quarter(t) ** 2

    def _tail(self, t: Times) -> Times:
        return cos_quarter(t) ** 2

    def _inverse_head(self, hidden: Times) -> Times:
        return torch.asin(torch.sqrt(hidden)) * (2 / math.pi)

    def _inverse_tail(self, alpha: Times) -> Times:
        return 1 - torch.asin(torch.sqrt(alpha)) * (2 / math.pi)

    def derivative(self, t: Times) -> Times:
        return -math.pi * sin_quarter(t) * cos_quarter(t)

    def weight(self, t: Times) -> Times:
        return math.pi * cos_quarter(t) / sin_quarter(t)
