"""Continuous-time Markov chains over the states of one position, as used by score models.

A chain changes one position with rates dsigma/dt Q, where Q(y, x) is the rate from x to y (columns
sum to 0, as in Lou et al., 2023) and sigma = -log alpha is the total noise. All follows from

    flow       e^(sigma Q) v              a vector over states after noise sigma; inverse for -sigma
    row        e^(sigma Q)(x, .)          the probability of x, given each initial state
    rate row   Q(x, .)                    the rates into x

    step       p(z_s | z_t) = (e^(-d Q) s) times e^(d Q)(z_t, .), d = sigma_t - sigma_s
    reverse    rate from x to y:  Q(x, y) s(x)_y

where s(x)_y = p_t(y) / p_t(x) is the score. `Graph` computes all of it for any matrix, `graphs.py`
in closed form for the two chains that are used at scale.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn import functional as F

from partita.contracts.shapes import Marks, Tokens
from partita.errors import require
from partita.randomness import Noise, Purpose
from partita.schedules import Schedule


def total_noise(schedule: Schedule, t: Numbers) -> Numbers:
    """sigma(t) = -log alpha(t), accurate at both ends."""
    hidden = schedule.one_minus_alpha(t)
    return torch.where(hidden < 0.5, -torch.log1p(-hidden), -torch.log(schedule.alpha(t)))


def noise_rate(schedule: Schedule, t: Numbers) -> Numbers:
    """dsigma/dt = -alpha'(t) / alpha(t)."""
    return schedule.complement_weight(t)


States = Int64[Tensor, "*n"]
"""States of positions."""
Vectors = Float[Tensor, "*n S"]
"""A vector over all states for each."""
Numbers = Float[Tensor, "*n"]
"""A number for each, such as the noise sigma."""


