"""The absorbing process that MDLM, MD4 and their relatives share.

A token x is visible at time t with probability alpha_t and has become the mask m otherwise.
Distributions over states are written as vectors whose last axis holds every token and the mask.

    marginal      q(z_t | x)      = alpha_t x + (1 - alpha_t) m
    transition    q(z_t | z_s)    = (alpha_t / alpha_s) z_s + (1 - alpha_t / alpha_s) m
    posterior     q(z_s | z_t, x) = z_t if visible, else
                                    ((alpha_s - alpha_t) x + (1 - alpha_s) m) / (1 - alpha_t)
    reverse       p(z_s | z_t)    = q(z_s | z_t, x = x_theta(z_t))
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from partita.contracts.layouts import Queries
from partita.contracts.loss import Loss
from partita.kernels.cross_entropy import weighted_nats
from partita.schedules import Schedule

# The process -------------------------------------------------------------------------------------


def states(tokens: Int64[Tensor, "*t"], size: int) -> Float[Tensor, "*t size"]:
    """Tokens as one-hot vectors in float64."""
    return F.one_hot(tokens, size).to(torch.float64)


def marginal(
    x: Int64[Tensor, "B L"], t: Float[Tensor, "B"], schedule: Schedule, mask_id: int, size: int
) -> Float[Tensor, "B L size"]:
    """q(z_t | x) (MDLM eq. 1)."""
    alpha, hidden = schedule.alpha(t)[:, None, None], schedule.one_minus_alpha(t)[:, None, None]
    return alpha * states(x, size) + hidden * states(torch.full_like(x, mask_id), size)


def transition(
    z_s: Int64[Tensor, "B L"],
    s: Float[Tensor, "B"],
    t: Float[Tensor, "B"],
    schedule: Schedule,
    mask_id: int,
    size: int,
) -> Float[Tensor, "B L size"]:
    """q(z_t | z_s) for s < t."""
    lost = (schedule.decrease(s, t) / schedule.alpha(s))[:, None, None]
    mask = states(torch.full_like(z_s, mask_id), size)
    return (1 - lost) * states(z_s, size) + lost * mask


def reverse(
    mean: Float[Tensor, "B L C"],
    z_t: Int64[Tensor, "B L"],
    s: Float[Tensor, "B"],
    t: Float[Tensor, "B"],
    schedule: Schedule,
    mask_id: int,
) -> Float[Tensor, "B L S"]:
    """p(z_s | z_t) with x_theta = mean (MDLM eq. 7, MD4 eq. 4).

    The mean may hold mass on the mask itself (D3PM's parameterisation); SUBS and MD4 have none,
    and the formula is then the one at the top of this file.
    """
    size = max(mean.shape[-1], mask_id + 1)
    mean = F.pad(mean, (0, size - mean.shape[-1]))
    alpha_s, alpha_t = schedule.alpha(s)[:, None], schedule.alpha(t)[:, None]
    hidden_s, hidden_t = schedule.one_minus_alpha(s)[:, None], schedule.one_minus_alpha(t)[:, None]
    at_mask = mean[..., mask_id]
    moved = schedule.decrease(s, t)[:, None, None] * mean
    moved[..., mask_id] = alpha_s * at_mask + hidden_s
    moved = moved / (alpha_t * at_mask + hidden_t)[..., None]
    return torch.where((z_t == mask_id)[..., None], moved, states(z_t, size).to(moved.dtype))


def posterior(
    x: Int64[Tensor, "B L"],
    z_t: Int64[Tensor, "B L"],
    s: Float[Tensor, "B"],
    t: Float[Tensor, "B"],
    schedule: Schedule,
    mask_id: int,
    size: int,
) -> Float[Tensor, "B L size"]:
    """q(z_s | z_t, x): the reverse step of a model that knows x."""
    return reverse(states(x, size), z_t, s, t, schedule, mask_id)


def prior_nats(schedule: Schedule, tokens: int, vocab_size: int) -> float:
    """KL(q(z_1 | x) || p(z_1)) of a sequence: 0 for every schedule that ends at alpha = 0.

    A truncated schedule leaves alpha(1) of the tokens visible; the prior that matches it shows
    such a token uniformly, which costs ln V each.
    """
    left = float(schedule.alpha(torch.ones((), dtype=torch.float64)))
    return tokens * left * math.log(vocab_size)


def reconstruction_nats(schedule: Schedule, tokens: int, vocab_size: int) -> float:
    """-E log p(x | z_0) of a sequence: 0 for every schedule that starts at alpha = 1.

    A truncated schedule still hides 1 - alpha(0) of the tokens; they are guessed uniformly.
    """
    hidden = float(schedule.one_minus_alpha(torch.zeros((), dtype=torch.float64)))
    return tokens * hidden * math.log(vocab_size)


# The loss ----------------------------------------------------------------------------------------


def weighted_cross_entropy(
    log_probs: Float[Tensor, "N V"],
    queries: Queries,
    tokens: Int64[Tensor, "B L"],
    weights: Float[Tensor, "B L"],
    valid: Bool[Tensor, "B L"],
) -> Loss:
    """sum of w * -log p(x) over the queried tokens, divided by the number of real tokens."""
    target = tokens[queries.rows, queries.positions]
    nats = -log_probs.gather(-1, target[:, None])[:, 0]
    return _weighed(nats, queries, tokens, weights, valid)


def projected_cross_entropy(
    vectors: Float[Tensor, "N W"],
    head: nn.Linear,
    queries: Queries,
    tokens: Int64[Tensor, "B L"],
    weights: Float[Tensor, "B L"],
    valid: Bool[Tensor, "B L"],
    forbidden: int,
) -> Loss:
    """The same from what the head reads; the logits of the batch are never held all at once.

    The objective alone can be differentiated. `forbidden` is an output that gets no mass.
    """
    target = tokens[queries.rows, queries.positions]
    at = weights[queries.rows, queries.positions]
    forbidden = forbidden if forbidden < head.out_features else -1
    total, nats = weighted_nats(vectors, head.weight, head.bias, target, at, forbidden)
    loss = _weighed(nats, queries, tokens, weights, valid)
    return replace(loss, objective=total / loss.tokens)


def _weighed(
    nats: Tensor, queries: Queries, tokens: Tensor, weights: Tensor, valid: Tensor
) -> Loss:
    """Each token's nats at its place, weighed and added up."""
    empty = nats.new_zeros(tokens.shape)
    cross_entropy = empty.index_put((queries.rows, queries.positions), nats)
    counted = torch.zeros_like(valid).index_put(
        (queries.rows, queries.positions), torch.ones_like(queries.rows, dtype=torch.bool)
    )
    per_token = cross_entropy * weights.to(nats.dtype)
    count = valid.sum()
    return Loss(per_token.sum() / count, per_token, cross_entropy, counted, count)
