"""What laws draw with: times spread evenly over a batch, hidden tokens, random orders."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from partita.randomness import Noise, Purpose


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
    rate: Float[Tensor, "B"], valid: Bool[Tensor, "B L"], noise: Noise, step: int
) -> Bool[Tensor, "B L"]:
    """Hide each valid token with its row's probability."""
    return (_uniforms(valid, noise, step) < rate[:, None]) & valid


def _uniforms(valid: Tensor, noise: Noise, step: int) -> Tensor:
    positions = torch.arange(valid.shape[1], device=valid.device)[None]
    return noise.uniform(Purpose.MASK, step, positions)


def random_ranks(valid: Bool[Tensor, "B L"], noise: Noise, step: int) -> Int64[Tensor, "B L"]:
    """The places of each row's valid tokens in a random order."""
    keys = _uniforms(valid, noise, step).masked_fill(~valid, torch.inf)
    return keys.argsort(-1).argsort(-1)


def doubled_ends(index: Float[Tensor, "B"], last: Int64[Tensor, "B"] | int) -> Float[Tensor, "B"]:
    """2 at 0 and at the last point, 1 between: what makes up for half the probability."""
    return torch.where((index == 0) | (index == last), 2.0, 1.0).to(index.dtype)


def positive_time(time: Float[Tensor, "B"]) -> Float[Tensor, "B"]:
    """[0, 1) mirrored to (0, 1]: the weight at t = 0 is infinite, on an event of probability 0."""
    return 1 - time


def crowded_times(
    u: Float[Tensor, "B"], c: float | Float[Tensor, ""], first: float = 0.0
) -> tuple[Float[Tensor, "B"], Float[Tensor, "B"]]:
    """Times in (first, 1] of uniform numbers in (0, 1], and t times their density.

    The lower half becomes uniform times, the upper half has the density c t^(c-1). Losses like 1/t
    that come up with probability t^w have a finite variance under both together if w > c; under
    uniform times alone they have none for w <= 1.
    """
    power = torch.as_tensor(c, dtype=u.dtype, device=u.device)
    start: Tensor = first**power
    even = first + (1 - first) * 2 * u
    near = (start + (1 - start) * (2 * u - 1)).clamp(min=0) ** (1 / power)
    t = torch.where(u <= 0.5, even, near).clamp(min=torch.finfo(u.dtype).tiny)
    return t, t / (1 - first) / 2 + power * t**power / (1 - start) / 2
