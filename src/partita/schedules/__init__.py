"""Noise schedules: alpha(t), its complement, derivative and inverses; and grids of times."""

from __future__ import annotations

from typing import Any

from partita.errors import require
from partita.moved import offer_old_names
from partita.registry import check_options
from partita.schedules.base import SCHEDULES, Schedule
from partita.schedules.grids import GRIDS, discretize, sampling_grid
from partita.schedules.reference import md4_polynomial

__all__ = ["GRIDS", "SCHEDULES", "Schedule", "discretize", "make_schedule", "sampling_grid"]


def make_schedule(name: str | Schedule, **options: Any) -> Schedule:
    """A schedule by name, for example `make_schedule("polynomial", exponent=3)`."""
    if isinstance(name, Schedule):
        return name
    require(isinstance(name, str), "schedule", f"must be a name or a schedule, got {name!r}")
    polynomial = md4_polynomial(name)
    if polynomial is not None:
        return polynomial
    check_options("schedule", name, SCHEDULES[name], options)
    return SCHEDULES[name](**options)


offer_old_names(__name__)
