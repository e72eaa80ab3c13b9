"""GenMD4: masking schedules that depend on the token and are learned (Shi et al., 2024, section 6).

Every real token i has its own schedule, with a learned exponent:

    alpha_t,i = 1 - t^(w_i),    w = softplus(raw)

A token x is masked by its own schedule. The posterior (eq. 11) is that of `masked.py` with alpha_x,
quadratic in x; but E[x x^T | z_t] = diag(E[x | z_t]), so the prediction mu_theta(z_t, t) of the
mean still gives the reverse process. A masked position has

    p(z_s = j | z_t) = ((alpha_s,j - alpha_t,j) / (1 - alpha_t,j)) mu_j = (1 - (s/t)^(w_j)) mu_j
    p(z_s = m | z_t) = sum_j ((1 - alpha_s,j) / (1 - alpha_t,j)) mu_j   = sum_j (s/t)^(w_j) mu_j

The continuous-time objective (eq. 12, eq. 32 for sequences), a product of vectors over tokens,

    L = integral_0^1 (alpha'_t / (1 - alpha_t))^T E_q [sum over masked n: x - mu + x x^T log mu] dt,

becomes, since alpha'_t,i / (1 - alpha_t,i) = -w_i / t and sum_j mu_j = 1,

    L = integral_0^1 (1/t) E_q [sum over masked n: -w_x log mu_x + sum_j (w_j - w_x) mu_j] dt:

MD4's cross-entropy (eq. 5), and a term that vanishes where all exponents are equal.

The exponents also decide which masks are drawn. That part of the gradient is estimated by REINFORCE
(appendix I.2): two independent masks z1, z2 of the same x and t have losses l1, l2, and
(l1 - l2) (d log q(z1) - d log q(z2)) / 2 has the mean sum_z l(z) dq(z): each loss is the other's
baseline. Without that part every exponent would fall to 0.

Times are not drawn uniformly: a token is hidden with probability t^w and then costs w/t, which has
infinite variance for w <= 1, and for small w nearly all of it comes from times too small to be ever
drawn. Half of the times have the density c t^(c-1) with c = min w / 2 instead, and all are weighted
by the density of the mixture; the variance is then finite for every w. If w is small, such times
are below the smallest floating-point number, so their logarithm is kept too. The network reads such
a time as 0.

The reference implementation draws uniform times and avoids the ends: with alpha_t,i = 1 - (1 - eps)
t^(w_i) and times in [t1, 1], tokens that are hidden at t1 are guessed from the schedules. Here
eps = t1 = 0 by default.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from partita.contracts.batch import Batch
from partita.contracts.layouts import DENSE, Layout, Queries
from partita.contracts.loss import Loss
from partita.contracts.shapes import Labels, LogProbs, Marks, RowTimes, Tokens
from partita.errors import require, require_positive
from partita.methods.base import METHODS, About, NetworkMethod, check_batch
from partita.methods.contracts import Chain
from partita.methods.inference import hidden_queries, queries_everywhere
from partita.methods.masked_method import TIME_SCALE
from partita.networks.base import Network, check_bidirectional, check_timed
from partita.networks.kinds import new_network
from partita.networks.options import TransformerOptions
from partita.processes.draws import CrowdedTimes, crowded_times, even_times, positive_time
from partita.randomness import Noise, Purpose

SECOND_MASK = 1 << 23  # bit of the stream number from which the second mask is drawn
Masks = tuple[Bool[Tensor, "B L"], Bool[Tensor, "B L"]]


class MaskedTwice(NamedTuple):
    """Two masks of the same tokens at the same times."""

    masks: Masks
    t: RowTimes
    log_t: Float[Tensor, "B"] | None = None
    """Required if t underflows."""
    share: Float[Tensor, "B"] | None = None
    """t times the density that t was drawn from; by default uniform on [t1, 1]."""


def surplus(
    log_mean: Float[Tensor, "N V"], x: Int64[Tensor, "N"], w: Float[Tensor, "V"]
) -> Float[Tensor, "N"]:
    """sum_j (w_j - w_x) mu_j, the term of eq. 12 beside the cross-entropy.

    Exponents are centered on the middle of their range, so that equal ones cancel exactly. (No
    matrix product, which autocast would run in low precision.)
    """
    centered = w - (w.amin() + w.amax()).detach() / 2
    return (log_mean.exp() * centered).sum(-1) - centered[x]


@METHODS.register("genmd4")
class GenMD4(NetworkMethod, Chain):
    """Masked diffusion with a learned masking schedule for every token of the vocabulary."""

    about = About(
        paper="Simplified and Generalized Masked Diffusion for Discrete Data (Shi et al., 2024)",
        equation="eq. 12",
        loss="MD4's bound with a learned schedule for every token, by REINFORCE",
        choices={
            "schedule_options": "exponent (1), which all tokens start with; eps (0) and t1 (0)",
        },
    )
    network: Network
    mask_id: int
    passes = 2
    recordable = True
    undecayed = ("raw",)  # weight decay would pull every exponent towards softplus(0)

    def __init__(
        self, network: Network, *, exponent: float = 1.0, eps: float = 0.0, t1: float = 0.0
    ) -> None:
        """All exponents start at `exponent`; the mask is the id after the predicted tokens."""
        super().__init__()
        require_positive(exponent, "schedule.exponent")
        for name, value in (("eps", eps), ("t1", t1)):
            require(0 <= value < 1, f"schedule.{name}", f"must lie in [0, 1), got {value}")
        self.network, self.eps, self.t1 = network, eps, t1
        self._check_network()
        self.mask_id = network.config.outputs
        raw = exponent + math.log(-math.expm1(-exponent))  # inverse softplus, without overflow
        self.raw = nn.Parameter(torch.full((self.mask_id,), raw))

    @classmethod
    def build(
        cls,
        network: TransformerOptions,
        tokens: int,
        *,
        schedule_options: dict[str, float] | None = None,
    ) -> GenMD4:
        """Build GenMD4 with a new network for ids 0..tokens-1; the mask id is `tokens`."""
        given = schedule_options or {}
        known = {*given} <= {"exponent", "eps", "t1"}
        problem, takes = f"has {', '.join(given)}", "genmd4's schedules take: exponent, eps, t1"
        require(known, "schedule_options", problem, takes)
        sizes = {"vocab_size": tokens + 1, "output_size": tokens, "time": True}
        return cls(new_network(network, cls.reads, **sizes), **given)

    def _check_network(self) -> None:
        check_bidirectional(self.network)
        check_timed(self.network)
        config = self.network.config
        room = config.vocab_size > config.outputs
        remedy = "use TransformerConfig(output_size=the number of real tokens)"
        require(room, "network", "has a logit for every id, the mask's included", remedy)

    # The schedules -------------------------------------------------------------------------------

    @property
    def exponents(self) -> Float[Tensor, "V"]:
        """w > 0 for each real token, in float64, where e^raw is positive down to e^-700."""
        return F.softplus(self.raw.double())

    def _log_hidden(self, w: Tensor, log_t: Tensor) -> Tensor:
        """log(1 - alpha_t) = w log t + log(1 - eps), exact where 1 - alpha_t is small."""
        return w * log_t + math.log1p(-self.eps)

    def alpha(self, t: RowTimes) -> Float[Tensor, "B V"]:
        """The probability that each token is visible at time t."""
        return -torch.expm1(self._log_hidden(self.exponents, t[:, None].log()))

    def log_mask(
        self, tokens: Tokens, masked: Marks, log_t: RowTimes, real: Marks
    ) -> Float[Tensor, "B"]:
        """log q(z_t | x), the log-probability of this mask on the real tokens.

        A function of log t, for times that underflow.
        """
        hidden = self._log_hidden(self._of_tokens(tokens), log_t[:, None])
        # At hidden tokens this branch is unused, but an infinite gradient would still spread.
        visible = torch.log(-torch.expm1(torch.where(masked, -1.0, hidden)))
        return torch.where(real, torch.where(masked, hidden, visible), 0).sum(-1)

    def _of_tokens(self, tokens: Tensor) -> Tensor:
        """w_x of each token; padding holds the mask, whose value does not matter."""
        return self.exponents[tokens.clamp(max=len(self.raw) - 1)]

    # The reverse process -------------------------------------------------------------------------

    def prior(self, like: Tokens) -> Float[Tensor, "B L S"]:
        """All masks; with eps > 0, a uniform token with probability eps."""
        state = torch.full((self.mask_id + 1,), self.eps / self.mask_id, device=like.device)
        state[self.mask_id] = 1 - self.eps
        return state.expand(*like.shape, -1)

    def log_mean(self, tokens: Tokens, time: RowTimes, label: Labels | None = None) -> LogProbs:
        """log mu at masked positions; at visible ones all mass is on the visible token."""
        masked = tokens == self.mask_id
        queries = Queries(*masked.nonzero(as_tuple=True))
        log_mean = self._predict(tokens, queries, time, label, DENSE)
        known = log_mean.new_full((*tokens.shape, self.mask_id), -torch.inf)
        known.scatter_(-1, tokens.clamp(max=self.mask_id - 1)[..., None], 0.0)
        known[masked] = log_mean
        return known

    def step(
        self, log_mean: LogProbs, tokens: Tokens, s: RowTimes, t: RowTimes
    ) -> Float[Tensor, "B L S"]:
        """p(z_s | z_t); eps cancels, and no mask is left at s = 0."""
        mean = log_mean.exp()
        log_stay = (self.exponents * (s / t).log()[:, None])[:, None]
        stays = (log_stay.exp().to(mean.dtype) * mean).sum(-1, keepdim=True)
        moved = torch.cat([-torch.expm1(log_stay).to(mean.dtype) * mean, stays], -1)
        same = torch.zeros_like(moved).scatter_(-1, tokens[..., None], 1.0)
        return torch.where((tokens == self.mask_id)[..., None], moved, same)

    def _predict(
        self, z: Tensor, queries: Queries, time: Tensor, label: Tensor | None, layout: Layout
    ) -> Tensor:
        """log mu_theta(z_t, t) at the queried positions, in float32 or better."""
        scalar = (TIME_SCALE * time).float()
        logits = self.logits(z, layout, queries=queries, scalar=scalar, label=label)
        return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)

    # The loss ------------------------------------------------------------------------------------

    def needs_host_sync(self, tokens: Tokens) -> bool:
        return self.t1 > 0 or not queries_everywhere(self, tokens)

    def loss(self, batch: Batch, noise: Noise, step: int = 0) -> Loss:
        """Draw two masks and predict under both; the arguments are those of MDLM's loss.

        The values are an unbiased estimate of the bound. Only `objective` has the complete gradient
        of the exponents: `per_token` lacks the REINFORCE part.
        """
        batch = check_batch(batch, self).padded_with(self.mask_id)
        tokens, real = batch.tokens, batch.real
        t, log_t, share = self.times(positive_time(even_times(noise, step, batch.size)))
        positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
        chance = self._log_hidden(self._of_tokens(tokens), log_t[:, None]).exp().detach()

        def hide(stream: int) -> Tensor:
            return (noise.fork(stream).uniform(Purpose.MASK, step, positions) < chance) & real

        masks = hide(noise.stream), hide(noise.stream ^ SECOND_MASK)
        return self.loss_given(batch, MaskedTwice(masks, t, log_t, share))

    def times(self, u: Float[Tensor, "B"]) -> CrowdedTimes:
        """Times in (t1, 1] from uniform numbers; the upper half of the numbers maps near 0."""
        return crowded_times(u, self.exponents.detach().min().to(u.dtype) / 2, self.t1)

    def loss_given(self, batch: Batch, drawn: MaskedTwice) -> Loss:
        """The loss for two given masks."""
        tokens, real, layout = batch.tokens, batch.real, batch.layout()
        masks, t = drawn.masks, drawn.t
        log_t = t.log() if drawn.log_t is None else drawn.log_t
        share = t / (1 - self.t1) if drawn.share is None else drawn.share
        # Exponents relative to the largest, so that neither they nor 1 / share overflow float32.
        unit = self.exponents.detach().amax()
        losses, nats = [], []
        for masked in masks:
            queries = hidden_queries(self, tokens, masked)
            z = torch.where(masked, self.mask_id, tokens)
            x = tokens.where(masked, 0)[queries.rows, queries.positions]
            log_mean = self._predict(z, queries, t, batch.label, layout)
            w = (self.exponents / unit).to(log_mean.dtype)
            weight = (unit / share).to(w.dtype)[queries.rows]
            surprise = -log_mean.gather(-1, x[:, None])[:, 0]
            terms = weight * (w[x] * surprise + surplus(log_mean, x, w))
            empty = terms.new_zeros(tokens.shape)
            losses.append(empty.index_put(queries, terms).where(masked, 0))
            nats.append(empty.index_put(queries, surprise).where(masked, 0))
        per_token = (losses[0] + losses[1]) / 2 + self.ends(tokens, real).to(losses[0].dtype)
        times_hidden = masks[0].long() + masks[1].long()
        cross_entropy = (nats[0] + nats[1]) / times_hidden.clamp(min=1)
        difference = (losses[0] - losses[1]).sum(-1).detach()
        log_q = [self.log_mask(tokens, masked, log_t, real) for masked in masks]
        reinforce = (difference * (log_q[0] - log_q[1]) / 2).sum().to(per_token.dtype)
        count = real.sum()
        objective = (per_token.sum() + reinforce - reinforce.detach()) / count
        return Loss(objective, per_token, cross_entropy, times_hidden > 0, count)

    def ends(self, x: Tokens, real: Marks) -> Float[Tensor, "B L"]:
        """Reconstruction (at t1) and prior terms (eps ln V, which the reference omits), in nats."""
        nats = torch.full_like(x, self.eps * math.log(self.mask_id), dtype=torch.float64)
        if self.t1 > 0:
            start = torch.tensor(self.t1, dtype=torch.float64, device=x.device)
            guess = (self.exponents * start.log()).log_softmax(-1)
            hidden = self._log_hidden(self._of_tokens(x), start.log()).exp()
            nats = nats - hidden * guess[x.clamp(max=self.mask_id - 1)]
        return torch.where(real, nats, 0)
