"""Laws that hide tokens for training and evaluation, and the weights that make them bounds.

Every objective of the masked family is E[sum over hidden tokens of w * -log p(x)]. A law draws
which tokens are hidden and gives w. The first three are the same bound, estimated differently:

    continuous   t uniform, hide with 1 - alpha_t, w = -alpha'_t / (1 - alpha_t)    (MDLM eq. 10)
    discrete     t on T bins, w = T (alpha_s - alpha_t) / (1 - alpha_t)             (MDLM eq. 8)
    subset       k uniform on 1..L, k random positions, w = L / k
    unweighted   as continuous with w = 1: lower variance, no bound
    rate         any hiding rate and any weight: masked generative modelling at large

The subset law follows from the continuous one by integrating t out: exactly k of L tokens are
hidden with density C(L, k) (1 - alpha)^k alpha^(L-k), and the integral of that times
-alpha'/(1 - alpha) over t is C(L, k) B(k, L - k + 1) = 1/k, whatever the schedule. It needs a
network that is not told the time, and its weights are bounded by L.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from partita.errors import InputError, require_int
from partita.randomness import Noise, Purpose
from partita.registry import Registry, check_options
from partita.schedules import Schedule, discretise

LAWS: Registry[Callable[..., Law]] = Registry("law")


@dataclass(frozen=True)
class Corruption:
    """Hidden tokens, the weight of each, and the time of each row where the law has one."""

    masked: Bool[Tensor, "B L"]
    weights: Float[Tensor, "B L"]
    times: Float[Tensor, "B"] | None


@runtime_checkable
class Law(Protocol):
    """How tokens are hidden."""

    @property
    def timed(self) -> bool:
        """Whether a draw comes with a time."""
        ...

    @property
    def bound(self) -> bool:
        """Whether the weights are those of a likelihood bound."""
        ...

    def draw(self, valid: Bool[Tensor, "B L"], noise: Noise, step: int, batch: int) -> Corruption:
        """Hide some of the valid tokens."""
        ...


def low_discrepancy(
    shift: Float[Tensor, "*"], index: Int64[Tensor, "B"], batch: int
) -> Float[Tensor, "B"]:
    """(shift + i / n) mod 1: one uniform shift spreads the whole batch evenly over [0, 1)."""
    return (shift + index.double() / batch) % 1


def even_times(noise: Noise, step: int, batch: int) -> Float[Tensor, "B"]:
    """Low-discrepancy times of the rows `noise.samples` of a global batch, in float64."""
    return low_discrepancy(noise.shared(Purpose.TIME, step), noise.samples, batch)


def hide_independently(
    rate: Float[Tensor, "B"], valid: Bool[Tensor, "B L"], noise: Noise, step: int
) -> Bool[Tensor, "B L"]:
    """Hide each valid token with its row's probability."""
    return (_uniforms(valid, noise, step) < rate[:, None]) & valid


def _uniforms(valid: Tensor, noise: Noise, step: int) -> Tensor:
    positions = torch.arange(valid.shape[1], device=valid.device)[None]
    return noise.uniform(Purpose.MASK, step, positions)


def _positive_time(time: Tensor) -> Tensor:
    """[0, 1) mirrored to (0, 1]: the weight at t = 0 is infinite, on an event of probability 0."""
    return 1 - time


@LAWS.register("continuous")
@dataclass(frozen=True)
class Continuous:
    """The continuous-time bound."""

    schedule: Schedule
    timed: ClassVar[bool] = True
    bound: ClassVar[bool] = True

    def draw(self, valid: Bool[Tensor, "B L"], noise: Noise, step: int, batch: int) -> Corruption:
        t = _positive_time(even_times(noise, step, batch))
        masked = hide_independently(self.schedule.one_minus_alpha(t), valid, noise, step)
        return Corruption(masked, self.schedule.weight(t)[:, None].expand(valid.shape), t)


@LAWS.register("discrete")
@dataclass(frozen=True)
class Discrete:
    """The bound of a chain of T steps; its first step is the reconstruction term."""

    schedule: Schedule
    steps: int = 1000
    timed: ClassVar[bool] = True
    bound: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_int(self.steps, "steps")

    def draw(self, valid: Bool[Tensor, "B L"], noise: Noise, step: int, batch: int) -> Corruption:
        t = discretise(even_times(noise, step, batch), self.steps)
        masked = hide_independently(self.schedule.one_minus_alpha(t), valid, noise, step)
        return Corruption(masked, self.weights(t)[:, None].expand(valid.shape), t)

    def weights(self, t: Float[Tensor, "B"]) -> Float[Tensor, "B"]:
        """T (alpha_s - alpha_t) / (1 - alpha_t) with s = t - 1/T, for t on the grid."""
        bin_number = torch.round(t.double() * self.steps)  # float32 times would cancel in t - s
        s, end = (bin_number - 1) / self.steps, bin_number / self.steps
        return (self.steps * self.schedule.reveal_probability(s, end)).to(t.dtype)


@LAWS.register("subset")
@dataclass(frozen=True)
class Subset:
    """The same bound with the time integrated out, for networks that are not told the time."""

    schedule: Schedule | None = None
    timed: ClassVar[bool] = False
    bound: ClassVar[bool] = True

    def draw(self, valid: Bool[Tensor, "B L"], noise: Noise, step: int, batch: int) -> Corruption:
        tokens = valid.sum(-1)
        share = even_times(noise, step, batch)
        count = torch.minimum(torch.floor(share * tokens) + 1, tokens)
        keys = _uniforms(valid, noise, step).masked_fill(~valid, torch.inf)
        rank = keys.argsort(-1).argsort(-1)
        weight = tokens / count.clamp(min=1)  # a row of padding alone hides nothing
        masked = (rank < count[:, None]) & valid
        return Corruption(masked, weight[:, None].expand(valid.shape), None)


@LAWS.register("rate")
@dataclass(frozen=True)
class Rate:
    """Masked generative modelling at large: any hiding rate and any weight, as functions of t.

    `Rate(rate=lambda t: torch.full_like(t, 0.15))` is BERT's law.
    """

    schedule: Schedule | None = None
    rate: Callable[[Tensor], Tensor] | None = None
    weight: Callable[[Tensor], Tensor] = torch.ones_like
    timed: ClassVar[bool] = True
    bound: ClassVar[bool] = False

    def draw(self, valid: Bool[Tensor, "B L"], noise: Noise, step: int, batch: int) -> Corruption:
        t = _positive_time(even_times(noise, step, batch))
        rate = self.rate or (self.schedule.one_minus_alpha if self.schedule else None)
        if rate is None:
            raise InputError("law", "'rate' needs a schedule or a rate function")
        masked = hide_independently(rate(t), valid, noise, step)
        return Corruption(masked, self.weight(t)[:, None].expand(valid.shape), t)


@LAWS.register("unweighted")
def unweighted(schedule: Schedule) -> Rate:
    """The schedule's hiding rate with weight 1."""
    return Rate(schedule)


def make_law(law: str | Law, schedule: Schedule, **options: Any) -> Law:
    """A law by name, over a schedule."""
    if not isinstance(law, str):
        return law
    check_options("law", law, LAWS[law], options)
    return LAWS[law](schedule, **options)
