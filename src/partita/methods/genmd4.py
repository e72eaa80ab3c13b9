"""GenMD4: masking schedules that depend on the token and are learned (Shi et al., 2024, section 6).

Every real token i has a schedule of its own, with a learned exponent:

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
drawn. Half of the times have the density c t^(c-1) with c = min w / 2 instead, and all are weighed
by the density of both halves together: the variance is finite whatever w becomes. Where w is small
those times are below the smallest number, so their logarithm is kept beside them. The network reads
such a time as 0.

The reference implementation draws uniform times and stays away from the ends: with
alpha_t,i = 1 - (1 - eps) t^(w_i) and times in [t1, 1], tokens that are hidden at t1 are guessed
from the schedules. Here eps = t1 = 0 unless given.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from partita.contracts.layouts import DENSE, Layout, Queries
from partita.contracts.loss import Loss
from partita.contracts.packed import places_of
from partita.errors import require, require_positive
from partita.methods.asking import asks_everywhere
from partita.methods.base import METHODS, About, check_tokens
from partita.methods.contracts import Chain, QueriesHidden, TextMethod
from partita.methods.masked_method import TIME_SCALE
from partita.networks.base import Network, check_bidirectional, check_timed
from partita.networks.kinds import make_network
from partita.networks.options import TransformerConfig, TransformerOptions
from partita.processes.draws import CrowdedTimes, crowded_times, even_times, positive_time
from partita.randomness import Noise, Purpose

SECOND_MASK = 1 << 23  # the second mask's bit in the number of the noise's stream
Masks = tuple[Bool[Tensor, "B L"], Bool[Tensor, "B L"]]


def surplus(
    log_mean: Float[Tensor, "N V"], x: Int64[Tensor, "N"], w: Float[Tensor, "V"]
) -> Float[Tensor, "N"]:
    """sum_j (w_j - w_x) mu_j, what eq. 12 has beside the cross-entropy.

    Exponents are taken from the middle of their range, so that equal ones cancel exactly. (No
    matrix product: autocast would make it one of low precision.)
    """
    centred = w - (w.amin() + w.amax()).detach() / 2
    return (log_mean.exp() * centred).sum(-1) - centred[x]


@METHODS.register("genmd4")
class GenMD4(nn.Module, TextMethod, Chain, QueriesHidden):
    """Masked diffusion whose schedules depend on the token and are learned."""

    about = About(
        paper="Simplified and Generalized Masked Diffusion for Discrete Data (Shi et al., 2024)",
        equation="eq. 12",
        loss="MD4's bound with a learned schedule for every token, by REINFORCE",
        choices={
            "schedule_options": "exponent (1), which all tokens start with; eps (0) and t1 (0)",
        },
    )
    family: str = "chain"
    network: Network
    length: int
    vocab_size: int
    mask_id: int
    passes: ClassVar[int] = 2  # of the network over a token, in a step of training
    undecayed: ClassVar[tuple[str, ...]] = ("raw",)
    """Parameters without weight decay, which would pull every exponent towards softplus(0)."""

    def __init__(
        self, network: Network, *, exponent: float = 1.0, eps: float = 0.0, t1: float = 0.0
    ) -> None:
        """The mask is the id after the tokens that the network predicts; all w start alike."""
        super().__init__()
        require_positive(exponent, "schedule.exponent")
        for name, value in (("eps", eps), ("t1", t1)):
            require(0 <= value < 1, f"schedule.{name}", f"must lie in [0, 1), got {value}")
        self.network, self.eps, self.t1 = network, eps, t1
        self._check_network()
        config = network.config
        self.length, self.vocab_size = config.length, config.vocab_size
        self.mask_id = config.outputs
        raw = exponent + math.log(-math.expm1(-exponent))  # softplus backwards, without overflow
        self.raw = nn.Parameter(torch.full((config.outputs,), raw))

    @classmethod
    def build(
        cls,
        network: TransformerOptions,
        tokens: int,
        *,
        schedule_options: dict[str, float] | None = None,
    ) -> GenMD4:
        """GenMD4 over a new network for ids 0..tokens-1; the mask is the id after them."""
        given = schedule_options or {}
        known = {*given} <= {"exponent", "eps", "t1"}
        problem, takes = f"has {', '.join(given)}", "genmd4's schedules take: exponent, eps, t1"
        require(known, "schedule_options", problem, takes)
        config = TransformerConfig(
            **vars(network), vocab_size=tokens + 1, output_size=tokens, time=True
        )
        return cls(make_network(config), **given)

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
        """w > 0, one for each real token: in float64, where e^raw is above 0 down to e^-700."""
        return F.softplus(self.raw.double())

    def _log_hidden(self, w: Tensor, log_t: Tensor) -> Tensor:
        """log(1 - alpha_t) = w log t + log(1 - eps), exact where 1 - alpha_t is small."""
        return w * log_t + math.log1p(-self.eps)

    def alpha(self, t: Float[Tensor, "B"]) -> Float[Tensor, "B V"]:
        """The probability that each token is visible at time t."""
        return -torch.expm1(self._log_hidden(self.exponents, t[:, None].log()))

    def log_mask(
        self,
        tokens: Int64[Tensor, "B L"],
        masked: Bool[Tensor, "B L"],
        t: Float[Tensor, "B"],
        valid: Bool[Tensor, "B L"],
    ) -> Float[Tensor, "B"]:
        """log q(z_t | x): which of the valid tokens are masked."""
        return self._log_mask(tokens, masked, t.log(), valid)

    def _log_mask(self, tokens: Tensor, masked: Tensor, log_t: Tensor, valid: Tensor) -> Tensor:
        """The same of log t, for times that are too small for a number."""
        hidden = self._log_hidden(self._of_tokens(tokens), log_t[:, None])
        # Where a token is hidden, the other branch is not taken, nor may its gradient be infinite.
        visible = torch.log(-torch.expm1(torch.where(masked, -1.0, hidden)))
        return torch.where(valid, torch.where(masked, hidden, visible), 0).sum(-1)

    def _of_tokens(self, tokens: Tensor) -> Tensor:
        """w_x of each token; padding holds the mask, whose number does not matter."""
        return self.exponents[tokens.clamp(max=len(self.raw) - 1)]

    # The reverse process -------------------------------------------------------------------------

    def prior(self, like: Int64[Tensor, "B L"]) -> Float[Tensor, "B L S"]:
        """All masks. With eps, a token is visible (any one) with that probability."""
        state = torch.full((self.mask_id + 1,), self.eps / self.mask_id, device=like.device)
        state[self.mask_id] = 1 - self.eps
        return state.expand(*like.shape, -1)

    def log_mean(
        self,
        tokens: Int64[Tensor, "B L"],
        time: Float[Tensor, "B"],
        label: Int64[Tensor, "B"] | None = None,
    ) -> Float[Tensor, "B L V"]:
        """log mu at masked positions; what is visible is known."""
        masked = tokens == self.mask_id
        queries = Queries(*masked.nonzero(as_tuple=True))
        log_mean = self._predict(tokens, queries, time, label, DENSE)
        known = log_mean.new_full((*tokens.shape, self.mask_id), -torch.inf)
        known.scatter_(-1, tokens.clamp(max=self.mask_id - 1)[..., None], 0.0)
        known[masked] = log_mean
        return known

    def step(
        self,
        log_mean: Float[Tensor, "B L V"],
        tokens: Int64[Tensor, "B L"],
        s: Float[Tensor, "B"],
        t: Float[Tensor, "B"],
    ) -> Float[Tensor, "B L S"]:
        """p(z_s | z_t): eps cancels, and at s = 0 no mask is left."""
        mean = log_mean.exp()
        log_stay = (self.exponents * (s / t).log()[:, None])[:, None]
        stays = (log_stay.exp().to(mean.dtype) * mean).sum(-1, keepdim=True)
        moved = torch.cat([-torch.expm1(log_stay).to(mean.dtype) * mean, stays], -1)
        same = torch.zeros_like(moved).scatter_(-1, tokens[..., None], 1.0)
        return torch.where((tokens == self.mask_id)[..., None], moved, same)

    def _predict(
        self, z: Tensor, queries: Queries, time: Tensor, label: Tensor | None, layout: Layout
    ) -> Tensor:
        """log mu_theta(z_t, t) at some positions, in float32 or better."""
        told = {} if layout is DENSE else {"layout": layout}  # networks need not know of layouts
        scalar = (TIME_SCALE * time).float()
        logits = self.network(z, queries=queries, scalar=scalar, label=label, **told)
        return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)

    # The loss ------------------------------------------------------------------------------------

    def waits(self, tokens: Int64[Tensor, "B L"]) -> bool:
        """Whether the loss of such tokens waits for the GPU."""
        return self.t1 > 0 or not asks_everywhere(self, tokens)

    def loss(
        self,
        tokens: Int64[Tensor, "B L"],
        noise: Noise,
        step: int = 0,
        *,
        batch: int | None = None,
        valid: Bool[Tensor, "B L"] | None = None,
        label: Int64[Tensor, "B"] | None = None,
        layout: Layout = DENSE,
    ) -> Loss:
        """Mask twice, predict both times; the arguments are those of MDLM's loss.

        The values are an unbiased estimate of the bound. The gradient of the exponents is complete
        in `objective` alone: `per_token` lacks the part that comes from the masks.
        """
        check_tokens(tokens, self, valid)
        real = torch.ones_like(tokens, dtype=torch.bool) if valid is None else valid
        tokens = torch.where(real, tokens, self.mask_id)  # padding may hold anything
        t, log_t, share = self.times(positive_time(even_times(noise, step, batch or len(tokens))))
        positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
        chance = self._log_hidden(self._of_tokens(tokens), log_t[:, None]).exp().detach()

        def hide(stream: int) -> Tensor:
            return (noise.fork(stream).uniform(Purpose.MASK, step, positions) < chance) & real

        masks = hide(noise.stream), hide(noise.stream ^ SECOND_MASK)
        return self.loss_under(
            tokens, masks, t, real, label, log_t=log_t, share=share, layout=layout
        )

    def times(self, u: Float[Tensor, "B"]) -> CrowdedTimes:
        """Times in (t1, 1] of uniform numbers, the upper half near 0."""
        return crowded_times(u, self.exponents.detach().min().to(u.dtype) / 2, self.t1)

    def loss_under(
        self,
        tokens: Int64[Tensor, "B L"],
        masks: Masks,
        t: Float[Tensor, "B"],
        valid: Bool[Tensor, "B L"],
        label: Int64[Tensor, "B"] | None = None,
        *,
        log_t: Float[Tensor, "B"] | None = None,
        share: Float[Tensor, "B"] | None = None,
        layout: Layout = DENSE,
    ) -> Loss:
        """The loss for tokens that are already hidden, in two ways.

        `log_t` has to be given where t is too small for a number. `share` is t times the density
        that t was drawn from (uniform on [t1, 1] unless given).
        """
        log_t = t.log() if log_t is None else log_t
        share = t / (1 - self.t1) if share is None else share
        # Exponents in units of the largest, so that neither they nor 1 / share leave float32.
        unit = self.exponents.detach().amax()
        everywhere = asks_everywhere(self, tokens)
        losses, nats = [], []
        for masked in masks:
            queries = places_of(None if everywhere else masked, tokens)
            z = torch.where(masked, self.mask_id, tokens)
            x = tokens.where(masked, 0)[queries.rows, queries.positions]
            log_mean = self._predict(z, queries, t, label, layout)
            w = (self.exponents / unit).to(log_mean.dtype)
            weight = (unit / share).to(w.dtype)[queries.rows]
            surprise = -log_mean.gather(-1, x[:, None])[:, 0]
            terms = weight * (w[x] * surprise + surplus(log_mean, x, w))
            empty = terms.new_zeros(tokens.shape)
            losses.append(empty.index_put(queries, terms).where(masked, 0))
            nats.append(empty.index_put(queries, surprise).where(masked, 0))
        per_token = (losses[0] + losses[1]) / 2 + self.ends(tokens, valid).to(losses[0].dtype)
        times_hidden = masks[0].long() + masks[1].long()
        cross_entropy = (nats[0] + nats[1]) / times_hidden.clamp(min=1)
        difference = (losses[0] - losses[1]).sum(-1).detach()
        log_q = [self._log_mask(tokens, masked, log_t, valid) for masked in masks]
        reinforce = (difference * (log_q[0] - log_q[1]) / 2).sum().to(per_token.dtype)
        count = valid.sum()
        objective = (per_token.sum() + reinforce - reinforce.detach()) / count
        return Loss(objective, per_token, cross_entropy, times_hidden > 0, count)

    def ends(self, x: Int64[Tensor, "B L"], valid: Bool[Tensor, "B L"]) -> Float[Tensor, "B L"]:
        """Reconstruction (from t1) and prior (eps ln V, which the reference omits), in nats."""
        nats = torch.full_like(x, self.eps * math.log(self.mask_id), dtype=torch.float64)
        if self.t1 > 0:
            start = torch.tensor(self.t1, dtype=torch.float64, device=x.device)
            guess = (self.exponents * start.log()).log_softmax(-1)
            hidden = self._log_hidden(self._of_tokens(x), start.log()).exp()
            nats = nats - hidden * guess[x.clamp(max=self.mask_id - 1)]
        return torch.where(valid, nats, 0)