class Graph(ABC):
    """A Markov chain over `states` states, of which the first `tokens` are real tokens.

    These methods work for any matrix, at the cost of one matrix exponential per entry of sigma.
    Vectors over states may have any leading axes; sigma has one entry for each vector.
    """

    mask_id: int | None = None
    """The state of a hidden token; None if there is none."""

    def __init__(self, tokens: int, states: int) -> None:
        self.tokens = tokens
        self.states = states

    @abstractmethod
    def matrix(self) -> Float[Tensor, "S S"]:
        """Q, with Q(y, x) in row y and column x."""

    def flow(self, vector: Vectors, sigma: Numbers) -> Vectors:
        """e^(sigma Q) v; a negative sigma inverts a positive one."""
        return (self._exponential(sigma).to(vector.dtype) @ vector[..., None])[..., 0]

    def row(self, x: States, sigma: Numbers) -> Vectors:
        """e^(sigma Q)(x, .): the probability of x given each initial state."""
        index = x[..., None, None].expand(*x.shape, 1, self.states)
        return self._exponential(sigma).gather(-2, index)[..., 0, :]

    def rate_row(self, x: States) -> Vectors:
        """Q(x, .): the rates into x; at x, minus the rate out of it."""
        return self.matrix().to(x.device)[x]

    def _exponential(self, sigma: Tensor) -> Tensor:
        power: Tensor = torch.linalg.matrix_exp(
            sigma[..., None, None] * self.matrix().to(sigma.device, sigma.dtype)
        )
        return power

    def noised(
        self, x0: Tokens, sigma: Float[Tensor, "B"], is_token: Marks, noise: Noise, step: int
    ) -> Int64[Tensor, "B L"]:
        """Draw z_t given x_0; padding is unchanged."""
        probabilities = self.flow(one_hot(x0, self.states), sigma[:, None].expand(x0.shape))
        u = noise.uniforms(Purpose.TOKEN, step, x0.shape[1])
        total = probabilities.cumsum(-1)
        drawn = (total <= u[..., None] * total[..., -1:]).sum(-1).clamp(max=self.states - 1)
        return torch.where(is_token, drawn, x0)

    def stationary(self) -> Float[Tensor, "S"]:
        """The stationary distribution of the chain, from which samples start."""
        null: Tensor = torch.linalg.svd(self.matrix().double())[2][-1]
        return (null / null.sum()).clamp(min=0)

    def noise_to_prior(self, sigma: Numbers, last: Numbers) -> Numbers:  # noqa: ARG002 - some chains need it
        """The noise with which a bound draws states, so that they end in the samplers' prior.

        `last` is sigma(1). By default it is sigma itself: the chain only approaches its stationary
        distribution, and `end_nats` accounts for the rest. If that is infinite, a subclass must
        return another noise.
        """
        return sigma

    def moving(self, x: States) -> Bool[Tensor, "*n"]:
        """True where the reverse process can change the position."""
        return torch.ones_like(x, dtype=torch.bool)

    def log_scale(self, sigma: Numbers) -> Numbers:
        """What is subtracted from the network's output to get a log-score."""
        return torch.zeros_like(sigma)

    def score_entropy(
        self, log_score: Float[Tensor, "*n C"], x: States, x0: States, sigma: Numbers
    ) -> Numbers:
        """sum over y != x of Q(x, y) (s_y - r_y log s_y + K(r_y)), r_y = q(y | x0) / q(x | x0).

        K(r) = r (log r - 1) makes it at least 0, and 0 for s = r.
        """
        q = self.flow(one_hot(x0, self.states), sigma.double())
        r = q / q.gather(-1, x[..., None])
        rates = self.rate_row(x).scatter(-1, x[..., None], 0.0)
        terms = log_score.exp() - r * log_score + xlogy(r, r) - r
        return torch.where(rates > 0, rates * terms, 0.0).sum(-1)

    def end_nats(self, x0: States, first: Numbers, last: Numbers) -> Numbers:
        """The bound's prior and reconstruction terms for sigma(0) = first and sigma(1) = last.

        KL(q(z_1 | x) || stationary) - E log p(x | z_0), where p(x | z_0) is q(z_0 | x) normalized
        over real tokens x. Both are 0 for sigma from 0 to infinity.
        """
        start = one_hot(x0, self.states)
        q, stationary = self.flow(start, last), self.stationary().to(x0.device)
        prior = (xlogy(q, q) - xlogy(q, stationary)).sum(-1)
        every = torch.arange(self.states, device=x0.device).expand(*x0.shape, -1)
        back = self.row(every, first[..., None].expand(every.shape))[..., : self.tokens]
        right = back.gather(-1, x0[..., None, None].expand(*x0.shape, self.states, 1))[..., 0]
        guess = self.flow(start, first)
        share = torch.where(guess > 0, right / back.sum(-1), 1.0)  # 0 / 0 where no token gets to
        return prior - xlogy(guess, share).sum(-1)

    # What follows from the above ----------------------------------------------------------------

    def reverse_rate(self, score: Vectors, x: States) -> Vectors:
        """Rates of the reverse process out of x; at x, minus their sum."""
        rates = (self.rate_row(x).to(score.dtype) * score).scatter(-1, x[..., None], 0.0)
        return rates.scatter(-1, x[..., None], -rates.sum(-1, keepdim=True))

    def euler(self, score: Vectors, x: States, size: Numbers) -> Vectors:
        """Probabilities after one tau-leaping step of size dt dsigma/dt; negative at x if large."""
        step = size[..., None].to(score.dtype) * self.reverse_rate(score, x)
        return step.scatter_add(-1, x[..., None], torch.ones_like(step[..., :1]))

    def analytic(self, score: Vectors, x: States, dsigma: Numbers) -> Vectors:
        """p(z_s | z_t = x) of one position, exact for the true score (discrete Tweedie).

        A score of no distribution may give negative entries.
        """
        return self.flow(score, -dsigma) * self.row(x, dsigma).to(score.dtype)


def xlogy(x: Numbers, y: Float[Tensor, "*#n"]) -> Numbers:
    """x log y, 0 where x = 0."""
    product: Tensor = torch.special.xlogy(x, y)
    return product


def one_hot(x: States, states: int) -> Vectors:
    """States as vectors in float64."""
    return F.one_hot(x, states).to(torch.float64)


class Rates(Graph):
    """A chain with a custom small matrix, Q(y, x) in row y and column x.

    All states are real tokens, or the first `tokens` of them.
    """

    def __init__(self, q: Tensor, tokens: int | None = None) -> None:
        square = q.ndim == 2 and q.shape[0] == q.shape[1] and q.shape[0] > 1
        require(square, "q", f"must be a square matrix, got {list(q.shape)}")
        rates = q - torch.diag(torch.diagonal(q))
        require(bool((rates >= 0).all()), "q", "rates must not be negative")
        limit = 1e-9 * max(1.0, float(q.abs().max()))
        whole = bool((q.sum(0).abs() <= limit).all())
        require(whole, "q", "every column must sum to 0", "set the diagonal to minus the rates out")
        super().__init__(q.shape[0] if tokens is None else tokens, q.shape[0])
        self.q = q.double()

    def matrix(self) -> Float[Tensor, "S S"]:
        return self.q
