"""The schedules of the reference implementations, for parity with them.

They use different functions under the same names, and stop short of alpha = 0 and 1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from partita.schedules.base import SCHEDULES, Schedule, Times
from partita.schedules.formulas import Cosine, CosineSquared, HalfCosine, Linear, Polynomial
from partita.schedules.survival import Exponential, Geometric


@dataclass(frozen=True)
class Truncated(Schedule):
    """Another schedule rescaled to fall from 1 - cut_start to cut_end.

    Such a process neither starts at the data nor ends in all masks, so the bound needs the
    reconstruction and prior terms that `processes.masked` computes.
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


MDLM_EPS = 1e-3  # the MDLM code's smallest alpha
MD4_EPS = 1e-4  # the MD4 code's distance from both ends
_MD4_POLYNOMIAL = re.compile(r"md4:poly(\d+(?:\.\d+)?)$")


def _stopped(base: Schedule, start: float, end: float, text: str) -> Callable[[], Schedule]:
    def make() -> Schedule:
        return Truncated(base, start, end)

    make.__doc__ = text
    return make


_MDLM: dict[str, tuple[Schedule, str]] = {
    "loglinear": (Linear(), "1 - t"),
    "cosine": (HalfCosine(), "cos(pi t/2)"),
    "cosinesqr": (CosineSquared(), "cos(pi t/2)^2"),
}
_MD4: dict[str, tuple[Schedule, str]] = {
    "linear": (Linear(), "1 - t"),
    "cosine": (Cosine(), "1 - cos(pi/2 (1 - t))"),
}
for _name, (_base, _what) in _MDLM.items():
    SCHEDULES.register(f"mdlm:{_name}")(
        _stopped(_base, 0.0, MDLM_EPS, f"{_what}, stopped at alpha = {MDLM_EPS:g}.")
    )
for _name, (_base, _what) in _MD4.items():
    SCHEDULES.register(f"md4:{_name}")(
        _stopped(_base, MD4_EPS, MD4_EPS, f"{_what}, {MD4_EPS:g} away from both ends.")
    )


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


def md4_polynomial(name: str) -> Schedule | None:
    """The schedule named `md4:poly3`, with any exponent; None for other names."""
    match = _MD4_POLYNOMIAL.match(name)
    if match is None:
        return None
    return Truncated(Polynomial(float(match.group(1))), MD4_EPS, MD4_EPS)
