"""MD4's schedules as in its reference implementation."""

from __future__ import annotations

import torch

from partita.schedules import make_schedule
from partita.schedules.reference import MD4_EPS, Truncated


def plain_schedule(name):
    """Our schedule, from exactly 1 to exactly 0, under MD4's name."""
    if name.startswith("poly"):
        return make_schedule("polynomial", exponent=float(name.removeprefix("poly")))
    return make_schedule(name)


def stopped_schedule(name, eps):
    """The same, eps away from both ends; with MD4's own eps it has a name in the library."""
    if eps == MD4_EPS:
        return make_schedule(f"md4:{name}")
    return Truncated(plain_schedule(name), eps, eps)


def scalar(value):
    """A number in the shape of a stored one."""
    return torch.tensor([value], dtype=torch.float64)
