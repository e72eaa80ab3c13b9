"""The Gaussian forward process of DDPM and related methods.

A clean x_0 loses signal and gains noise in T steps; abar_t is the remaining share of signal power:

    step          q(x_t | x_{t-1})      = N(sqrt(1 - beta_t) x_{t-1}, beta_t I)      (DDPM eq. 2)
    marginal      q(x_t | x_0)          = N(sqrt(abar_t) x_0, (1 - abar_t) I)        (DDPM eq. 4)
    posterior     q(x_s | x_t, x_0)     = N(mu~, beta~ I)                            (DDPM eq. 6, 7)

with abar_t the product of 1 - beta up to t, and abar_0 = 1. These hold between any two steps s < t
with beta_{t|s} = 1 - abar_t / abar_s in place of beta_t, so samplers may skip steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from partita.errors import naming, require, require_int, require_number
from partita.randomness import Noise, Purpose
from partita.registry import Registry, check_options

LARGEST_BETA = 0.999  # a step that removes all signal has no posterior
GAUSSIAN_SCHEDULES: Registry[Callable[..., Tensor]] = Registry("schedule")

# Schedules ---------------------------------------------------------------------------------------


@GAUSSIAN_SCHEDULES.register("linear")
def linear_betas(steps: int, first: float = 1e-4, last: float = 0.02) -> Float64[Tensor, "{steps}"]:
    """Equally spaced, as in DDPM, section 4; `first` and `last` are for 1000 steps.

    With fewer steps they are proportionally larger, so that equally little signal remains.
    """
    scale = 1000 / steps
    ends = (first * scale, last * scale)
    return _legal(torch.linspace(*ends, steps, dtype=torch.float64, device="cpu"))


@GAUSSIAN_SCHEDULES.register("cosine")
def cosine_betas(steps: int, offset: float = 0.008) -> Float64[Tensor, "{steps}"]:
    """abar = cos^2 of a quarter turn, from just after 0 (Nichol and Dhariwal, 2021, eq. 17)."""
    return _betas_of(
        lambda time: torch.cos((time + offset) / (1 + offset) * math.pi / 2) ** 2, steps
    )


@GAUSSIAN_SCHEDULES.register("sqrt")
def sqrt_betas(steps: int, offset: float = 1e-4) -> Float64[Tensor, "{steps}"]:
    """abar = 1 - sqrt(t), which adds noise fast at first (Diffusion-LM: Li et al., 2022)."""
    return _betas_of(lambda time: 1 - torch.sqrt(time + offset), steps)


def _betas_of(abar: Callable[[Tensor], Tensor], steps: int) -> Tensor:
    """The betas of a curve abar(t / T), clamped so that some signal remains."""
    levels = abar(torch.linspace(0, 1, steps + 1, dtype=torch.float64, device="cpu"))
    return _legal(1 - levels[1:] / levels[:-1])


def _legal(betas: Tensor) -> Tensor:
    return betas.clamp(max=LARGEST_BETA)


# The process -------------------------------------------------------------------------------------

State = Float[Tensor, "B *shape"]
Steps = Int64[Tensor, "B"]


@dataclass(frozen=True, eq=False)
class GaussianProcess:
    """T steps of Gaussian noise. States are [B, *shape]; each row has its own step in 0..T."""

    betas: Float64[Tensor, "T"]

    def __post_init__(self) -> None:
        require(len(self.betas) >= 2, "betas", f"needs 2 steps or more, got {len(self.betas)}")
        fits = bool(((self.betas > 0) & (self.betas < 1)).all())
        require(fits, "betas", "must lie between 0 and 1")

    @property
    def steps(self) -> int:
        return len(self.betas)

    @cached_property
    def log_abar(self) -> Float64[Tensor, "points"]:
        """log abar_t for t = 0..T, which gives abar and 1 - abar without cancellation."""
        return torch.cat([torch.zeros_like(self.betas[:1]), torch.log1p(-self.betas).cumsum(0)])

    def signal(self, t: Steps) -> Float64[Tensor, "B"]:
        """abar_t."""
        return self._log_abar(t).exp()

    def variance(self, t: Steps) -> Float64[Tensor, "B"]:
        """1 - abar_t."""
        return -torch.expm1(self._log_abar(t))

    def lost(self, s: Steps, t: Steps) -> Float64[Tensor, "B"]:
        """beta_{t|s} = 1 - abar_t / abar_s; beta_t where s = t - 1."""
        return -torch.expm1(self._log_abar(t) - self._log_abar(s))

    def posterior_variance(self, s: Steps, t: Steps) -> Float64[Tensor, "B"]:
        """beta~ of eq. 7; 0 where s = 0."""
        return self.lost(s, t) * self.variance(s) / self.variance(t)

    def divergence_weight(self, s: Steps, t: Steps) -> Float64[Tensor, "B"]:
        """KL of the posteriors of two x_0, per squared difference: (SNR_s - SNR_t) / 2."""
        return self.signal(s) * self.lost(s, t) / (2 * self.variance(s) * self.variance(t))

    def marginal(self, x_0: State, t: Steps, noise: State) -> State:
        """x_t from q(x_t | x_0), given standard normal noise."""
        scale = wide(self.signal(t).sqrt(), x_0)
        return scale * x_0 + wide(self.variance(t).sqrt(), x_0) * noise

    def transition(self, x_s: State, s: Steps, t: Steps, noise: State) -> State:
        """x_t from q(x_t | x_s), given standard normal noise."""
        lost = self.lost(s, t)
        return wide((1 - lost).sqrt(), x_s) * x_s + wide(lost.sqrt(), x_s) * noise

    def posterior_mean(self, x_0: State, x_t: State, s: Steps, t: Steps) -> State:
        """mu~ of eq. 7."""
        lost, noise_s, noise_t = self.lost(s, t), self.variance(s), self.variance(t)
        of_clean = wide(self.signal(s).sqrt() * lost / noise_t, x_t)
        of_noisy = wide((1 - lost).sqrt() * noise_s / noise_t, x_t)
        return of_clean * x_0 + of_noisy * x_t

    def prior_nats(self, x_0: State) -> State:
        """KL(q(x_T | x_0) || N(0, I)) of every number of x_0: its part of L_T."""
        last = torch.full((x_0.shape[0],), self.steps, device=x_0.device)
        variance = self.variance(last)
        constant = variance - 1 - torch.log(variance)
        return (wide(self.signal(last), x_0) * x_0**2 + wide(constant, x_0)) / 2

    # Conversions between what a network may predict ---------------------------------------------

    def clean_of_noise(self, x_t: State, t: Steps, noise: State) -> State:
        """x_0 = (x_t - sqrt(1 - abar_t) epsilon) / sqrt(abar_t)  (eq. 15)."""
        return (x_t - wide(self.variance(t).sqrt(), x_t) * noise) / wide(self.signal(t).sqrt(), x_t)

    def noise_of_clean(self, x_t: State, t: Steps, x_0: State) -> State:
        """epsilon = (x_t - sqrt(abar_t) x_0) / sqrt(1 - abar_t)."""
        return (x_t - wide(self.signal(t).sqrt(), x_t) * x_0) / wide(self.variance(t).sqrt(), x_t)

    def velocity(self, x_0: State, t: Steps, noise: State) -> State:
        """v = sqrt(abar_t) epsilon - sqrt(1 - abar_t) x_0 (Salimans and Ho, 2022)."""
        return wide(self.signal(t).sqrt(), x_0) * noise - wide(self.variance(t).sqrt(), x_0) * x_0

    def clean_of_velocity(self, x_t: State, t: Steps, velocity: State) -> State:
        """x_0 = sqrt(abar_t) x_t - sqrt(1 - abar_t) v."""
        signal, noise = wide(self.signal(t).sqrt(), x_t), wide(self.variance(t).sqrt(), x_t)
        return signal * x_t - noise * velocity

    def _log_abar(self, t: Tensor) -> Tensor:
        return self.log_abar.to(t.device)[t]


def make_process(
    schedule: str | GaussianProcess, steps: int = 1000, **options: Any
) -> GaussianProcess:
    """A process by the name of its schedule, for example `make_process("cosine", steps=200)`."""
    if isinstance(schedule, GaussianProcess):
        return schedule
    require_int(steps, "steps", 2)
    check_options("schedule", schedule, GAUSSIAN_SCHEDULES[schedule], options, ("steps",))
    for key, value in options.items():
        require_number(value, f"schedule.{key}")
    with naming({"betas": "schedule"}):
        return GaussianProcess(GAUSSIAN_SCHEDULES[schedule](steps, **options))


# Densities and draws -----------------------------------------------------------------------------


def wide(coefficient: Float64[Tensor, "B"], like: Float[Tensor, "B *shape"]) -> Tensor:
    """One number for each row, in a shape and precision that broadcast over a state."""
    return coefficient.to(like.dtype).view(-1, *[1] * (like.ndim - 1))


def normal_nats(mean: State, variance: Tensor, other: State, other_variance: Tensor) -> State:
    """KL(N(mean, variance) || N(other, other_variance)) of every number."""
    ratio = variance / other_variance
    return ((mean - other) ** 2 / other_variance + ratio - 1 - torch.log(ratio)) / 2


def discretized_nats(x: State, mean: State, variance: Tensor, levels: int) -> State:
    """-log of a normal's mass on the bin around each x (DDPM eq. 13).

    x takes `levels` equally spaced values from -1 to 1; the first and the last bin are open.
    """
    far = 1e6  # in standard deviations; infinity would give NaN gradients
    x, mean, deviation = x.double(), mean.double(), variance.double().sqrt()
    half = 1 / (levels - 1)
    upper = torch.where(x > 1 - half, far, (x + half - mean) / deviation)
    lower = torch.where(x < -1 + half, -far, (x - half - mean) / deviation)
    # Logarithms are precise in the lower tail; the upper tail is mirrored onto it.
    mirrored = lower + upper > 0
    low, high = torch.where(mirrored, -upper, lower), torch.where(mirrored, -lower, upper)
    log_low, log_high = torch.special.log_ndtr(low), torch.special.log_ndtr(high)
    nats: Tensor = -(log_high + torch.log(-torch.expm1(log_low - log_high)))
    return nats


def gaussian(noise: Noise, purpose: Purpose, step: int, like: State) -> State:
    """Standard normals in the shape of a state.

    A number's address is its index in the row-major sample, so a longer sequence of vectors starts
    with the noise of a shorter one.
    """
    indices = torch.arange(like[0].numel(), device=like.device)[None]
    return noise.normal(purpose, step, indices).to(like.dtype).view_as(like)
