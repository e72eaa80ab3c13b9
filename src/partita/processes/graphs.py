"""The absorbing and the uniform chain of score models in closed form, without matrices.

At rate dsigma/dt a token is replaced by the mask, or by a uniform token, so it is unchanged with
probability e^(-sigma) = alpha. Everything here has the size of one vector over the states, so
vocabularies may be large; `Graph` documents the methods.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from partita.contracts.shapes import Marks, Tokens
from partita.errors import require, require_int
from partita.processes.ctmc import Graph, Numbers, States, Vectors, one_hot, xlogy
from partita.processes.draws import hide_independently
from partita.randomness import Noise, Purpose
from partita.registry import Registry

GRAPHS: Registry[type[Graph]] = Registry("graph")


@GRAPHS.register("absorbing")
class Absorbing(Graph):
    """Q = 1 e_m - I: a token becomes the mask at rate 1, and the mask stays. The mask is last."""

    mask_id: int

    def __init__(self, tokens: int) -> None:
        require_int(tokens, "tokens")
        super().__init__(tokens, tokens + 1)
        self.mask_id = tokens

    def matrix(self) -> Float[Tensor, "S S"]:
        q = -torch.eye(self.states, dtype=torch.float64)
        q[self.mask_id] += 1
        return q

    def flow(self, vector: Vectors, sigma: Numbers) -> Vectors:
        real, mask = vector[..., : self.tokens], vector[..., self.tokens :]
        mask = mask - torch.expm1(-sigma)[..., None] * real.sum(-1, keepdim=True)
        return torch.cat([torch.exp(-sigma)[..., None] * real, mask], dim=-1).to(vector.dtype)

    def row(self, x: States, sigma: Numbers) -> Vectors:
        kept = torch.where(x == self.mask_id, torch.ones_like(sigma), torch.exp(-sigma))
        lost = torch.where(x == self.mask_id, -torch.expm1(-sigma), 0.0)
        every = lost[..., None].expand(*x.shape, self.states)
        return every.scatter(-1, x[..., None], kept[..., None])

    def rate_row(self, x: States) -> Vectors:
        into = (x == self.mask_id).double()[..., None]
        return into.expand(*x.shape, self.states).scatter(-1, x[..., None], into - 1)

    def noised(
        self, x0: Tokens, sigma: Float[Tensor, "B"], is_token: Marks, noise: Noise, step: int
    ) -> Int64[Tensor, "B L"]:
        masked = hide_independently(-torch.expm1(-sigma), is_token, noise, step)
        return torch.where(masked, self.mask_id, x0)

    def stationary(self) -> Float[Tensor, "S"]:
        return one_hot(torch.tensor(self.mask_id), self.states)

    def noise_to_prior(self, sigma: Numbers, last: Numbers) -> Numbers:
        """The noise that hides (1 - alpha(t)) / (1 - alpha(1)) of the tokens: all at t = 1.

        Under sigma itself a share alpha(1) would still be visible, at an infinite divergence from
        a prior of masks. Both processes have the same reverse rates, -alpha' / (1 - alpha) from a
        mask to its token, so the scores are those of sigma.
        """
        hidden = torch.expm1(-sigma) / torch.expm1(-last)
        return -torch.log1p(-hidden.clamp(max=1))

    def moving(self, x: States) -> Bool[Tensor, "*n"]:
        return x == self.mask_id

    def log_scale(self, sigma: Numbers) -> Numbers:
        """log(e^sigma - 1) + log V: the true score is 1 / (e^sigma - 1) times a distribution."""
        return torch.log(torch.expm1(sigma)) + math.log(self.tokens)

    def score_entropy(
        self, log_score: Float[Tensor, "*n C"], x: States, x0: States, sigma: Numbers
    ) -> Numbers:
        """r (sum of s / r - log(s_x0 / r) - 1) at masks, r = 1 / (e^sigma - 1); 0 elsewhere.

        The only nonzero ratio is that of x_0. As r times numbers of order 1, it loses no precision
        for small sigma. The mask's own entry is unused and may be missing.
        """
        odds = torch.expm1(sigma)  # 1 / r
        total = log_score[..., : self.tokens].exp().sum(-1)
        at_x0 = log_score.gather(-1, x0[..., None])[..., 0] + torch.log(odds)
        return torch.where(x == self.mask_id, (total * odds - at_x0 - 1) / odds, 0.0)

    def end_nats(self, x0: States, first: Numbers, last: Numbers) -> Numbers:  # noqa: ARG002 - every token costs the same
        """ln V for each token that is still a mask at t = 0, as it is guessed uniformly.

        The prior term is 0, as states are drawn under `noise_to_prior`.
        """
        return torch.expm1(-first) / torch.expm1(-last) * math.log(self.tokens)


@GRAPHS.register("uniform")
class Uniform(Graph):
    """Q = 1/V - I: at rate 1 a token is replaced by a uniform one of all V."""

    def __init__(self, tokens: int) -> None:
        require_int(tokens, "tokens", 2)
        super().__init__(tokens, tokens)

    def matrix(self) -> Float[Tensor, "S S"]:
        one = torch.ones(self.states, self.states, dtype=torch.float64)
        return one / self.states - torch.eye(self.states, dtype=torch.float64)

    def flow(self, vector: Vectors, sigma: Numbers) -> Vectors:
        mixed = -torch.expm1(-sigma)[..., None] * vector.mean(-1, keepdim=True)
        return (torch.exp(-sigma)[..., None] * vector + mixed).to(vector.dtype)

    def row(self, x: States, sigma: Numbers) -> Vectors:
        other = -torch.expm1(-sigma)[..., None] / self.states
        same = torch.exp(-sigma)[..., None] + other
        return other.expand(*x.shape, self.states).scatter(-1, x[..., None], same)

    def rate_row(self, x: States) -> Vectors:
        rates = torch.full((), 1 / self.states, dtype=torch.float64, device=x.device)
        return rates.expand(*x.shape, self.states).scatter(-1, x[..., None], 1 / self.states - 1)

    def noised(
        self, x0: Tokens, sigma: Float[Tensor, "B"], is_token: Marks, noise: Noise, step: int
    ) -> Int64[Tensor, "B L"]:
        hit = hide_independently(-torch.expm1(-sigma), is_token, noise, step)
        u = noise.uniforms(Purpose.TOKEN, step, x0.shape[1])
        return torch.where(hit, (u * self.tokens).long().clamp(max=self.tokens - 1), x0)

    def stationary(self) -> Float[Tensor, "S"]:
        return torch.full((self.states,), 1 / self.states, dtype=torch.float64)

    def score_entropy(
        self, log_score: Float[Tensor, "*n C"], x: States, x0: States, sigma: Numbers
    ) -> Numbers:
        """The score entropy: all ratios are rho if x = x0, else 1 / rho for x0 and 1 for others.

        rho = (e^sigma - 1) / (e^sigma - 1 + V), and the terms are weighted by Q(x, y) = 1 / V. The
        entry of log_score at x must be 0.
        """
        size, odds = self.tokens, torch.expm1(sigma)
        log_rho = -torch.log1p(size / odds)
        rho = torch.exp(log_rho)
        total = log_score.exp().scatter(-1, x[..., None], 0.0).sum(-1)
        logs = log_score.sum(-1)
        at_x0 = log_score.gather(-1, x0[..., None])[..., 0]
        same = total - rho * logs + (size - 1) * rho * (log_rho - 1)
        moved = total - (logs - at_x0) - (size - 2) - (at_x0 + log_rho + 1) / rho
        return torch.where(x == x0, same, moved) / size

    def end_nats(self, x0: States, first: Numbers, last: Numbers) -> Numbers:  # noqa: ARG002 - every token costs the same
        """ln V minus the entropy of q(z_1 | x), plus the entropy of q(z_0 | x)."""
        return math.log(self.tokens) - self._entropy(last) + self._entropy(first)

    def _entropy(self, sigma: Tensor) -> Tensor:
        other = -torch.expm1(-sigma) / self.states
        same = torch.exp(-sigma) + other
        return -xlogy(same, same) - (self.states - 1) * xlogy(other, other)


def make_graph(graph: str | Graph, tokens: int) -> Graph:
    """A graph by name over `tokens` real tokens, or a given one, which must have as many."""
    if isinstance(graph, str):
        return GRAPHS[graph](tokens)  # type: ignore[call-arg]
    fits = graph.tokens == tokens
    require(fits, "graph", f"is over {graph.tokens} tokens, the network has {tokens}")
    return graph
