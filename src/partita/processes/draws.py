"""Random draws for corruptions: times spread evenly over a batch, hidden tokens, random orders."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor

from partita.contracts.shapes import Marks, RowTimes
from partita.randomness import Noise, Purpose


class Noised(NamedTuple):
    """Noisy tokens, and the time or the step of each row."""

    state: Int64[Tensor, "B L"]
    time: Shaped[Tensor, "B"]


def low_discrepancy(
    shift: Float[Tensor, "*"], index: Int64[Tensor, "B"], batch: int
) -> Float[Tensor, "B"]:
    """(shift + i / n) mod 1: one uniform shift spreads the whole batch evenly over [0, 1)."""
    return (shift + index.double() / batch) % 1


def even_times(noise: Noise, step: int, batch: int) -> Float[Tensor, "B"]:
    """Low-discrepancy times for the rows `noise.samples` of a global batch, in float64."""
    return low_discrepancy(noise.shared(Purpose.TIME, step), noise.samples, batch)


def even_steps(noise: Noise, step: int, batch: int, steps: int) -> Int64[Tensor, "B"]:
    """Uniform steps t in 1..T, spread evenly over the rows of a global batch."""
    return (even_times(noise, step, batch) * steps).long().clamp(max=steps - 1) + 1


def hide_independently(rate: Float[Tensor, "B"], is_token: Marks, noise: Noise, step: int) -> Marks:
    """Hide each real token with its row's probability."""
    u = noise.uniforms(Purpose.MASK, step, is_token.shape[1])
    return (u < rate[:, None]) & is_token


def random_ranks(is_token: Marks, noise: Noise, step: int) -> Int64[Tensor, "B L"]:
    """The rank of each real token of a row in a random order."""
    u = noise.uniforms(Purpose.MASK, step, is_token.shape[1])
    keys = u.masked_fill(~is_token, torch.inf)
    return keys.argsort(-1).argsort(-1)


def doubled_ends(index: Float[Tensor, "B"], last: Int64[Tensor, "B"] | int) -> Float[Tensor, "B"]:
    """2 at 0 and at the last point, 1 between, to make up for half the probability."""
    return torch.where((index == 0) | (index == last), 2.0, 1.0).to(index.dtype)


def positive_time(time: Float[Tensor, "*times"]) -> Float[Tensor, "*times"]:
    """Map [0, 1) to (0, 1], as the weight is infinite at t = 0, which has probability 0."""
    return 1 - time


class CrowdedTimes(NamedTuple):
    """Times that are denser near 0 than uniform ones."""

    t: RowTimes
    """0 if it underflows; `log_t` is accurate even then."""
    log_t: Float[Tensor, "B"]
    share: Float[Tensor, "B"]
    """t times its density, by which a loss like 1/t is divided."""


def crowded_times(
    u: Float[Tensor, "B"], c: float | Float[Tensor, ""], first: float = 0.0
) -> CrowdedTimes:
    """Times in (first, 1] from uniform numbers in (0, 1].

    The lower half of the numbers gives uniform times, the upper half times with the density
    c t^(c-1). A loss like 1/t that occurs with probability t^w has a finite variance under the
    mixture if w > c; under uniform times it is infinite for w <= 1.

    If c is small, many times underflow: t = v^(1/c) of a uniform v does with probability
    e^(-745 c). Such times carry nearly all of the loss, so log t = log v / c is computed.
    """
    power = torch.as_tensor(c, dtype=u.dtype, device=u.device)
    log_first = math.log(first) if first > 0 else -math.inf
    span = -torch.expm1(power * log_first)  # 1 - first^c
    even = first + (1 - first) * 2 * u
    # 1 - v, for v from 0 to 1 over the upper half of u; the lower half is unused.
    rest = (2 - 2 * u).clamp(max=1)
    crowded = torch.log1p(-span * rest) / power
    is_even = u <= 0.5
    log_t = torch.where(is_even, even.log(), crowded)
    t = torch.where(is_even, even, crowded.exp())
    density = t / (1 - first) + power * torch.exp(power * log_t) / span
    return CrowdedTimes(t, log_t, density / 2)
