"""The transition matrices of D3PM: [Q_t]_ij = q(z_t = j | z_(t-1) = i) (section 3.1, A.2).

    absorbing   (1 - beta) I + beta 1 e_m^T       a token becomes the mask m and stays it
    uniform     (1 - beta) I + beta 1 1^T / K     a token becomes a uniform token
    gaussian    exp(-4 (i - j)^2 / ((K-1)^2 beta)), scaled, off the diagonal: nearby ids are likely
    own         custom matrices

The first two have closed forms (`interpolating.py`), the others are matrices (`matrices.py`).

Steps are integers 0..T; z_0 = x is the data. States 0..tokens-1 are the real tokens; the mask, if
there is one, is the state after them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from partita.categorical import sample_categorical
from partita.contracts.shapes import LogProbs, RowSteps, Tokens
from partita.errors import require_int
from partita.registry import Registry

TRANSITIONS: Registry[type[Transition]] = Registry("transition")
TINY = torch.finfo(torch.float64).tiny


class Transition(ABC):
    """q(z_t | z_s) for any steps s <= t, in the forms that the loss and the sampler need."""

    default_betas: str = "cosine"
    default_hybrid: float = 0.0
    """D3PM's lambda, the weight of the cross-entropy beside the bound."""

    def __init__(self, tokens: int, size: int, steps: int) -> None:
        require_int(tokens, "tokens")
        require_int(steps, "steps")
        self.tokens, self.size, self.steps = tokens, size, steps

    @abstractmethod
    def matrix(self, s: int, t: int) -> Float64[Tensor, "K K"]:
        """Q_(s+1) ... Q_t, for inspection."""

    @abstractmethod
    def rows(self, x: Tokens, s: RowSteps, t: RowSteps) -> Float64[Tensor, "B L K"]:
        """q(z_t | z_s = x), as a function of z_t."""

    @abstractmethod
    def columns(self, z: Tokens, s: RowSteps, t: RowSteps) -> Float64[Tensor, "B L K"]:
        """q(z_t = z | z_s), as a function of z_s."""

    @abstractmethod
    def entries(self, x: Tokens, z: Tokens, s: RowSteps, t: RowSteps) -> Float64[Tensor, "B L"]:
        """q(z_t = z | z_s = x)."""

    @abstractmethod
    def push(self, mean: LogProbs, t: RowSteps) -> Float[Tensor, "B L K"]:
        """sum_x q(z_t | x) mean(x)."""

    @abstractmethod
    def prior(self) -> Float64[Tensor, "K"]:
        """p(z_T): the mean of q(z_T | x) over the real tokens.

        This is the paper's prior (all masks; uniform) if the process ends there; if it stops
        short, the prior term is still finite.
        """

    @abstractmethod
    def prior_nats(self, x: Tokens) -> Float64[Tensor, "B L"]:
        """L_T = KL(q(z_T | x) || p(z_T)) (the first term of eq. 1)."""

    def draw(self, x: Tokens, t: RowSteps, u: Float64[Tensor, "B L"]) -> Int64[Tensor, "B L"]:
        """Draw z_t from q(z_t | x), from one uniform number for each token."""
        log_probs = self.rows(x, torch.zeros_like(t), t).log()
        return sample_categorical(log_probs.flatten(0, 1), u.flatten()).view_as(x)

    def divergence(
        self, log_mean: LogProbs, x: Tokens, z: Tokens, s: RowSteps, t: RowSteps
    ) -> Float[Tensor, "B L"]:
        """KL(q(z_s | z_t, x) || p(z_s | z_t)); at s = 0 that is -log p(x | z_t).

        The common factor q(z_t | z_s) cancels:
        KL = E_q log(q(z_s | x) / p(z_s)) - log(q(z_t | x) / p(z_t)), p(z) = sum_x q(z | x) mean(x).
        """
        back = self.columns(z, s, t)
        truth = self.rows(x, torch.zeros_like(s), s)
        ours = self.push(log_mean.double().exp(), s).clamp(min=TINY)
        joint = back * truth
        total = joint.sum(-1)
        q = joint / total[..., None]
        gap: Tensor = (torch.special.xlogy(q, truth) - q * ours.log()).sum(-1)
        return (gap + torch.log((back * ours).sum(-1) / total)).to(log_mean.dtype)
