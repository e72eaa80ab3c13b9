"""DDPM: Denoising Diffusion Probabilistic Models (Ho, Jain and Abbeel, 2020), for continuous data.

A network reads x_t and t and predicts the noise epsilon (or x_0, or v). The process is that of
`gaussian.py`; the reverse step has the posterior's mean at the predicted x_0 (eq. 11) and a
variance that is not learned, one of the two of section 3.2:

    p(x_{t-1} | x_t) = N(mu~(x_t, x_0^theta), sigma_t^2 I),    sigma_t^2 = beta_t   ("large")
                                                               sigma_t^2 = beta~_t  ("small")

The bound on -log p(x_0) is a sum of divergences that are known in closed form (eq. 5):

    L = KL(q(x_T | x_0) || p(x_T)) + sum_{t>1} KL(q(x_{t-1} | x_t, x_0) || p(x_{t-1} | x_t))
        - log p(x_0 | x_1)

and the simple loss (eq. 14) is what trains the best samples: |epsilon - epsilon^theta|^2 for t
uniform on 1..T. Samplers are in `partita.samplers.gaussian`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from partita.contracts.shapes import Labels
from partita.errors import require, require_int, require_known
from partita.processes.draws import even_steps
from partita.processes.gaussian import (
    GaussianProcess,
    State,
    Steps,
    discretized_nats,
    gaussian,
    make_process,
    normal_nats,
    wide,
)
from partita.randomness import Noise, Purpose

PREDICTIONS = ("noise", "clean", "velocity")
VARIANCES = ("small", "large")


class DDPM(nn.Module):
    """Gaussian diffusion with a network that maps (x_t, t) to the shape of x_t.

    The network is called as `network(x, t)` with t int64 in 1..T, one for each row, or as
    `network(x, t, label)` if labels are given.
    """

    def __init__(
        self,
        network: Callable[..., Tensor],
        *,
        schedule: str | GaussianProcess = "linear",
        steps: int = 1000,
        prediction: str = "noise",
        variance: str = "small",
        levels: int | None = 256,
    ) -> None:
        """Data take `levels` equally spaced values from -1 to 1, or any value for None.

        `levels` affects only the bound: with levels it bounds a probability, without a density.
        """
        super().__init__()
        self.network = network
        self.process = make_process(schedule, steps)
        require_known(prediction, "prediction", PREDICTIONS)
        require_known(variance, "variance", VARIANCES)
        if levels is not None:
            require_int(levels, "levels", 2)
        self.prediction, self.variance, self.levels = prediction, variance, levels

    @property
    def classes(self) -> int:
        """Number of class labels of the network; 0 if it has no attribute `classes`."""
        return getattr(self.network, "classes", 0)

    def clean(self, x_t: State, t: Steps, label: Labels | None = None) -> State:
        """x_0^theta, computed from whichever quantity the network predicts."""
        output = self._output(x_t, t, label)
        if self.prediction == "noise":
            return self.process.clean_of_noise(x_t, t, output)
        if self.prediction == "velocity":
            return self.process.clean_of_velocity(x_t, t, output)
        return output

    def _output(self, x_t: Tensor, t: Tensor, label: Tensor | None) -> Tensor:
        return self.network(x_t, t) if label is None else self.network(x_t, t, label)

    def reverse_variance(self, s: Steps, t: Steps) -> Float[Tensor, "B"]:
        """sigma^2 of the step from t to s. Samplers add no noise in the step to s = 0."""
        if self.variance == "large":
            return self.process.lost(s, t)
        return self.process.posterior_variance(s, t)

    # Losses --------------------------------------------------------------------------------------

    def loss(
        self,
        x_0: State,
        noise: Noise,
        step: int = 0,
        *,
        batch: int | None = None,
        label: Labels | None = None,
    ) -> Float[Tensor, "B"]:
        """L_simple (eq. 14) of each row, averaged over its numbers: a training loss, not a bound.

        The target is the quantity that the network predicts. `noise.samples` numbers the rows in a
        global batch of `batch` rows, over which t is spread evenly.
        """
        _check(x_0)
        t = even_steps(noise, step, batch or len(x_0), self.process.steps)
        epsilon = gaussian(noise, Purpose.MASK, step, x_0)
        output = self._output(self.process.marginal(x_0, t, epsilon), t, label)
        target = {"noise": epsilon, "clean": x_0}.get(self.prediction)
        if target is None:
            target = self.process.velocity(x_0, t, epsilon)
        return ((target - output) ** 2).flatten(1).mean(1)

    def bound(
        self,
        x_0: State,
        noise: Noise,
        step: int = 0,
        *,
        batch: int | None = None,
        label: Labels | None = None,
    ) -> Float[Tensor, "B"]:
        """An unbiased estimate of L (eq. 5) of each row in nats, from one random t."""
        _check(x_0)
        t = even_steps(noise, step, batch or len(x_0), self.process.steps)
        term = self.term(x_0, t, gaussian(noise, Purpose.MASK, step, x_0), label)
        return self.prior_term(x_0) + self.process.steps * term

    def prior_term(self, x_0: State) -> Float[Tensor, "B"]:
        """L_T, the divergence of q(x_T | x_0) from the prior p(x_T)."""
        return self.process.prior_nats(x_0).flatten(1).sum(1)

    def term(
        self, x_0: State, t: Steps, epsilon: State, label: Labels | None = None
    ) -> Float[Tensor, "B"]:
        """L_{t-1} of each row in nats, at the x_t made from x_0 and epsilon."""
        x_t = self.process.marginal(x_0, t, epsilon)
        predicted = self.clean(x_t, t, label)
        # At t = 1 the posterior is a point, and the decoder's term replaces the divergence.
        later = t.clamp(min=2)
        s = later - 1
        divergence = normal_nats(
            self.process.posterior_mean(x_0, x_t, s, later),
            wide(self.process.posterior_variance(s, later), x_t),
            self.process.posterior_mean(predicted, x_t, s, later),
            wide(self.reverse_variance(s, later), x_t),
        )
        decoded = self._decoder_nats(x_0, predicted)
        first = (t == 1).view(-1, *[1] * (x_0.ndim - 1))
        return torch.where(first, decoded.to(divergence.dtype), divergence).flatten(1).sum(1)

    def _decoder_nats(self, x_0: Tensor, mean: Tensor) -> Tensor:
        """-log p(x_0 | x_1), whose mean is x_0^theta (section 3.3).

        beta~_1 is 0, so with "small" variances the variance is beta~_2, that of step 2.
        """
        one = torch.ones(len(x_0), dtype=torch.int64, device=x_0.device)
        small = self.process.posterior_variance(one, one + 1)
        variance = self.process.lost(one - 1, one) if self.variance == "large" else small
        spread = wide(variance, x_0)
        if self.levels is not None:
            return discretized_nats(x_0, mean, spread, self.levels)
        return ((x_0 - mean) ** 2 / spread + torch.log(2 * math.pi * spread)) / 2


def _check(x_0: Tensor) -> None:
    """Refuse integers: noise of their type would be rounded."""
    problem = f"must be a tensor of floating-point numbers, got {x_0.dtype}"
    require(x_0.is_floating_point(), "x_0", problem, "scale it to [-1, 1]")


def bits_per_dimension(nats: Float[Tensor, "B"], x_0: State) -> Float[Tensor, "B"]:
    """Nats of a whole row as bits per number."""
    return nats / (x_0[0].numel() * math.log(2))
