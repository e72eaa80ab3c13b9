"""Transitions of D3PM in closed form: absorbing and uniform, for vocabularies of any size.

No matrices are computed. A product of matrices (1 - beta) I + beta 1 r^T has the same form,
a I + (1 - a) 1 r^T with a = prod (1 - beta), so one number describes the transition between any two
steps.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor
from torch.nn import functional as F

from partita.contracts.shapes import LogProbs, RowSteps, Tokens
from partita.errors import require
from partita.processes.transitions import TINY, TRANSITIONS, Transition


class Interpolating(Transition):
    """Q = a I + (1 - a) 1 r^T between any two steps; r is the limiting distribution."""

    def __init__(self, tokens: int, size: int, betas: Float[Tensor, "T"]) -> None:
        super().__init__(tokens, size, len(betas))
        betas = betas.to("cpu", torch.float64)
        fits = bool(((betas >= 0) & (betas <= 1)).all())
        require(fits, "betas", "must be probabilities, from 0 to 1")
        # log(1 - beta) is infinite for a beta of 1: such steps are counted, the others summed.
        ends = betas == 1
        self._logs = F.pad(torch.log1p(-betas.masked_fill(ends, 0)).cumsum(0), (1, 0))
        self._ends = F.pad(ends.cumsum(0), (1, 0))

    def kept(
        self, s: RowSteps, t: RowSteps
    ) -> tuple[Float64[Tensor, "B 1"], Float64[Tensor, "B 1"]]:
        """a and 1 - a from step s to step t, each in full precision."""
        logs, ends = self._logs.to(t.device), self._ends.to(t.device)
        log = torch.where(ends[t] > ends[s], -torch.inf, logs[t] - logs[s])[:, None]
        return log.exp(), -torch.expm1(log)

    @abstractmethod
    def end(self, z: Int64[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        """r at the given states."""

    def limit(self, device: torch.device | str = "cpu") -> Float64[Tensor, "K"]:
        """r, over all states."""
        return self.end(torch.arange(self.size, device=device))

    def matrix(self, s: int, t: int) -> Float64[Tensor, "K K"]:
        a, lost = self.kept(torch.tensor([s]), torch.tensor([t]))
        return a * torch.eye(self.size, dtype=torch.float64) + lost * self.limit()

    def rows(self, x: Tokens, s: RowSteps, t: RowSteps) -> Float64[Tensor, "B L K"]:
        a, lost = self.kept(s, t)
        wide = (lost[..., None] * self.limit(x.device)).repeat(1, x.shape[1], 1)
        return wide.scatter_add_(-1, x[..., None], a.expand(x.shape)[..., None])

    def columns(self, z: Tokens, s: RowSteps, t: RowSteps) -> Float64[Tensor, "B L K"]:
        a, lost = self.kept(s, t)
        wide = (lost * self.end(z))[..., None].repeat(1, 1, self.size)
        return wide.scatter_add_(-1, z[..., None], a.expand(z.shape)[..., None])

    def entries(self, x: Tokens, z: Tokens, s: RowSteps, t: RowSteps) -> Float64[Tensor, "B L"]:
        a, lost = self.kept(s, t)
        return a * (x == z) + lost * self.end(z)

    def push(self, mean: LogProbs, t: RowSteps) -> Float[Tensor, "B L K"]:
        a, lost = (value[..., None] for value in self.kept(torch.zeros_like(t), t))
        gone = (lost * self.limit(mean.device)).to(mean.dtype)
        return F.pad(a.to(mean.dtype) * mean, (0, self.size - mean.shape[-1])) + gone

    def _left(self) -> tuple[Tensor, Tensor]:
        """a and 1 - a of the whole process."""
        a, lost = self.kept(torch.zeros(1, dtype=torch.int64), torch.tensor([self.steps]))
        return a[0, 0], lost[0, 0]


@TRANSITIONS.register("absorbing")
class Absorbing(Interpolating):
    """Tokens become the mask, which is the last state (appendix A.2.2)."""

    default_betas = "mutual-information"
    default_hybrid = 0.01

    def __init__(self, tokens: int, betas: Float[Tensor, "T"]) -> None:
        super().__init__(tokens, tokens + 1, betas)

    def end(self, z: Int64[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        return (z == self.tokens).double()

    def prior(self) -> Float64[Tensor, "K"]:
        left, lost = self._left()
        return torch.cat([(left / self.tokens).expand(self.tokens), lost[None]])

    def prior_nats(self, x: Tokens) -> Float64[Tensor, "B L"]:
        """The cost of guessing uniformly each token that is still visible at step T."""
        left, _ = self._left()
        return (left * math.log(self.tokens)).to(x.device).expand(x.shape)

    def draw(self, x: Tokens, t: RowSteps, u: Float64[Tensor, "B L"]) -> Int64[Tensor, "B L"]:
        _, lost = self.kept(torch.zeros_like(t), t)
        return torch.where(u < lost, self.tokens, x)

    def divergence(
        self, log_mean: LogProbs, x: Tokens, z: Tokens, s: RowSteps, t: RowSteps
    ) -> Float[Tensor, "B L"]:
        """-rho log mean(x) at masks, rho = (a_s - a_t) / (1 - a_t); 0 at visible tokens.

        A mean with mass g on the mask itself, which the paper does not rule out, costs in addition
        log(1 + g a_t / (1 - a_t)) - (1 - rho) log(1 + g a_s / (1 - a_s)).
        """
        zero = torch.zeros_like(s)
        (a_s, lost_s), (a_t, lost_t) = self.kept(zero, s), self.kept(zero, t)
        _, lost = self.kept(s, t)
        lost_t = lost_t.clamp(min=TINY)  # if it is 0, there are no masks
        nats = -a_s * lost / lost_t * log_mean.gather(-1, x[..., None])[..., 0].double()
        if log_mean.shape[-1] > self.tokens:
            share = log_mean[..., self.tokens].double().exp()
            nats = nats + torch.log1p(share * a_t / lost_t)
            stay = torch.log1p(share * a_s / lost_s.clamp(min=TINY))
            nats = nats - torch.where(lost_s > 0, lost_s / lost_t * stay, 0)
        return torch.where(z == self.tokens, nats, 0).to(log_mean.dtype)


@TRANSITIONS.register("uniform")
class Uniform(Interpolating):
    """Tokens are replaced by uniform tokens, themselves included (appendix A.2.1)."""

    def __init__(self, tokens: int, betas: Float[Tensor, "T"]) -> None:
        super().__init__(tokens, tokens, betas)

    def end(self, z: Int64[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        return torch.full_like(z, 1 / self.size, dtype=torch.float64)

    def prior(self) -> Float64[Tensor, "K"]:
        return self.limit()

    def prior_nats(self, x: Tokens) -> Float64[Tensor, "B L"]:
        left, lost = self._left()
        others: Tensor = torch.special.xlog1py(lost * (self.size - 1) / self.size, -left)
        itself = (left + lost / self.size) * torch.log1p(left * (self.size - 1))
        return (itself + others).to(x.device).expand(x.shape)

    def draw(self, x: Tokens, t: RowSteps, u: Float64[Tensor, "B L"]) -> Int64[Tensor, "B L"]:
        _, lost = self.kept(torch.zeros_like(t), t)
        share = u / lost.clamp(min=TINY)  # uniform again where u < lost
        return torch.where(u < lost, (share * self.size).long().clamp(max=self.size - 1), x)

    def divergence(
        self, log_mean: LogProbs, x: Tokens, z: Tokens, s: RowSteps, t: RowSteps
    ) -> Float[Tensor, "B L"]:
        """The base class's formula with c = (1 - a_s) / K factored out of q(z_s | x) and p(z_s).

        With f(y) = log(1 + mean(y) a_s / c) and Z = q(z_t | x), q(z_s) is constant except at x and
        at z_t, so one sum of f over all tokens suffices:
        KL = q(x) log(1 + a_s / c) - E_q f + log(p(z_t) / Z). At a_s = 1 that is
        -log mean(x) + log(p(z_t) / Z). All but that sum is in float64.
        """
        zero = torch.zeros_like(s)
        (a_s, lost_s), (a_t, lost_t) = self.kept(zero, s), self.kept(zero, t)
        a, lost = self.kept(s, t)
        here = log_mean.gather(-1, torch.stack([x, z], -1)).double()
        at_x, at_z = here.exp().unbind(-1)
        c, b, same = lost_s / self.size, lost / self.size, x == z
        total = a_t * same + lost_t / self.size
        ratio = torch.log((a_t * at_z + lost_t / self.size).clamp(min=TINY) / total)
        clean = lost_s <= 0
        scale = torch.where(clean, 1, a_s / c.clamp(min=TINY))  # unused where a_s = 1
        everywhere = self._sum_log1p(log_mean, scale).double()
        elsewhere = b * c / total
        extra_x = (b * a_s + a * (a_s + c) * same) / total
        extra_z = torch.where(same, 0, a * c / total)
        f_x, f_z = torch.log1p(scale * at_x), torch.log1p(scale * at_z)
        expected = elsewhere * everywhere + extra_x * f_x + extra_z * f_z
        later = (elsewhere + extra_x) * torch.log1p(scale) - expected
        return (torch.where(clean, -here[..., 0], later) + ratio).to(log_mean.dtype)

    @staticmethod
    def _sum_log1p(log_mean: Tensor, scale: Tensor) -> Tensor:
        return torch.log1p(scale[..., None].to(log_mean.dtype) * log_mean.exp()).sum(-1)
