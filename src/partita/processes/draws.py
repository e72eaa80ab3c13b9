"""What corruptions draw with: times spread evenly over a batch, hidden tokens, random orders."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor

from partita.randomness import Noise, Purpose


class Noised(NamedTuple):
    """Tokens with noise, and the time or the step of each row."""

    state: Int64[Tensor, "B L"]
    time: Shaped[Tensor, "B"]


def low_discrepancy(
    shift: Float[Tensor, "*"], index: Int64[Tensor, "B"], batch: int
) -> Float[Tensor, "B"]:
    """(shift + i / n) mod 1: one uniform shift spreads the whole batch evenly over [0, 1)."""
    return (shift + index.double() / batch) % 1


def even_times(noise: Noise, step: int, batch: int) -> Float[Tensor, "B"]:
    """Low-discrepancy times of the rows `noise.samples` of a global batch, in float64."""
    return low_discrepancy(noise.shared(Purpose.TIME, step), noise.samples, batch)


def even_steps(noise: Noise, step: int, batch: int, steps: int) -> Int64[Tensor, "B"]:
    """Whole steps t on 1..T, each as probable, spread evenly over the rows of a global batch."""
    return (even_times(noise, step, batch) * steps).long().clamp(max=steps - 1) + 1


def hide_independently(
    rate: Float[Tensor, "B"], is_token: Bool[Tensor, "B L"], noise: Noise, step: int
) -> Bool[Tensor, "B L"]:
    """Hide each real token with its row's probability."""
    return (_uniforms(is_token, noise, step) < rate[:, None]) & is_token


def _uniforms(is_token: Tensor, noise: Noise, step: int) -> Tensor:
    positions = torch.arange(is_token.shape[1], device=is_token.device)[None]
    return noise.uniform(Purpose.MASK, step, positions)


def random_ranks(is_token: Bool[Tensor, "B L"], noise: Noise, step: int) -> Int64[Tensor, "B L"]:
    """The places of each row's real tokens in a random order."""
    keys = _uniforms(is_token, noise, step).masked_fill(~is_token, torch.inf)
    return keys.argsort(-1).argsort(-1)


def doubled_ends(index: Float[Tensor, "B"], last: Int64[Tensor, "B"] | int) -> Float[Tensor, "B"]:
    """2 at 0 and at the last point, 1 between: what makes up for half the probability."""
    return torch.where((index == 0) | (index == last), 2.0, 1.0).to(index.dtype)


def positive_time(time: Float[Tensor, "*times"]) -> Float[Tensor, "*times"]:
    """[0, 1) mirrored to (0, 1]: the weight at t = 0 is infinite, on an event of probability 0."""
    return 1 - time


class CrowdedTimes(NamedTuple):
    """Times, more of them near 0 than under a uniform density."""

    t: Float[Tensor, "B"]
    """0 where the time is too small for a number; its logarithm is right even there."""
    log_t: Float[Tensor, "B"]
    share: Float[Tensor, "B"]
    """t times its density: what a loss like 1/t is divided by."""


def crowded_times(
    u: Float[Tensor, "B"], c: float | Float[Tensor, ""], first: float = 0.0
) -> CrowdedTimes:
    """Times in (first, 1] of uniform numbers in (0, 1].

    The lower half becomes uniform times, the upper half has the density c t^(c-1). Losses like 1/t
    that come up with probability t^w have a finite variance under both together if w > c; under
    uniform times alone they have none for w <= 1.

    A small c needs times below the smallest number: t = v^(1/c) of a uniform v is one of them with
    probability e^(-745 c). Such times carry nearly all of the loss, which is why log t = log v / c
    is what is computed.
    """
    power = torch.as_tensor(c, dtype=u.dtype, device=u.device)
    log_first = math.log(first) if first > 0 else -math.inf
    span = -torch.expm1(power * log_first)  # 1 - first^c
    even = first + (1 - first) * 2 * u
    # 1 - v, for v from 0 to 1 over the upper half of u; the lower half is not taken.
    rest = (2 - 2 * u).clamp(max=1)
    crowded = torch.log1p(-span * rest) / power
    is_even = u <= 0.5
    log_t = torch.where(is_even, even.log(), crowded)
    t = torch.where(is_even, even, crowded.exp())
    density = t / (1 - first) + power * torch.exp(power * log_t) / span
    return CrowdedTimes(t, log_t, density / 2)
